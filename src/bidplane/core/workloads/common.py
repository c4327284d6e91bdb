"""Words every workload needs: owners, conditions, pods and their templates."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from bidplane.api.kinds import POD, Kind, Object
from bidplane.core.workloads.plan import Operation, Patch
from bidplane.wire.selectors import Selector, label_selector

# No vowels, no 0, 1, 3: nothing that reads as a word. Upstream names with the same.
_SAFE = "bcdfghjklmnpqrstvwxz2456789"


def stamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def meta(obj: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = obj["metadata"]
    return found


def labels_of(obj: Object) -> Mapping[str, str]:
    return meta(obj).get("labels") or {}


def annotations_of(obj: Object) -> Mapping[str, str]:
    return meta(obj).get("annotations") or {}


def status_of(obj: Object) -> Mapping[str, Any]:
    return obj.get("status") or {}


def is_going(obj: Object) -> bool:
    return bool(meta(obj).get("deletionTimestamp"))


def short_hash(value: Any, collisions: int = 0) -> str:
    """Up to ten safe letters that say what a template is; the same for the same."""
    words = msgspec.json.encode([value, collisions], order="deterministic")
    number = int.from_bytes(hashlib.sha256(words).digest()[:6], "big")
    return "".join(_SAFE[(number // len(_SAFE) ** place) % len(_SAFE)] for place in range(10))


def without(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}


# Owners.


def controller_of(obj: Object) -> Mapping[str, Any] | None:
    owners: Iterable[Mapping[str, Any]] = meta(obj).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def is_controlled_by(obj: Object, owner: Object) -> bool:
    found = controller_of(obj)
    return found is not None and found["uid"] == meta(owner)["uid"]


def owner_reference(kind: Kind, owner: Object) -> dict[str, Any]:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": meta(owner)["name"],
        "uid": meta(owner)["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def selector_of(owner: Object) -> Selector | None:
    """The owner's selector; None when it selects nothing, which an empty one does here."""
    selector = label_selector(owner["spec"].get("selector"))
    return selector or None


class Claimed(msgspec.Struct, frozen=True):
    mine: list[Object]
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
    Which of `candidates` are the owner's.

    What matches and has no controller is adopted; what is ours and matches no more is
    let go. Neither by an owner that is itself going.
    """
    selector = selector_of(owner)
    mine: list[Object] = []
    operations: list[Operation] = []
    for obj in candidates:
        matches = selector is not None and selector.matches(obj)
        controller = controller_of(obj)
        if controller is not None:
            if controller["uid"] != meta(owner)["uid"]:
                continue
            if matches or is_going(owner):
                mine.append(obj)
            elif not is_going(obj):
                left = [o for o in meta(obj)["ownerReferences"] if o["uid"] != controller["uid"]]
                operations.append(Patch(kind, obj, {"metadata": {"ownerReferences": left or None}}))
        elif matches and adoptable and not is_going(owner) and not is_going(obj):
            owners = [*(meta(obj).get("ownerReferences") or ()), owner_reference(owner_kind, owner)]
            operations.append(Patch(kind, obj, {"metadata": {"ownerReferences": owners}}))
            mine.append(obj)
    return Claimed(mine, operations)


# Pods.


def phase_of(pod: Object) -> str:
    phase: str = status_of(pod).get("phase", "")
    return phase


def is_active(pod: Object) -> bool:
    return phase_of(pod) not in ("Succeeded", "Failed") and not is_going(pod)


def condition(obj: Object, type: str) -> Mapping[str, Any] | None:
    found: Iterable[Mapping[str, Any]] = status_of(obj).get("conditions") or ()
    return next((c for c in found if c["type"] == type), None)


def is_ready(pod: Object) -> bool:
    ready = condition(pod, "Ready")
    return ready is not None and ready.get("status") == "True"


def available_in(pod: Object, min_ready_seconds: int, now: float) -> float | None:
    """Seconds until a ready pod counts as available: 0 now, None while it is not ready."""
    ready = condition(pod, "Ready")
    if ready is None or ready.get("status") != "True":
        return None
    since = ready.get("lastTransitionTime")
    if not min_ready_seconds:
        return 0.0
    if not since:
        return None
    return max(0.0, seconds(since) + min_ready_seconds - now)


def pod_from(template: Mapping[str, Any], kind: Kind, owner: Object) -> dict[str, Any]:
    """A pod as its template says, owned; the caller names it."""
    given = template.get("metadata") or {}
    metadata: dict[str, Any] = {"ownerReferences": [owner_reference(kind, owner)]}
    for field in ("labels", "annotations", "finalizers"):
        if given.get(field):
            metadata[field] = copy.deepcopy(given[field])
    metadata["namespace"] = meta(owner)["namespace"]
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": metadata,
        "spec": copy.deepcopy(template.get("spec") or {}),
    }


def generate_name(name: str) -> str:
    """Upstream's prefix: a server cuts it to leave room for what it adds."""
    return f"{name}-"


# Status.


def with_condition(
    conditions: Sequence[Mapping[str, Any]], new: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """
    `conditions` with `new` in the place of its type's; the time of no change is kept.

    The same status for the same reason is no news, whatever the words: a refusal that
    names another pod each time would be written, and looked at, for ever.
    """
    known = next((c for c in conditions if c["type"] == new["type"]), None)
    if known is not None and known.get("status") == new["status"]:
        new = {**new, "lastTransitionTime": known.get("lastTransitionTime")}
        if known.get("reason") == new.get("reason"):
            return list(conditions)
    return [*(c for c in conditions if c["type"] != new["type"]), new]


def status_patch(
    kind: Kind, obj: Object, status: Mapping[str, Any], *, zeros: Collection[str] = ()
) -> Patch | None:
    """
    What makes the object's status `status`; None when it is so already.

    As in Go, what is empty is left out, and zero is empty unless it is named in `zeros`.
    """
    wanted = {
        key: value
        for key, value in status.items()
        if value not in (None, "", [], {}) and (value != 0 or key in zeros)
    }
    known = status_of(obj)
    change = {key: value for key, value in wanted.items() if known.get(key) != value}
    change.update({key: None for key in status if key in known and key not in wanted})
    return Patch(kind, obj, {"status": change}, "status") if change else None
