"""
Nodes whose heartbeat stops: their conditions and taints, and the eviction of their pods.

As Kubernetes' own controller does it: after forty seconds without a renewed Lease a node's
conditions become Unknown and it is tainted. Pods leave it when their toleration of that ends, five
minutes later unless they say otherwise. A node without a Lease is not ours.

Pure: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bidplane.api.kinds import Object
from bidplane.api.times import parse_rfc3339

GRACE_SECONDS = 40.0
TOLERATED_SECONDS = 300.0
UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"
_OURS = (UNREACHABLE, NOT_READY)
_KUBELETS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


class NodeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions and taints to set on a node; None where they need no change."""

    conditions: list[dict[str, str]] | None = None
    taints: list[dict[str, str]] | None = None
    look_again: float  # the time of the next check


def judge(node: Object, lease: Object, *, now: float, stamp: str) -> NodeVerdict:
    """Return the changes to a node from its heartbeat Lease; `stamp` is `now` in API format."""
    renewed = _seconds((lease.get("spec") or {}).get("renewTime"))
    unreachable = now - renewed > GRACE_SECONDS
    conditions = (node.get("status") or {}).get("conditions") or ()
    changed = [_unknown(condition, stamp) for condition in conditions] if unreachable else None
    if changed == list(conditions):
        changed = None
    ready = "Unknown" if unreachable else _status_of(conditions, "Ready")
    taints = _taints(node, ready, stamp)
    current_taints = (node.get("spec") or {}).get("taints") or []
    return NodeVerdict(
        conditions=changed,
        taints=None if _keys(taints) == _keys(current_taints) else taints,
        look_again=now + GRACE_SECONDS / 4 if unreachable else renewed + GRACE_SECONDS + 1.0,
    )


def _unknown(condition: Object, stamp: str) -> dict[str, str]:
    """Return a kubelet's condition with status Unknown; any other condition as it is."""
    if condition["type"] not in _KUBELETS or condition["status"] == "Unknown":
        return dict(condition)
    return {
        **condition,
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": stamp,
    }


def _taints(node: Object, ready: str, stamp: str) -> list[dict[str, str]]:
    """Return the taints a node should have for its readiness, with all that are not ours."""
    current = (node.get("spec") or {}).get("taints") or ()
    taints = [dict(taint) for taint in current if taint["key"] not in _OURS]
    if ready == "True":
        return taints
    key = UNREACHABLE if ready == "Unknown" else NOT_READY
    since = {(t["key"], t["effect"]): t.get("timeAdded") for t in current}
    for effect in ("NoSchedule", "NoExecute"):
        taint = {"key": key, "effect": effect}
        if effect == "NoExecute":
            taint["timeAdded"] = since.get((key, effect)) or stamp
        taints.append(taint)
    return taints


def _keys(taints: Sequence[Object]) -> set[tuple[str, str]]:
    return {(taint["key"], taint["effect"]) for taint in taints}


def leaves_at(pod: Object, node: Object) -> float | None:
    """Return when a pod must leave a node by our NoExecute taints; None if never."""
    times = []
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint["key"] in _OURS and taint["effect"] == "NoExecute":
            tolerated = _tolerated_seconds(pod, taint)
            if tolerated is not None:
                times.append(_seconds(taint.get("timeAdded")) + tolerated)
    return min(times, default=None)


def _tolerated_seconds(pod: Object, taint: Object) -> float | None:
    """
    Return how many seconds a pod tolerates a taint; None if for ever.

    A pod without a matching toleration gets Kubernetes' default.
    """
    durations: list[float | None] = []
    for toleration in pod["spec"].get("tolerations") or ():
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        if toleration.get("key") not in (None, "", taint["key"]):
            continue
        if toleration.get("key") in (None, "") and toleration.get("operator") != "Exists":
            continue
        seconds = toleration.get("tolerationSeconds")
        durations.append(None if seconds is None else max(float(seconds), 0.0))
    if not durations:
        return TOLERATED_SECONDS
    limited = [seconds for seconds in durations if seconds is not None]
    return min(limited) if limited else None


def _status_of(conditions: Sequence[Object], type_: str) -> str:
    return next((str(c["status"]) for c in conditions if c["type"] == type_), "Unknown")


def _seconds(text: str | None) -> float:
    return parse_rfc3339(text) if text else 0.0
