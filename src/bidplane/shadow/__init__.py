"""
A read-only look at a cluster, and what the market would have done with its pods.

`cluster` watches a cluster's API, `history` reads weeks from a Prometheus; both return a recording
(`core.shadow`). `market` plays it in the simulator, `report` puts the results together, and `text`
and `page` show them.
"""
