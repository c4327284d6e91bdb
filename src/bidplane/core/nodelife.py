"""
Nodes that stop their heartbeat: what is said of them, and what becomes of their pods.

As Kubernetes' own controller does: after forty seconds without a renewed Lease a node's
conditions are Unknown and it is tainted; pods leave it when they no longer tolerate that,
five minutes later unless they say otherwise. A node that has no Lease is somebody else's.

Pure: the caller passes the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from bidplane.api.kinds import Object

GRACE_SECONDS = 40.0
TOLERATED_SECONDS = 300.0
UNREACHABLE = "node.kubernetes.io/unreachable"
NOT_READY = "node.kubernetes.io/not-ready"
_OURS = (UNREACHABLE, NOT_READY)
_KUBELETS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What should be true of a node; None where it is."""

    conditions: list[dict[str, Any]] | None = None
    taints: list[dict[str, Any]] | None = None
    look_again: float  # a time


def judge(node: Object, lease: Object, *, now: float, stamp: str) -> Verdict:
    """`stamp` is `now` as the API writes it."""
    renewed = _seconds((lease.get("spec") or {}).get("renewTime"))
    dead = now - renewed > GRACE_SECONDS
    conditions = (node.get("status") or {}).get("conditions") or ()
    changed = [_unknown(one, stamp) for one in conditions] if dead else None
    if changed == list(conditions):
        changed = None
    ready = "Unknown" if dead else _status_of(conditions, "Ready")
    taints = _taints(node, ready, stamp)
    known = (node.get("spec") or {}).get("taints") or []
    return Verdict(
        conditions=changed,
        taints=None if _keys(taints) == _keys(known) else taints,
        look_again=now + GRACE_SECONDS / 4 if dead else renewed + GRACE_SECONDS + 1.0,
    )


def _unknown(condition: Object, stamp: str) -> dict[str, Any]:
    if condition["type"] not in _KUBELETS or condition["status"] == "Unknown":
        return dict(condition)
    return {
        **condition,
        "status": "Unknown",
        "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status.",
        "lastTransitionTime": stamp,
    }


def _taints(node: Object, ready: str, stamp: str) -> list[dict[str, Any]]:
    known = (node.get("spec") or {}).get("taints") or ()
    kept = [dict(taint) for taint in known if taint["key"] not in _OURS]
    if ready == "True":
        return kept
    key = UNREACHABLE if ready == "Unknown" else NOT_READY
    since = {(t["key"], t["effect"]): t.get("timeAdded") for t in known}
    for effect in ("NoSchedule", "NoExecute"):
        taint = {"key": key, "effect": effect}
        if effect == "NoExecute":
            taint["timeAdded"] = since.get((key, effect)) or stamp
        kept.append(taint)
    return kept


def _keys(taints: Sequence[Object]) -> set[tuple[str, str]]:
    return {(taint["key"], taint["effect"]) for taint in taints}


def leaves_at(pod: Object, node: Object) -> float | None:
    """When a pod must leave a node by its NoExecute taints of ours; None: never."""
    times = []
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint["key"] in _OURS and taint["effect"] == "NoExecute":
            tolerated = _tolerated(pod, taint)
            if tolerated is not None:
                times.append(_seconds(taint.get("timeAdded")) + tolerated)
    return min(times, default=None)


def _tolerated(pod: Object, taint: Object) -> float | None:
    """For how long; None is for ever. Who says nothing gets Kubernetes' default."""
    found: list[float | None] = []
    for toleration in pod["spec"].get("tolerations") or ():
        if toleration.get("effect") not in (None, "", taint["effect"]):
            continue
        if toleration.get("key") not in (None, "", taint["key"]):
            continue
        if toleration.get("key") in (None, "") and toleration.get("operator") != "Exists":
            continue
        seconds = toleration.get("tolerationSeconds")
        found.append(None if seconds is None else max(float(seconds), 0.0))
    if not found:
        return TOLERATED_SECONDS
    limited = [seconds for seconds in found if seconds is not None]
    return min(limited) if limited else None


def _status_of(conditions: Sequence[Object], type_: str) -> str:
    return next((str(c["status"]) for c in conditions if c["type"] == type_), "Unknown")


def _seconds(text: str | None) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else 0.0
