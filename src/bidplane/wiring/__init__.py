"""
The only place where parts are joined: one file for each process, and `controllers`, the list of all
controllers. It may import everything below it; it holds no rules of its own, and whoever wants to
know what runs where reads it first.
"""
