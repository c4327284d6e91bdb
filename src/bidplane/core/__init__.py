"""
Decisions. Everything here is pure: no clock, no dice, no I/O; a function gets the time as an
argument and returns a plan, which the layers above carry out.
"""
