"""The conditions on the objects that show leases: claimed, up, in use, or given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bidplane.api.lease import CLAIMED, IN_USE, UP, VOID
from bidplane.api.reading import GPULease
from bidplane.api.times import parse_or_zero
from bidplane.ledger.records import Lease, lease_id


class LeaseMarks(NamedTuple):
    """The conditions that others set on the object that shows a lease, or a block of one."""

    id: str  # the ledger's
    name: str  # the object's
    nodes: tuple[str, ...]
    claimed: bool
    deleted: bool
    up: bool
    void: bool  # what must be beside it is taken
    unused_since: int  # milliseconds; 0: a pod is on it, as far as is known


def lease_marks(lease: GPULease) -> LeaseMarks:
    true = {condition.type for condition in lease.conditions if condition.status == "True"}
    in_use, unused_from = lease.condition(IN_USE), 0
    if in_use is not None and in_use.status == "False":
        unused_from = 1000 * parse_or_zero(in_use.last_transition_time)
    return LeaseMarks(
        id=lease_of(lease),
        name=lease.name,
        nodes=tuple({device.node: None for device in lease.spec.devices}),
        claimed=CLAIMED in true,
        deleted=lease.is_deleted,
        up=UP in true,
        void=VOID in true,
        unused_since=unused_from,
    )


def leases_given_back(leases: Sequence[LeaseMarks]) -> set[str]:
    """The leases whose objects were all deleted; a gang has one for each of its blocks."""
    deleted = {lease.id for lease in leases if lease.deleted}
    return deleted and deleted - {lease.id for lease in leases if not lease.deleted}


def unused_since(leases: Sequence[LeaseMarks]) -> dict[str, int]:
    """By lease that no pod is on, since when; of a gang, since its last block fell out of use."""
    since: dict[str, int] = {}
    for lease in leases:
        if lease.unused_since:
            since[lease.id] = max(since.get(lease.id, 0), lease.unused_since)
    if since:
        for lease in leases:
            if not lease.unused_since:
                since.pop(lease.id, None)
    return since


def lease_name(lease: str) -> str:
    """The name of the object that shows a lease of the ledger, by its id."""
    return f"lease-{lease}"


def lease_names(lease: Lease) -> list[str]:
    """The names of the objects that show a lease: a gang has one for each of its blocks."""
    name = lease_name(lease.id)
    return [f"{name}-{n}" for n in range(len(lease.parts))] if lease.parts else [name]


def lease_of(lease: GPULease) -> str:
    """The ledger's id of the lease that an object shows, or shows a block of."""
    return lease_id(lease.spec.bid.uid)
