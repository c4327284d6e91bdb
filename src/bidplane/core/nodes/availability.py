"""
The state of a host's node: whether it can take a pod, and if not, why.

Pods of agents are put on their node by name, past every scheduler. So the exchange itself must
check, before it sells a node's devices, what a scheduler would have checked. Reasons are phrased to
follow "which". Pure.
"""

from __future__ import annotations

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.api.objects import is_deleted
from bidplane.api.times import parse_rfc3339

GONE = "is gone"
NOT_READY = "is not ready"
CORDONED = "is cordoned"
GOING = "is being deleted"

# The taints that pods of agents tolerate on the host. Their own tolerations stay in their planes,
# because the node's owner decides whom to keep out. A taint named after the GPUs keeps out pods
# that need none; the other marks nodes that run nothing else.
TOLERATED = (labels.GPU_RESOURCE, labels.DEDICATED_TAINT)
TOLERATIONS: list[dict[str, str]] = [{"key": key, "operator": "Exists"} for key in TOLERATED]

_EFFECTS = ("NoSchedule", "NoExecute")
_CORDON_TAINT = "node.kubernetes.io/unschedulable"
_READY_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """The ability of a node to take new pods, and the time since when it is not ready."""

    name: str
    trouble: str = ""  # why it takes no new pod: the node, "which is cordoned"
    down_since: int | None = None  # milliseconds: since when it is known not to be ready


def state_of(node: Object) -> NodeState:
    """Return the state of a host's node."""
    name: str = node["metadata"]["name"]
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), None)
    if ready is None or ready.get("status") != "True":
        return NodeState(name=name, trouble=NOT_READY, down_since=_transition_time(ready))
    if is_deleted(node):
        return NodeState(name=name, trouble=GOING)
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in _EFFECTS]
    keys = {taint["key"] for taint in taints}
    if spec.get("unschedulable") or _CORDON_TAINT in keys:
        return NodeState(name=name, trouble=CORDONED)
    if not keys.isdisjoint(_READY_TAINTS):
        return NodeState(
            name=name, trouble=NOT_READY
        )  # it is ready again; the taint is removed next
    for taint in taints:
        if taint["key"] not in TOLERATED:
            return NodeState(name=name, trouble=f"has the taint {_taint_text(taint)}")
    return NodeState(name=name)


def _taint_text(taint: Object) -> str:
    """Return a taint as kubectl writes it: key=value:effect."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _transition_time(condition: Object | None) -> int | None:
    """
    Return when a condition changed, in milliseconds; None if unknown, as of a node never ready.
    """
    try:
        return round(1000 * parse_rfc3339(str((condition or {})["lastTransitionTime"])))
    except (KeyError, ValueError):
        return None
