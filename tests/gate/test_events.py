"""People hear of Proposals by Events: one for each phase that they must know of, ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.kinds import EVENT, NODE, PROPOSAL, Kind
from bidplane.errors import api_error
from bidplane.sim.loop import VirtualClock, run

from .conftest import GateSite, Story, cordon, play

LOWER = Action(kind=ActionKind.SET_FLOOR_PRICE, name="h100", value="0.10")


async def events(site: GateSite, name: str) -> list[tuple[str, str, int]]:
    """The Events about a Proposal, by reason, with their type and count."""
    uid = (await site.proposal(name))["metadata"]["uid"]
    items = (await site.client.list(EVENT)).items
    own: list[Any] = [event for event in items if event["involvedObject"].get("uid") == uid]
    assert {event["involvedObject"]["name"] for event in own} <= {name}
    assert {event["involvedObject"]["kind"] for event in own} <= {"Proposal"}
    return sorted((event["reason"], event["type"], event["count"]) for event in own)


def test_one_that_waits_and_is_applied(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        await site.propose(cordon())
        await asyncio.sleep(1)
        assert await events(site, "p") == [("Waiting", "Normal", 1)]
        digest = (await site.proposal("p"))["status"]["digest"]
        approved = await site.decide("p", "approve", by="operator:oli", digest=digest)
        assert approved.code == 200, approved
        await asyncio.sleep(120)  # it was measured, too
        assert (await site.proposal("p"))["status"]["measured"]
        assert await events(site, "p") == [("Applied", "Normal", 1), ("Waiting", "Normal", 1)]
        messages = [e["message"] for e in (await site.client.list(EVENT)).items]
        assert "CordonNode n1, proposed by pilot, was applied: CordonNode n1: done" in messages

    host(story)


def test_one_that_is_denied_rejected_or_expires(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        waits = {"name": "w", "when": "true", "ruling": "RequireApproval", "expireSeconds": 600}
        no_prices = {"name": "d", "when": "action.kind == 'SetFloorPrice'", "ruling": "Deny"}
        await site.set_policy({"rules": [{**waits, "approvers": ["owner"]}, no_prices]})
        await site.propose(LOWER, name="denied")
        for number, name in enumerate(("rejected", "expired"), 1):
            await site.propose(cordon(f"n{number}"), name=name)
        await asyncio.sleep(1)
        await site.decide("rejected", "reject", by="owner:ann", reason="no")
        await asyncio.sleep(700)
        waiting = ("Waiting", "Normal", 1)
        assert await events(site, "denied") == [("Denied", "Warning", 1)]
        assert await events(site, "rejected") == [("Rejected", "Normal", 1), waiting]
        assert await events(site, "expired") == [("Expired", "Warning", 1), waiting]

    host(story)


def test_the_first_of_two_approvals_is_no_new_phase(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        two = {"name": "two", "when": "true", "ruling": "RequireApproval", "approvals": 2}
        await site.set_policy({"rules": [{**two, "approvers": ["owner"]}]})
        await site.propose(cordon())
        await asyncio.sleep(1)
        for event in (await site.client.list(EVENT)).items:  # as an hour later
            await site.client.delete(EVENT, event["metadata"]["name"], "default")
        digest = (await site.proposal("p"))["status"]["digest"]
        await site.decide("p", "approve", by="owner:ann", digest=digest)
        await asyncio.sleep(1)
        assert (await site.proposal("p"))["status"]["approvals"]
        assert await events(site, "p") == []

    host(story)


def test_one_that_fails(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        await site.set_policy({"rules": [{"name": "all", "when": "true", "ruling": "Allow"}]})
        site.gate.host = _Refusing(site.client)  # type: ignore[assignment]
        await site.propose(cordon())
        await asyncio.sleep(1)
        assert (await site.proposal("p"))["status"]["phase"] == "Failed"
        assert await events(site, "p") == [("Failed", "Warning", 1)]

    host(story)


@pytest.mark.parametrize("lost", ["nothing", "status"])
def test_a_restart_tells_of_nothing_twice(tmp_path: Path, lost: str) -> None:
    """Also where the one before was killed between an Event and the status."""

    async def first(site: GateSite) -> None:
        await site.propose(cordon())
        await asyncio.sleep(1)
        if lost == "status":
            site.gate.host = _Silent(site.client)  # type: ignore[assignment]
            await site.client.patch(PROPOSAL, "p", {"status": None}, subresource="status")

    async def second(site: GateSite) -> None:
        await asyncio.sleep(60)
        assert (await site.proposal("p"))["status"]["phase"] == "Waiting"
        assert await events(site, "p") == [("Waiting", "Normal", 1)]

    async def both() -> None:
        clock = VirtualClock()
        await play(tmp_path, tmp_path / "ledger.db", first, clock=clock)
        await play(tmp_path, tmp_path / "ledger.db", second, furnished=False, clock=clock)

    run(both())


class _Silent:
    """A host that does not answer what the gate asks it any more."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        async def never(*args: Any, **options: Any) -> None:
            await asyncio.sleep(10**6)

        return never


class _Refusing:
    """A host that refuses every change of a node."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def patch(self, kind: Kind, name: str, *args: Any, **options: Any) -> Any:
        if kind == NODE:
            raise api_error(403, "Forbidden", "nobody may")
        return await self._client.patch(kind, name, *args, **options)
