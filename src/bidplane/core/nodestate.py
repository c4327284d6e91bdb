"""
Whether a host's node can take a pod, and if not, why: in words that follow "which".

A pod of ours is put on its node by name, past every scheduler; so whoever sells a node's
devices must itself see what a scheduler would have seen. Pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object

GONE = "is gone"
NOT_READY = "is not ready"
CORDONED = "is cordoned"
GOING = "is being deleted"

# What pods of agents tolerate on the host. Their own tolerations stay in their planes: whom a
# node's owner keeps out is not the agent's to say. A taint named after the GPUs keeps out who
# needs none; the other is for nodes that are to run nothing else.
TOLERATED = (labels.GPU_RESOURCE, labels.DEDICATED_TAINT)
TOLERATIONS: list[dict[str, Any]] = [{"key": key, "operator": "Exists"} for key in TOLERATED]

_EFFECTS = ("NoSchedule", "NoExecute")
_CORDON_TAINT = "node.kubernetes.io/unschedulable"
_READY_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    trouble: str = ""  # why it takes no new pod: the node, "which is cordoned"
    down_since: int | None = None  # milliseconds: since when it is known not to be ready


def state_of(node: Object) -> NodeState:
    name: str = node["metadata"]["name"]
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), None)
    if ready is None or ready.get("status") != "True":
        return NodeState(name=name, trouble=NOT_READY, down_since=_since(ready))
    if node["metadata"].get("deletionTimestamp"):
        return NodeState(name=name, trouble=GOING)
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in _EFFECTS]
    keys = {taint["key"] for taint in taints}
    if spec.get("unschedulable") or _CORDON_TAINT in keys:
        return NodeState(name=name, trouble=CORDONED)
    if not keys.isdisjoint(_READY_TAINTS):
        return NodeState(name=name, trouble=NOT_READY)  # it is again, and the taint goes next
    for taint in taints:
        if taint["key"] not in TOLERATED:
            return NodeState(name=name, trouble=f"has the taint {_words(taint)}")
    return NodeState(name=name)


def _words(taint: Object) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _since(condition: Object | None) -> int | None:
    """None where nobody says: a node that never was ready has not stopped being so."""
    try:
        stamp = datetime.fromisoformat(str((condition or {})["lastTransitionTime"]))
    except (KeyError, ValueError):
        return None
    return round(stamp.timestamp() * 1000) if stamp.tzinfo is not None else None
