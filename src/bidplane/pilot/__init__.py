"""
The pilot: observes the host, asks a mind, and writes Proposals. It does nothing else.

`loop` is one tick after another, `uses` its memory of services, `desired` a file of what should be,
`modelmind` asks a model, `webhook` tells people. The gate judges what it proposes, and the proposal
controller carries that out. Its credential can create Proposals and read the fleet.
"""
