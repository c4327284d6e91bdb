"""
Claims for devices, allocated as kube-scheduler allocates them (`resource.k8s.io/v1`).

`search.allocate` is the readable form: one node, several claims, the first answer of an exhaustive
search in upstream's order. `fast.Fleet` gives the same answers over many nodes and claims.
`check.problems` verifies an allocation, whoever made it.
"""

from bidplane.core.devices.claims.model import (
    AllocatedDevices,
    ClaimError,
    DeviceId,
    read_claim,
    read_slices,
)
from bidplane.core.devices.claims.search import Allocated, NotAllocated, allocate

__all__ = [
    "Allocated",
    "AllocatedDevices",
    "ClaimError",
    "DeviceId",
    "NotAllocated",
    "allocate",
    "read_claim",
    "read_slices",
]
