"""
One round as the exchange runs it: its input from bids, devices and leases, and what follows
from its result. May read the ledger and the snapshot; writes nothing by itself.
"""
