"""
Services that nobody uses: decisions. Pure: the caller passes the time.

`predicate` says whether a service is idle, `ladder` has the steps from ready to released and back,
`windows` how long each rung lasts, and `keeping` the Bid by which a stopped service keeps its
lease.
The activator and the endpoint controller act.
"""
