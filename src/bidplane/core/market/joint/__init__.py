"""
Asks for GPUs of several lots, all or none. Pure.

`asks` has their lots, `components` the lots that must be cleared together, `clearing` clears them
as one, and `capacity` says if their blocks fit. It builds on `market/clearing`.
"""
