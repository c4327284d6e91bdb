"""
Kubernetes as pure functions: schemas, protobuf, patches, selectors, tables, stream protocols. May
be used by everything above `api`; does no I/O.
"""
