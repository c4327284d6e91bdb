"""
The sandbox around a container: namespaces, user, limits, system calls, and the file system it
sees.
"""
