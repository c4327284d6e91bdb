"""
Claims for devices, allocated as kube-scheduler allocates them (`resource.k8s.io/v1`).

`search.allocate` is the readable form: one node, some claims, the first answer of an exhaustive
search in upstream's order. `fast.Fleet` gives the same answers over many nodes and claims.
`check.problems` says what is wrong with an allocation, whoever made it.
"""

from bidplane.core.claims.model import ClaimError, DeviceId, Taken, read_claim, read_slices
from bidplane.core.claims.search import Allocated, Refused, allocate

__all__ = [
    "Allocated",
    "ClaimError",
    "DeviceId",
    "Refused",
    "Taken",
    "allocate",
    "read_claim",
    "read_slices",
]
