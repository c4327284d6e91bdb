"""
The most a plane may hold: objects, their bytes, disk, pods, CustomResourceDefinitions.

All planes share a process and a disk, so each has a limit on both by default. The owner sets
others in the Agent, or with `bidplane plane limit`; they are facts of the plane, in its file. The
host, which has the pods of all agents, has none. Existing objects stay, and deleting is always
possible.
"""

from __future__ import annotations

import msgspec

from bidplane.api.agent import DEFAULT_LIMITS, PlaneLimits
from bidplane.kube.client import Object
from bidplane.plane.call import SYSTEM, Call
from bidplane.plane.plane import Plane
from bidplane.plane.registry import CRDS
from bidplane.plane.storage.feed import Item
from bidplane.plane.storage.journal import Journal
from bidplane.plane.storage.store import OBJECT_LIMIT
from bidplane.wire import status

PODS = "pods"
_BY_COMMAND, _BY_AGENT = "limits", "agentLimits"  # facts
_POD_LIMIT = "podLimit"  # a fact of planes before 0.3.0
_NOUNS = {
    "objects": "objects",
    "bytes": "bytes of objects",
    "disk": "bytes on disk",
    "pods": "pods",
    "definitions": "CustomResourceDefinitions",
}


def read(journal: Journal) -> PlaneLimits:
    """Return a plane's limits: the Agent's, then those set by command, then the defaults."""
    limits = DEFAULT_LIMITS
    if text := journal.fact(_POD_LIMIT):
        limits = PlaneLimits(pods=int(text)).over(limits)
    for name in (_BY_COMMAND, _BY_AGENT):
        if text := journal.fact(name):
            limits = msgspec.json.decode(text, type=PlaneLimits).over(limits)
    return limits


def write(journal: Journal, limits: PlaneLimits, *, by_agent: bool) -> None:
    """Keep limits in a plane's file; an Agent's replace all of its earlier ones."""
    name = _BY_AGENT if by_agent else _BY_COMMAND
    text = journal.fact(name)
    if not by_agent and text:
        limits = limits.over(msgspec.json.decode(text, type=PlaneLimits))
    new = msgspec.json.encode(limits).decode()
    if new != text:
        journal.remember(name, new)


def usage(plane: Plane) -> PlaneLimits:
    """Return how much of each of its limits a plane uses."""
    store = plane.store
    return PlaneLimits(
        objects=store.objects,
        bytes=store.bytes,
        disk=store.disk,
        pods=store.latest_count(PODS),
        definitions=store.count(CRDS),
    )


def check(plane: Plane, call: Call) -> None:
    """Raise 403 when one more object would be more than the plane may have, 507 for its disk."""
    limits, store = plane.limits, plane.store
    if limits is None:
        return
    if store.objects >= limits.objects:
        raise _exceeded(plane, call, "objects", store.objects, limits.objects)
    if store.bytes >= limits.bytes:
        raise _exceeded(plane, call, "bytes", store.bytes, limits.bytes)
    check_disk(plane, call)
    storage = call.resource.storage
    if storage == PODS and (count := store.latest_count(PODS)) >= limits.pods:
        raise _exceeded(plane, call, "pods", count, limits.pods)
    if storage == CRDS and (count := store.latest_count(CRDS)) >= limits.definitions:
        raise _exceeded(plane, call, "definitions", count, limits.definitions)


def check_growth(plane: Plane, call: Call, new: Object, old: Item) -> None:
    """Raise 403 when an agent's object that grows would be more than its plane may have."""
    limits, store = plane.limits, plane.store
    # The plane's own controllers go on, and so do deletions.
    if limits is None or call.user is SYSTEM or "deletionTimestamp" in new["metadata"]:
        return
    check_disk(plane, call)
    if store.bytes + OBJECT_LIMIT <= limits.bytes:
        return
    growth = len(msgspec.json.encode(new)) - len(old.raw)
    if growth > 0 and store.bytes + growth > limits.bytes:
        raise _exceeded(plane, call, "bytes", store.bytes, limits.bytes)


def check_disk(plane: Plane, call: Call) -> None:
    """Raise 507 when the plane's file has reached its limit on disk."""
    limits = plane.limits
    if limits is not None and plane.store.disk >= limits.disk:
        raise _exceeded(plane, call, "disk", plane.store.disk, limits.disk)


def _exceeded(
    plane: Plane, call: Call, limit_name: str, count: int, limit: int
) -> status.StatusError:
    message = (
        f"the plane {plane.name!r} has {count} {_NOUNS[limit_name]}, and its limit is {limit}:"
        " delete what it does not need, or ask the owner of the installation to raise"
        f" spec.limits.{limit_name} of the Agent, or to run"
        f" `bidplane plane limit {plane.name} --{limit_name} NUMBER`"
    )
    if limit_name == "disk":
        return status.refuse(507, "InsufficientStorage", message, about=call.about)
    return status.forbidden(call.about, message)
