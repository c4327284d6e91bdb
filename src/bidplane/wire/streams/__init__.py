"""
Protocols of kubectl's long-lived connections: WebSockets, SPDY, remote commands. Pure: bytes in,
messages out; sockets are `http`'s and `node.streams`'.
"""
