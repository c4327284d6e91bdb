"""What others said on the objects that show leases: that they are claimed, up, in use, or left."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from bidplane.api.lease import CLAIMED, IN_USE, UP, VOID
from bidplane.kube.client import Object

LEASE_PREFIX = "lease-"


class LeaseMarks(NamedTuple):
    """What others said on the object that shows a lease, or a block of one."""

    id: str
    nodes: tuple[str, ...]
    claimed: bool
    deleted: bool
    up: bool
    void: bool  # what must be beside it is taken
    unused_since: int  # milliseconds; 0: a pod is on it, as far as is known


def lease_marks(lease: Object) -> LeaseMarks:
    said = _condition(lease, IN_USE)
    left = said.get("lastTransitionTime", "") if said.get("status") == "False" else ""
    devices = (lease.get("spec") or {}).get("devices") or ()
    return LeaseMarks(
        id=lease_of(lease),
        nodes=tuple({device["node"]: None for device in devices}),
        claimed=is_claimed(lease),
        deleted=is_deleted(lease),
        up=_condition(lease, UP).get("status") == "True",
        void=_condition(lease, VOID).get("status") == "True",
        unused_since=1000 * seconds_of(left),
    )


def left(leases: Iterable[LeaseMarks]) -> set[str]:
    """A gang has left when all of its blocks have."""
    leases = list(leases)
    staying = {lease.id for lease in leases if not lease.deleted}
    return {lease.id for lease in leases} - staying


def unused(leases: Iterable[LeaseMarks]) -> dict[str, int]:
    """Those no pod is on, since when; of a gang, since the last of its blocks was left."""
    leases = list(leases)
    used = {lease.id for lease in leases if not lease.unused_since}
    found: dict[str, int] = {}
    for lease in leases:
        if lease.id not in used:
            found[lease.id] = max(found.get(lease.id, 0), lease.unused_since)
    return found


def lease_name(lease: str) -> str:
    return LEASE_PREFIX + lease


def lease_of(obj: Object) -> str:
    """The ledger's id: of a gang, its blocks' objects are numbered after it."""
    name: str = obj["metadata"]["name"]
    return name.removeprefix(LEASE_PREFIX).partition("-")[0]


def is_deleted(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_claimed(lease: Object) -> bool:
    return _condition(lease, CLAIMED).get("status") == "True"


def _condition(lease: Object, type_: str) -> Object:
    """{} if nobody has said it."""
    conditions = (lease.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == type_), {})


def seconds_of(stamp: str) -> int:
    try:
        return int(datetime.fromisoformat(stamp).timestamp())
    except ValueError:
        return 0
