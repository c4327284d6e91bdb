"""
Controllers: a folder for each noun that one looks after, and one writer for each object.

They read caches (`machinery`), let `core` decide, and write through the Kubernetes API. None
imports another, and `wiring/controllers.py` lists them. Two files are shared: `conditions` writes
the conditions of a GPULease, `podwrites` has the writes to pods that several controllers need.
"""
