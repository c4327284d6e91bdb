"""The conditions on the objects that show leases: claimed, up, in use, or given back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bidplane.api.lease import CLAIMED, IN_USE, UP, VOID
from bidplane.api.objects import condition_of, is_deleted, is_true
from bidplane.api.times import parse_rfc3339
from bidplane.kube.client import Object

LEASE_PREFIX = "lease-"


class LeaseMarks(NamedTuple):
    """The conditions that others set on the object that shows a lease, or a block of one."""

    id: str
    nodes: tuple[str, ...]
    claimed: bool
    deleted: bool
    up: bool
    void: bool  # what must be beside it is taken
    unused_since: int  # milliseconds; 0: a pod is on it, as far as is known


def lease_marks(lease: Object) -> LeaseMarks:
    in_use = _condition(lease, IN_USE)
    unused_from = in_use.get("lastTransitionTime", "") if in_use.get("status") == "False" else ""
    devices = (lease.get("spec") or {}).get("devices") or ()
    return LeaseMarks(
        id=lease_of(lease),
        nodes=tuple({device["node"]: None for device in devices}),
        claimed=is_claimed(lease),
        deleted=is_deleted(lease),
        up=_condition(lease, UP).get("status") == "True",
        void=_condition(lease, VOID).get("status") == "True",
        unused_since=1000 * seconds_of(unused_from),
    )


def leases_given_back(leases: Iterable[LeaseMarks]) -> set[str]:
    """The leases whose objects were all deleted; a gang has one for each of its blocks."""
    leases = list(leases)
    staying = {lease.id for lease in leases if not lease.deleted}
    return {lease.id for lease in leases} - staying


def unused_since(leases: Iterable[LeaseMarks]) -> dict[str, int]:
    """By lease that no pod is on, since when; of a gang, since its last block fell out of use."""
    leases = list(leases)
    used = {lease.id for lease in leases if not lease.unused_since}
    since: dict[str, int] = {}
    for lease in leases:
        if lease.id not in used:
            since[lease.id] = max(since.get(lease.id, 0), lease.unused_since)
    return since


def lease_name(lease: str) -> str:
    return LEASE_PREFIX + lease


def lease_of(obj: Object) -> str:
    """
    The ledger's id of the lease that an object shows; the objects of a gang's blocks are numbered
    after it.
    """
    name: str = obj["metadata"]["name"]
    return name.removeprefix(LEASE_PREFIX).partition("-")[0]


def is_claimed(lease: Object) -> bool:
    return is_true(lease, CLAIMED)


def _condition(lease: Object, type_: str) -> Object:
    """The condition of that type; {} if nobody has set it."""
    return condition_of(lease, type_) or {}


def seconds_of(stamp: str) -> int:
    try:
        return int(parse_rfc3339(stamp))
    except ValueError:
        return 0


def sequence_of(lease: Object) -> int:
    """The ledger's commit that the object shows; 0 if it has no status yet."""
    return int((lease.get("status") or {}).get("sequence") or 0)
