"""
HTTP, served and called: what every server and every client of Bidplane is made of.

A server is an ASGI app: it reads a `request`, finds it in `routes`, and sends a `replies.Reply`; a
refusal is an `ApiError`, which becomes a Kubernetes `Status`. `server/` carries apps over TLS,
`client/` makes calls. Nothing here knows what is served: planes, the exchange, nodes and the
public address stand on it. It may touch sockets and clocks, and import `wire` and `errors` only.
"""
