"""
An agent's pod as the host runs it: translated names, references, and what it may reach there.
Pure.
"""
