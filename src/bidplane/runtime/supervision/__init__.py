"""
Supervision of an installation's processes: heartbeats, restarts, health checks, and their state in
a file.
"""
