"""
Pod networks: an address and, if possible, a network namespace per pod, isolation between agents,
and egress.
"""
