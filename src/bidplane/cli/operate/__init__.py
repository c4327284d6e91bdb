"""
Commands that run an installation and tell how it is.

`up` starts the supervisor and its processes (`process`), with their listeners (`services`), and
waits until they work (`readiness`); `status`, `metrics` and `doctor` only read.
"""
