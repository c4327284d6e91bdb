"""The gate's equality: a person's write and the pilot's Proposal get the same verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.kinds import NODE

from .conftest import CORE, MERGE, OURS, GateSite, Story

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
        *(
            (Action(kind=kind, name=name, value=value), "PATCH", path, spec)
            for kind, name, value, path, spec in settings
        ),
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_verdict_is_the_same(host: Host, policy: str) -> None:
    async def story(site: GateSite) -> None:
        await site.client.patch(NODE, "n2", {"spec": {"unschedulable": True}})
        assert (await site.set_policy(POLICIES[policy])).code < 300
        tried: set[ActionKind] = set()
        for number, (action, method, path, spec) in enumerate(await changes(site)):
            tried.add(action.kind)
            # In shadow: judged and recorded, and what follows finds the fleet as it was.
            answer = await site.propose(action, name=f"shadow-{number}", shadow=True)
            assert answer.code == 201, answer
            await asyncio.sleep(1)
            by_pilot = (await site.proposal(f"shadow-{number}"))["status"]
            body = None if spec is None else {"spec": spec}
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
        # Nobody parks by a write: kubectl cordons.
        assert tried == set(ActionKind) - {ActionKind.PARK_NODE, ActionKind.OFF_TOPIC}

    host(story)
