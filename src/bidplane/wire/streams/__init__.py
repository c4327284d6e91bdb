"""Protocols of kubectl's long-lived connections: WebSockets, SPDY, remote commands. Pure."""
