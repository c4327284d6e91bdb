"""A node without a heartbeat: what is said of it, and when its pods leave."""

import pytest

from bidplane.core.nodes.heartbeats import NOT_READY, UNREACHABLE, judge, leaves_at

BEGAN = 1_700_000_000.0
STAMP = "2023-11-14T22:13:20Z"


def node(ready="True", taints=()):
    conditions = [{"type": "Ready", "status": ready}, {"type": "Sandboxed", "status": "True"}]
    return {"spec": {"taints": list(taints)}, "status": {"conditions": conditions}}


def lease():
    return {"spec": {"renewTime": "2023-11-14T22:13:20.000000Z"}}


def keys(taints):
    return sorted((taint["key"], taint["effect"]) for taint in taints)


def test_a_node_that_renews_is_left_alone_and_looked_at_when_it_might_be_late():
    verdict = judge(node(), lease(), now=BEGAN + 39, stamp=STAMP)
    assert (verdict.conditions, verdict.taints) == (None, None)
    assert verdict.look_again == BEGAN + 41


def test_a_node_that_is_late_is_unknown_and_tainted():
    verdict = judge(node(), lease(), now=BEGAN + 41, stamp=STAMP)
    assert {c["type"]: c["status"] for c in verdict.conditions} == {
        "Ready": "Unknown",
        "Sandboxed": "True",
    }
    assert keys(verdict.taints) == [(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")]
    again = judge(node("Unknown", verdict.taints), lease(), now=BEGAN + 60, stamp="later")
    assert (again.conditions, again.taints) == (None, None)  # nothing is said twice


def test_a_node_that_is_back_loses_our_taints_and_keeps_others():
    own = {"key": "dedicated", "effect": "NoSchedule"}
    tainted = judge(node(), lease(), now=BEGAN + 41, stamp=STAMP).taints
    verdict = judge(node("True", [own, *tainted]), lease(), now=BEGAN + 1, stamp=STAMP)
    assert verdict.taints == [own]


def test_a_node_that_says_it_is_not_ready_is_tainted_as_such():
    verdict = judge(node("False"), lease(), now=BEGAN + 1, stamp=STAMP)
    assert keys(verdict.taints) == [(NOT_READY, "NoExecute"), (NOT_READY, "NoSchedule")]


@pytest.mark.parametrize(
    ("tolerations", "after"),
    [
        ([], 300),
        ([{"operator": "Exists"}], None),
        ([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute",
           "tolerationSeconds": 20}], 20),
        ([{"key": "else", "operator": "Exists"}], 300),
        ([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoSchedule"}], 300),
    ],
)  # fmt: skip
def test_pods_leave_when_they_no_longer_tolerate_it(tolerations, after):
    taints = judge(node(), lease(), now=BEGAN + 41, stamp=STAMP).taints
    leaves = leaves_at({"spec": {"tolerations": tolerations}}, node("Unknown", taints))
    assert leaves == (None if after is None else BEGAN + after)
