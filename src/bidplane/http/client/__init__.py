"""
Calls over HTTP. `caller` makes the general client, `connections` a lean one for many small calls
to one server, `upgraded` and `forwarded` connections that speak something else. No other package
imports httpx2; errors are ours (`NoAnswer`, and `ApiError` for a refusal).
"""
