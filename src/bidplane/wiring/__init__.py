"""
The only place where parts are joined: one file for each process. Holds no rules of its own.
"""
