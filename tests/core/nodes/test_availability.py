"""Whether a node can take a pod, and in which words it is said that it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.core.nodes import heartbeats
from bidplane.core.nodes.availability import state_of

SINCE = "2026-11-16T07:00:00Z"
MILLISECONDS = 1_794_812_400_000


def node(ready: str | None = "True", **spec: Any) -> dict[str, Any]:
    conditions = [] if ready is None else [{"type": "Ready", "status": ready}]
    for condition in conditions:
        condition["lastTransitionTime"] = SINCE
    return {"metadata": {"name": "n1"}, "spec": spec, "status": {"conditions": conditions}}


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> dict[str, str]:
    return {"key": key, "effect": effect, "value": value}


@pytest.mark.parametrize(
    ("seen", "trouble", "since"),
    [
        (node(), "", None),
        (node("False"), "is not ready", MILLISECONDS),
        (node("Unknown"), "is not ready", MILLISECONDS),
        (node(None), "is not ready", None),
        ({"metadata": {"name": "n1"}}, "is not ready", None),
        (node(unschedulable=True), "is cordoned", None),
        (node(taints=[taint("node.kubernetes.io/unschedulable")]), "is cordoned", None),
        (node("False", unschedulable=True), "is not ready", MILLISECONDS),
        (
            node(taints=[taint("team", value="vision")]),
            "has the taint team=vision:NoSchedule",
            None,
        ),
        (node(taints=[taint("team", "NoExecute")]), "has the taint team:NoExecute", None),
        (node(taints=[taint("team", "PreferNoSchedule")]), "", None),
        (node(taints=[taint("nvidia.com/gpu", value="present")]), "", None),
        (node(taints=[taint("bidplane.dev/dedicated", "NoExecute")]), "", None),
    ],
)
def test_what_keeps_pods_from_a_node(seen: Any, trouble: str, since: int | None) -> None:
    state = state_of(seen)
    assert (state.name, state.trouble, state.down_since) == ("n1", trouble, since)


def test_a_node_that_is_going_takes_no_more() -> None:
    going = node()
    going["metadata"]["deletionTimestamp"] = SINCE
    assert state_of(going).trouble == "is being deleted"


def test_a_node_that_is_given_up_by_our_own_controller_is_not_ready() -> None:
    """What `nodelife` writes of a node without a heartbeat is what is read here."""
    silent = {"spec": {"renewTime": "2026-11-16T06:59:00.000000Z"}}
    verdict = heartbeats.judge(node(), silent, now=MILLISECONDS / 1000, stamp=SINCE)
    lost = node(taints=verdict.taints)
    lost["status"] = {"conditions": verdict.conditions}
    assert state_of(lost).down_since == MILLISECONDS
    # It beats again, and its taints are not off yet: nothing is sold, and nothing was lost.
    lost["status"] = node()["status"]
    assert (state_of(lost).trouble, state_of(lost).down_since) == ("is not ready", None)
