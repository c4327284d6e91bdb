"""
Services that sleep: decisions. Pure: the caller passes the time.

`routes` finds the Endpoint of a request, `hostassignment` decides which Endpoint has a host name,
`lifecycle` plans the steps of waking and sleeping from what is in a plane, `traffic` knows which
requests count as use and which may wake, `holds` bounds the requests that wait, `joining` lets
several activators decide together, `warmpath` leads gateways past them, and `streams` has the
heartbeats and errors of event streams. `scaling` has the replicas of what is awake, `wakeauth` the
tokens that wake, and `keda` translates KEDA's objects. The activator and the endpoint controller
act.
"""
