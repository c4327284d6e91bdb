"""
The pilot: observes the host, asks a mind, and writes Proposals. It does nothing else.

`loop` is one tick after another; the gate judges what it proposes, and the proposal controller
carries that out. Its credential can create Proposals and read the fleet.
"""
