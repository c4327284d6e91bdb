"""
Operations on objects, one file per verb. A verb decides, then awaits the store once.

`prepare` is what every write does first; `podparts`, `bind`, `evict` and `scale` are subresources;
`follow` is a watch of many planes at once. A verb gets a `call` and answers with an object or an
`ApiError`; it knows no socket.
"""
