"""
The processes of an installation.

`installation` is its folder, locked by `folderlock`; `supervision/` keeps processes running,
`identity/` has certificates and tokens; `logs`, `metrics`, `memory` and `interpreter` are settings
of any of our processes. May touch files, signals and processes; knows nothing of planes or the
market.
"""
