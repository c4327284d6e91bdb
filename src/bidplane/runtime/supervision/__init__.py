"""
Supervision of an installation's processes.

`supervisor` starts and restarts them by their `heartbeat`s, and writes `statusfile`; `health` and
`probes` answer whether one works, `monitor` whether all do. `running` and `quarantine` find and
exclude work that stops a process. Knows processes by their names alone.
"""
