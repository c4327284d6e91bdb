"""
The objects of `bidplane serve`: decisions. `engines` knows the servers, their ports, flags and
paths; `manifests` makes the objects of a service. Pure.
"""
