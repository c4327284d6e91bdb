"""The actions in a write: what the gate sees of what kubectl sends."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.kinds import AGENT, ENDPOINT, GPU_LEASE, NODE, POD, POOL, Kind
from bidplane.core.gate.changes import content_of


def obj(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x", "uid": "u", **metadata}, "spec": spec}


@pytest.mark.parametrize(
    ("kind", "old", "new", "actions"),
    [
        (NODE, {}, {"unschedulable": True}, [(ActionKind.CORDON_NODE, "")]),
        (NODE, {"unschedulable": True}, {}, [(ActionKind.RETURN_NODE, "")]),
        (NODE, {"unschedulable": False}, {}, []),
        (POOL, {"floorPrice": "2"}, {"floorPrice": "3"}, [(ActionKind.SET_FLOOR_PRICE, "3.00")]),
        (POOL, {"floorPrice": "0.2"}, {"floorPrice": "0.20"}, []),
        (POOL, {"floorPrice": "0.2"}, {}, [(ActionKind.SET_FLOOR_PRICE, "0.10")]),
        (POOL, {"idleSeconds": 300}, {"idleSeconds": 0}, [(ActionKind.SET_IDLE_WINDOW, "0")]),
        (AGENT, {"refill": "1"}, {"refill": "2"}, [(ActionKind.SET_REFILL, "2.00")]),
        (
            AGENT,
            {"refill": "1", "priority": 1},
            {"refill": "2", "priority": 7},
            [(ActionKind.SET_REFILL, "2.00"), (ActionKind.SET_PRIORITY, "7")],
        ),
    ],
)  # fmt: skip
def test_settings(
    kind: Kind, old: dict[str, Any], new: dict[str, Any], actions: list[tuple[ActionKind, str]]
) -> None:
    content = content_of(kind, "UPDATE", obj(new), obj(old))
    assert [(action.kind, action.value) for action in content.actions] == actions
    assert not content.other


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (AGENT, obj({}), obj({"trusted": True})),
        (AGENT, obj({"refill": "1"}), obj({"refill": "2", "owner": "me"})),
        (NODE, obj({}), obj({"taints": [{"key": "a", "effect": "NoSchedule"}]})),
        (NODE, obj({}), obj({}, labels={"a": "b"})),
        (POOL, obj({}), obj({}, annotations={"a": "b"})),
        (AGENT, obj({}, finalizers=["a/b"]), obj({})),
        (POD, obj({}), obj({}, ownerReferences=[{"uid": "v"}])),
    ],
)
def test_what_no_action_covers_is_seen(
    kind: Kind, old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert content_of(kind, "UPDATE", new, old).other


def test_pinning_is_for_everybody_who_may_write() -> None:
    pinned = obj({}, annotations={labels.PINNED: "ann"})
    assert not content_of(NODE, "UPDATE", pinned, obj({})).other


@pytest.mark.parametrize(
    ("note", "text", "kind", "value"),
    [
        (labels.ENDPOINT_REQUEST, "wake 2026", ActionKind.PREWARM_ENDPOINT, "sure"),
        (labels.ENDPOINT_REQUEST, "sleep 2026", ActionKind.SLEEP_ENDPOINT, ""),
        (labels.ENDPOINT_REPLICAS, "3", ActionKind.SCALE_ENDPOINT, "3"),
        (labels.ENDPOINT_RETRY, "2026", ActionKind.RETRY_ROLLOUT, ""),
    ],
)
def test_an_endpoint_is_asked_by_annotations(
    note: str, text: str, kind: ActionKind, value: str
) -> None:
    asked, plain = obj({}, namespace="ns", annotations={note: text}), obj({}, namespace="ns")
    content = content_of(ENDPOINT, "UPDATE", asked, plain)
    assert content.actions == (Action(kind=kind, namespace="ns", name="x", uid="u", value=value),)
    assert not content.other
    assert content_of(ENDPOINT, "UPDATE", asked, asked).actions == ()
    assert content_of(ENDPOINT, "UPDATE", plain, asked).actions == (), "the answer asks for nothing"
    assert content_of(ENDPOINT, "UPDATE", obj({"replicas": 2}), obj({})).other


def test_deletions() -> None:
    for kind, asked in ((POD, ActionKind.EVICT_POD), (GPU_LEASE, ActionKind.RELEASE_LEASE)):
        old = obj({}, namespace="ns")
        (action,) = content_of(kind, "DELETE", None, old).actions
        assert action == Action(kind=asked, namespace="ns", name="x", uid="u")
        going = obj({}, namespace="ns", deletionTimestamp="2026-01-01T00:00:00Z")
        assert not content_of(kind, "DELETE", None, going).actions
    ended = {**obj({}, namespace="ns"), "status": {"phase": "Succeeded"}}
    assert not content_of(POD, "DELETE", None, ended).actions
    assert content_of(AGENT, "DELETE", None, obj({})).other
    assert content_of(AGENT, "CREATE", obj({}), None).other
