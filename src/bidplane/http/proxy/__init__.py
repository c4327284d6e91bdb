"""
The HTTP/1.1 data path: a reverse proxy whose routes, holds and answers are somebody else's.

`heads` says which messages are accepted and what of a head is passed on; it is pure. A `client`
connection reads requests, a `backend` connection carries one of them at a time, `pool` keeps
backends' connections, and `request` stands between the two: it is held, answered or forwarded.
`server` listens and enforces time limits. llhttp (through httptools) splits messages, strictly;
every message is written again from its parsed parts, so that a backend never sees a byte sequence
that two parsers could read in two ways. Why httptools: docs/designs/0016.
"""
