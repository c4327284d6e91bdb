"""
Pod networks: an address per pod (`addresses`), a network namespace where possible (`iproute`),
isolation between agents, egress by NAT, and a relay to an API server on loopback. May touch links,
routes and rules of this machine.
"""
