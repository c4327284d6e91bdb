"""
Apps over TLS: uvicorn with bounds on connections and heads, upgrades, and a shutdown in time.

`serve` runs an app on given sockets, `connection` is uvicorn's protocol with our bounds,
`accepting` and `descriptors` limit connections before anything is read. It knows ASGI apps, and
nothing of what they serve.
"""
