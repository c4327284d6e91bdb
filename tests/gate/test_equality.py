"""The gate's equality: a person's write and the pilot's Proposal get the same verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.kinds import NODE

from .conftest import CORE, MERGE, OURS, GateSite, Story, add_node

Host = Callable[[Story], None]
ALLOW = {"name": "all", "when": "true", "ruling": "Allow"}
ODD = {"name": "odd", "when": "target.labels['x'] == 'y'", "ruling": "Deny"}
POLICIES: dict[str, dict[str, Any]] = {
    "allow": {"rules": [ALLOW]},
    "deny": {"rules": [{**ALLOW, "ruling": "Deny"}]},
    "approve": {"rules": [{**ALLOW, "ruling": "RequireApproval"}]},
    "none": {"rules": []},
    "error": {"rules": [ALLOW, ODD]},
    "limit": {"rules": [ALLOW], "limits": [{"name": "l", "devices": 0, "agents": 0, "pods": 0}]},
    "frozen": {"rules": [ALLOW], "freezes": [{"name": "f", "when": "time.unix > 0"}]},
    "protected": {"rules": [ALLOW], "protections": [{"name": "p", "when": "action.name != ''"}]},
}


async def changes(site: GateSite) -> list[tuple[Action, str, str, Any]]:
    """Every action that a write can make, and the write."""
    pods = f"{CORE}/namespaces/default/pods"
    pod = (await site.call("GET", f"{pods}/pod-1")).body["metadata"]
    leases = f"{OURS}/namespaces/agent-a/gpuleases"
    lease = (await site.call("GET", f"{leases}/l")).body["metadata"]

    evict = Action(kind=ActionKind.EVICT_POD, namespace="default", name="pod-1", uid=pod["uid"])
    release = Action(kind=ActionKind.RELEASE_LEASE, namespace="agent-a", name="l", uid=lease["uid"])
    endpoints = f"{OURS}/namespaces/agent-a/endpoints"
    asked: list[tuple[Action, str, str, Any]] = []
    for kind, name, value, note, text in (
        (ActionKind.SCALE_ENDPOINT, "awake", "3", "bidplane.dev/endpoint-replicas", "3"),
        (ActionKind.PREWARM_ENDPOINT, "asleep", "sure", "bidplane.dev/endpoint-request", "wake 1"),
        (ActionKind.SLEEP_ENDPOINT, "awake", "", "bidplane.dev/endpoint-request", "sleep 1"),
        (ActionKind.RETRY_ROLLOUT, "broken", "", "bidplane.dev/endpoint-retry", "1"),
    ):
        metadata = (await site.call("GET", f"{endpoints}/{name}")).body["metadata"]
        action = Action(kind=kind, namespace="agent-a", name=name, uid=metadata["uid"], value=value)
        change = {"metadata": {"annotations": {note: text}}}
        asked.append((action, "PATCH", f"{endpoints}/{name}", change))
    settings = [
        (ActionKind.CORDON_NODE, "n1", "", f"{CORE}/nodes/n1", {"unschedulable": True}),
        (ActionKind.RETURN_NODE, "n2", "", f"{CORE}/nodes/n2", {"unschedulable": None}),
        (ActionKind.SET_FLOOR_PRICE, "h100", "0.50", f"{OURS}/pools/h100", {"floorPrice": "0.5"}),
        (ActionKind.SET_IDLE_WINDOW, "h100", "60", f"{OURS}/pools/h100", {"idleSeconds": 60}),
        (ActionKind.SET_REFILL, "a", "11.00", f"{OURS}/agents/a", {"refill": "11"}),
        (ActionKind.SET_PRIORITY, "a", "3", f"{OURS}/agents/a", {"priority": 3}),
    ]
    return [
        (evict, "DELETE", f"{pods}/pod-1", None),
        (release, "DELETE", f"{leases}/l", None),
        *asked,
        *(
            (Action(kind=kind, name=name, value=value), "PATCH", path, {"spec": spec})
            for kind, name, value, path, spec in settings
        ),
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_verdict_is_the_same(host: Host, policy: str) -> None:
    async def story(site: GateSite) -> None:
        await site.client.patch(NODE, "n2", {"spec": {"unschedulable": True}})
        assert (await site.set_policy(POLICIES[policy])).code < 300
        tried: set[ActionKind] = set()
        for number, (action, method, path, body) in enumerate(await changes(site)):
            tried.add(action.kind)
            # In shadow: judged and recorded, and what follows finds the fleet as it was.
            answer = await site.propose(action, name=f"shadow-{number}", shadow=True)
            assert answer.code == 201, answer
            await asyncio.sleep(1)
            by_pilot = (await site.proposal(f"shadow-{number}"))["status"]
            before = len(await site.audit())
            media = MERGE if body is not None else "application/json"
            written = await site.call(method, path, body, media=media)
            await asyncio.sleep(1)
            entries = (await site.audit())[before:]
            assert entries, (action, written)
            verdict = entries[0]
            assert verdict.reason == by_pilot["reason"], (action, verdict, by_pilot)
            assert verdict.effect.devices == by_pilot["effect"]["devices"]
            assert (written.code < 300) is (policy == "allow")
        assert tried == set(ActionKind) - {action.kind for action in PROPOSED} - {
            ActionKind.OFF_TOPIC
        }

    host(story)


# No write is one of these: kubectl cordons a node, and does not park it.
PROPOSED = (
    Action(kind=ActionKind.PARK_NODE, name="n3"),
    Action(kind=ActionKind.CONSOLIDATE_NODE, name="n1"),
    Action(kind=ActionKind.SNAPSHOT_PLANE, name="a"),
    Action(kind=ActionKind.PAGE_PERSON, name="on-call", value="look"),
    Action(kind=ActionKind.REPAIR_DRIFT, name="h100", value="Pool noticeSeconds 60"),
)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_verdict_on_a_persons_proposal_is_the_same(host: Host, policy: str) -> None:
    async def story(site: GateSite) -> None:
        await add_node(site, "n3")
        assert (await site.set_policy(POLICIES[policy])).code < 300
        for number, action in enumerate(PROPOSED):
            for by, name in (("pilot:pilot", f"pilot-{number}"), ("owner:ann", f"ann-{number}")):
                answer = await site.propose(action, by=by, name=name, shadow=True)
                assert answer.code == 201, answer
        await asyncio.sleep(1)
        for number, action in enumerate(PROPOSED):
            pilots = (await site.proposal(f"pilot-{number}"))["status"]
            persons = (await site.proposal(f"ann-{number}"))["status"]
            for field in ("phase", "reason", "policy", "effect"):
                assert pilots.get(field) == persons.get(field), (action, field)
            assert (pilots["phase"] == "Shadow") is (policy in ("allow", "approve")) or (
                policy == "limit" and not any(pilots["effect"].values())
            ), (action, pilots)

    host(story)
