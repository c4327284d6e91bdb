"""
Leases: the states of one, the Node that shows it, notice, idleness, and pods that come back
after it. Pure.
"""
