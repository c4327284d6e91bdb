"""
One container: its launch, the shim that supervises it, and its adoption after a restart.
"""
