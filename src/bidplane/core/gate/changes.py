"""
The actions in a write to the host: what a person changes with kubectl or a command.

`other` tells that the write changes more than its actions do. Only owners may do that: a role
gives its holder the listed actions, and not the other fields of the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.kinds import AGENT, ENDPOINT, GPU_LEASE, NODE, POD, POOL, Kind, Object
from bidplane.api.objects import (
    annotations_of,
    has_ended,
    is_deleted,
    labels_of,
    name_of,
    namespace_of,
    spec_of,
    uid_of,
)
from bidplane.core.gate.actions import SURE, normal_value

CREATE, UPDATE, DELETE = "CREATE", "UPDATE", "DELETE"

# By kind, the fields of its spec that are listed actions.
_SETTINGS: dict[Kind, dict[str, ActionKind]] = {
    POOL: {
        "floorPrice": ActionKind.SET_FLOOR_PRICE,
        "idleSeconds": ActionKind.SET_IDLE_WINDOW,
    },
    AGENT: {"refill": ActionKind.SET_REFILL, "priority": ActionKind.SET_PRIORITY},
}
_UNSET: dict[ActionKind, Any] = {
    ActionKind.SET_FLOOR_PRICE: "0.10",
    ActionKind.SET_IDLE_WINDOW: 300,
    ActionKind.SET_REFILL: "0",
    ActionKind.SET_PRIORITY: 1,
}
GATED_KINDS = frozenset((POD, GPU_LEASE, NODE, POOL, AGENT, ENDPOINT))

# Annotations of the host's copy of an Endpoint, by which people ask for something.
_REQUESTS = (labels.ENDPOINT_REQUEST, labels.ENDPOINT_REPLICAS, labels.ENDPOINT_RETRY)


class WriteContent(msgspec.Struct, frozen=True):
    """The actions in one write, and whether it changes anything else."""

    actions: tuple[Action, ...] = ()
    other: bool = False


NO_ACTION = WriteContent()


def content_of(kind: Kind, operation: str, new: Object | None, old: Object | None) -> WriteContent:
    """Return the actions in a write of an object's spec and metadata, or in its deletion."""
    if operation == DELETE and old is not None:
        return _deletion(kind, old)
    if operation == CREATE:
        return WriteContent(other=True)
    if operation != UPDATE or new is None or old is None:
        return NO_ACTION
    if kind == NODE:
        return _update(new, old, {"unschedulable"}, _cordons(new, old))
    if kind == ENDPOINT:
        return _update(new, old, set(), _requests(new, old))
    if kind in _SETTINGS:
        fields = _SETTINGS[kind]
        return _update(new, old, set(fields), _settings(new, old, fields))
    return _update(new, old, set(), ())


def eviction_of(pod: Object) -> WriteContent:
    """Return the action in the eviction or deletion of a pod: none of one that has ended."""
    if has_ended(pod) or is_deleted(pod):
        return NO_ACTION
    return WriteContent((_of_object(ActionKind.EVICT_POD, pod),))


def _deletion(kind: Kind, old: Object) -> WriteContent:
    if kind == POD:
        return eviction_of(old)
    if kind == GPU_LEASE:
        if is_deleted(old):
            return NO_ACTION
        return WriteContent((_of_object(ActionKind.RELEASE_LEASE, old),))
    return WriteContent(other=True)


def _of_object(kind: ActionKind, obj: Object) -> Action:
    return Action(kind=kind, namespace=namespace_of(obj), name=name_of(obj), uid=uid_of(obj))


def _cordons(new: Object, old: Object) -> tuple[Action, ...]:
    before = bool(spec_of(old).get("unschedulable"))
    after = bool(spec_of(new).get("unschedulable"))
    if before == after:
        return ()
    kind = ActionKind.CORDON_NODE if after else ActionKind.RETURN_NODE
    return (Action(kind=kind, name=name_of(new)),)


def _settings(new: Object, old: Object, fields: Mapping[str, ActionKind]) -> tuple[Action, ...]:
    actions: list[Action] = []
    for field, kind in fields.items():
        before, after = (str(spec_of(obj).get(field, _UNSET[kind])) for obj in (old, new))
        if before == after:
            continue
        try:
            value = normal_value(kind, after)
            if value == normal_value(kind, before):
                continue  # another spelling of the same
        except ValueError:
            value = after  # what it was cannot be read, or what it is to be: the gate says so
        actions.append(Action(kind=kind, name=name_of(new), value=value))
    return tuple(actions)


def _requests(new: Object, old: Object) -> tuple[Action, ...]:
    """Return what the changed annotations of an Endpoint ask for."""
    before, after = annotations_of(old), annotations_of(new)
    actions: list[Action] = []
    for mark in _REQUESTS:
        text = after.get(mark, "")
        if not text or text == before.get(mark, ""):
            continue
        kind, value = ActionKind.RETRY_ROLLOUT, ""
        if mark == labels.ENDPOINT_REPLICAS:
            kind, value = ActionKind.SCALE_ENDPOINT, text
        elif mark == labels.ENDPOINT_REQUEST and text.partition(" ")[0] == "sleep":
            kind = ActionKind.SLEEP_ENDPOINT
        elif mark == labels.ENDPOINT_REQUEST:
            kind, value = ActionKind.PREWARM_ENDPOINT, SURE
        actions.append(msgspec.structs.replace(_of_object(kind, new), value=value))
    return tuple(actions)


def _update(
    new: Object, old: Object, listed: set[str], actions: tuple[Action, ...]
) -> WriteContent:
    def others(obj: Object) -> tuple[Any, ...]:
        spec = {key: value for key, value in spec_of(obj).items() if key not in listed}
        return spec, labels_of(obj), _unpinned(annotations_of(obj))

    meta: tuple[Callable[[Object], Any], ...] = (
        lambda obj: obj["metadata"].get("finalizers") or [],
        lambda obj: obj["metadata"].get("ownerReferences") or [],
    )
    differs = others(new) != others(old) or any(read(new) != read(old) for read in meta)
    return WriteContent(actions, other=differs)


def _unpinned(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that only owners change: everybody with the right may pin."""
    return {
        key: value for key, value in annotations.items() if key not in (labels.PINNED, *_REQUESTS)
    }
