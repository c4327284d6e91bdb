"""Helpers that every workload uses: owners, conditions, pods and their templates."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api.kinds import POD, Kind, Object
from bidplane.api.objects import (
    condition_of,
    controller_of,
    is_deleted,
    metadata_of,
    phase_of,
    status_of,
)
from bidplane.api.times import parse_rfc3339
from bidplane.core.workloads.plan import Operation, Patch
from bidplane.wire.selectors import Selector, label_selector

# No vowels and no 0, 1, 3, so that no hash reads as a word. Upstream uses the same alphabet.
_SAFE = "bcdfghjklmnpqrstvwxz2456789"


def short_hash(value: Any, collisions: int = 0) -> str:
    """Return ten letters that identify a template; the same for equal templates."""
    encoded = msgspec.json.encode([value, collisions], order="deterministic")
    number = int.from_bytes(hashlib.sha256(encoded).digest()[:6], "big")
    return "".join(_SAFE[(number // len(_SAFE) ** place) % len(_SAFE)] for place in range(10))


def without(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return a mapping without some keys."""
    return {key: value for key, value in mapping.items() if key not in keys}


# Owners.


def is_controlled_by(obj: Object, owner: Object) -> bool:
    """Return whether an object's controller is `owner`."""
    controller = controller_of(obj)
    return controller is not None and controller["uid"] == metadata_of(owner)["uid"]


def owner_reference(kind: Kind, owner: Object) -> dict[str, Any]:
    """Return an owner reference that makes `owner` the controller."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": metadata_of(owner)["name"],
        "uid": metadata_of(owner)["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def selector_of(owner: Object) -> Selector | None:
    """Return the owner's selector; None when it selects nothing, which an empty one does here."""
    selector = label_selector(owner["spec"].get("selector"))
    return selector or None


class Claimed(msgspec.Struct, frozen=True):
    """The objects that an owner controls, and the patches that adopt or release some."""

    owned: list[Object]
    operations: list[Operation]


def claim(
    owner_kind: Kind,
    owner: Object,
    kind: Kind,
    candidates: Iterable[Object],
    *,
    adoptable: bool = True,
) -> Claimed:
    """
    Return which of `candidates` the owner controls.

    A match without a controller is adopted; an object of ours that no longer matches is released.
    An owner that is being deleted does neither.
    """
    selector = selector_of(owner)
    owned: list[Object] = []
    operations: list[Operation] = []
    for obj in candidates:
        matches = selector is not None and selector.matches(obj)
        controller = controller_of(obj)
        if controller is not None:
            if controller["uid"] != metadata_of(owner)["uid"]:
                continue
            if matches or is_deleted(owner):
                owned.append(obj)
            elif not is_deleted(obj):
                other_owners = [
                    o for o in metadata_of(obj)["ownerReferences"] if o["uid"] != controller["uid"]
                ]
                operations.append(
                    Patch(kind, obj, {"metadata": {"ownerReferences": other_owners or None}})
                )
        elif matches and adoptable and not is_deleted(owner) and not is_deleted(obj):
            owners = [
                *(metadata_of(obj).get("ownerReferences") or ()),
                owner_reference(owner_kind, owner),
            ]
            operations.append(Patch(kind, obj, {"metadata": {"ownerReferences": owners}}))
            owned.append(obj)
    return Claimed(owned, operations)


# Pods.


def is_active(pod: Object) -> bool:
    """Return whether a pod has not ended and is not being deleted."""
    return phase_of(pod) not in ("Succeeded", "Failed") and not is_deleted(pod)


def is_ready(pod: Object) -> bool:
    ready = condition_of(pod, "Ready")
    return ready is not None and ready.get("status") == "True"


def available_in(pod: Object, min_ready_seconds: int, now: float) -> float | None:
    """Return the seconds until a ready pod counts as available: 0 if it does, None if not ready."""
    ready = condition_of(pod, "Ready")
    if ready is None or ready.get("status") != "True":
        return None
    since = ready.get("lastTransitionTime")
    if not min_ready_seconds:
        return 0.0
    if not since:
        return None
    return max(0.0, parse_rfc3339(since) + min_ready_seconds - now)


def pod_from(template: Mapping[str, Any], kind: Kind, owner: Object) -> dict[str, Any]:
    """Return a pod from a template, with its owner and without a name."""
    template_metadata = template.get("metadata") or {}
    metadata: dict[str, Any] = {"ownerReferences": [owner_reference(kind, owner)]}
    for field in ("labels", "annotations", "finalizers"):
        if template_metadata.get(field):
            metadata[field] = copy.deepcopy(template_metadata[field])
    metadata["namespace"] = metadata_of(owner)["namespace"]
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": metadata,
        "spec": copy.deepcopy(template.get("spec") or {}),
    }


def generate_name(name: str) -> str:
    """Return the prefix for generated names, as upstream does; the server truncates it to fit."""
    return f"{name}-"


# Status.


def with_condition(
    conditions: Sequence[Mapping[str, Any]], new: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """
    Return `conditions` with `new` in the place of its type's; it keeps its time if unchanged.

    The same status for the same reason is not updated, whatever the message: a refusal that names
    another pod each time would otherwise be written, and reconciled, for ever.
    """
    current = next((c for c in conditions if c["type"] == new["type"]), None)
    if current is not None and current.get("status") == new["status"]:
        new = {**new, "lastTransitionTime": current.get("lastTransitionTime")}
        if current.get("reason") == new.get("reason"):
            return list(conditions)
    return [*(c for c in conditions if c["type"] != new["type"]), new]


def status_patch(
    kind: Kind, obj: Object, status: Mapping[str, Any], *, zeros: Collection[str] = ()
) -> Patch | None:
    """
    Return the patch that makes the object's status `status`; None if it is already so.

    As in Go, empty fields are left out, and zero is empty unless it is named in `zeros`.
    """
    desired = {
        key: value
        for key, value in status.items()
        if value not in (None, "", [], {}) and (value != 0 or key in zeros)
    }
    current = status_of(obj)
    change = {key: value for key, value in desired.items() if current.get(key) != value}
    change.update({key: None for key in status if key in current and key not in desired})
    return Patch(kind, obj, {"status": change}, "status") if change else None
