"""
Kubernetes' built-in controllers as pure decisions: objects in, a plan out.

Each module is one kind and has one `plan`, of the operations in `plan`. `controllers/workloads`
carries it out; carrying out any part of it and planning again leads to the same end.
"""
