"""Apps over TLS: uvicorn with bounds on connections and heads, upgrades, and a shutdown in time."""
