"""
Kills between any two writes of a change, in either database.

A kill is a write that never happens, and all after it: what was written before is what a new
process finds. Nothing is applied twice, nothing without a verdict, and the chain verifies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.kinds import POOL, Kind, Object
from bidplane.core.gate.lifecycle import ProposalEvent
from bidplane.errors import Unavailable
from bidplane.ledger.audit.check import verify_audit
from bidplane.ledger.audit.trail import AuditEntry, AuditTrail
from bidplane.ledger.stores import open_store
from bidplane.sim.loop import run
from effort import effort

from .conftest import CORE, OURS, GateSite, Story, play

ALLOW_ALL = {"rules": [{"name": "all", "when": "true", "ruling": "Allow"}]}
RAISE = Action(kind=ActionKind.SET_FLOOR_PRICE, name="h100", value="0.50")
LIFE = (ProposalEvent.ALLOWED, ProposalEvent.BEGUN, ProposalEvent.APPLIED)
EVERY_POINT = 13  # more than there are writes


class Killed(Unavailable):
    """The process is gone: to whoever waits for it, it does not answer."""


class Killer:
    """Counts the writes of a gate, and lets none happen from one of them on."""

    def __init__(self, site: GateSite, point: int) -> None:
        self.writes, self.point = 0, point
        host, killer = site.gate.host, self

        class Host:
            def __getattr__(self, name: str) -> Any:
                return getattr(host, name)

            async def patch(
                self, kind: Kind, name: str, change: Object, *args: Any, **kw: Any
            ) -> Any:
                killer.step()
                answer = await host.patch(kind, name, change, *args, **kw)
                killer.step()  # it was written, and nobody heard of it
                return answer

            async def create(self, kind: Kind, obj: Object, *args: Any, **kw: Any) -> Any:
                killer.step()
                answer = await host.create(kind, obj, *args, **kw)
                killer.step()
                return answer

            async def delete(self, kind: Kind, name: str, *args: Any, **kw: Any) -> None:
                killer.step()
                await host.delete(kind, name, *args, **kw)
                killer.step()

        site.gate.host = Host()  # type: ignore[assignment]
        record = site.gate.record

        async def counted(use: Any) -> Any:
            def with_kills(trail: AuditTrail) -> Any:
                append = trail.append

                def step_and_append(*entries: AuditEntry, at: float) -> Any:
                    killer.step()
                    return append(*entries, at=at)

                trail.append = step_and_append  # type: ignore[method-assign]
                try:
                    return use(trail)
                finally:
                    trail.append = append  # type: ignore[method-assign]

            return await record(with_kills)

        site.gate.record = counted  # type: ignore[method-assign, assignment]

    def step(self) -> None:
        self.writes += 1
        if self.writes > self.point:
            raise Killed("killed")


def check_chain(location: Path | str) -> list[AuditEntry]:
    store = open_store(location, read_only=True)
    report = verify_audit(store)
    entries = AuditTrail(store).entries()
    store.close()
    assert report.is_sound, report.problem
    assert report.unfinished == 0
    return entries


@pytest.fixture
def rounds(
    new_ledger: Callable[[], Path | str], tmp_path: Path
) -> Callable[[int, Story, Story], list[AuditEntry]]:
    """Plays two processes' stories, one after the other, and returns the audit that verifies."""

    def play_both(point: int, first: Story, second: Story) -> list[AuditEntry]:
        location, folder = new_ledger(), tmp_path / str(point)
        run(play(folder, location, first))
        run(play(folder, location, second, furnished=False))
        return check_chain(location)

    return play_both


Rounds = Callable[[int, Story, Story], list[AuditEntry]]


def test_a_proposal_is_applied_once(rounds: Rounds) -> None:
    for point in range(EVERY_POINT):
        killers: list[Killer] = []

        async def first(site: GateSite, point: int = point, killers: Any = killers) -> None:
            await site.set_policy(ALLOW_ALL)
            killers.append(Killer(site, point))
            assert (await site.propose(RAISE)).code == 201
            await asyncio.sleep(3)

        async def second(site: GateSite) -> None:
            await asyncio.sleep(100)
            shown = await site.proposal("p")
            assert shown["status"]["phase"] == "Applied", shown
            pool = (await site.call("GET", f"{OURS}/pools/h100")).body
            assert pool["spec"]["floorPrice"] == "0.50"
            assert pool["metadata"]["generation"] == 2, "its spec was not changed once"

        events = [entry.event for entry in rounds(point, first, second)]
        assert events == [*LIFE, ProposalEvent.MEASURED]
    assert killers[0].writes < EVERY_POINT, "the last write was never reached"


NEW_ACTIONS = (
    Action(kind=ActionKind.SCALE_ENDPOINT, name="awake", namespace="agent-a", value="3"),
    Action(kind=ActionKind.PREWARM_ENDPOINT, name="asleep", namespace="agent-a", value="sure"),
    Action(kind=ActionKind.SLEEP_ENDPOINT, name="awake", namespace="agent-a"),
    Action(kind=ActionKind.RETRY_ROLLOUT, name="broken", namespace="agent-a"),
    Action(kind=ActionKind.CONSOLIDATE_NODE, name="n1"),
    Action(kind=ActionKind.SNAPSHOT_PLANE, name="a"),
    Action(kind=ActionKind.PAGE_PERSON, name="on-call", value="look"),
    Action(kind=ActionKind.REPAIR_DRIFT, name="h100", value="Pool noticeSeconds 60"),
)
# Around the host's own writes; all of them when more is explored.
POINTS = (3, 4, 5, 6) if effort(0, 1) == 0 else range(EVERY_POINT + 2)


async def traces(site: GateSite, action: Action, uid: str) -> list[Any]:
    """Everything on the host that an action leaves once it was carried out."""
    match action.kind:
        case ActionKind.SNAPSHOT_PLANE:
            return []
        case ActionKind.PAGE_PERSON:
            events = (await site.call("GET", f"{CORE}/namespaces/default/events")).body["items"]
            return [e["message"] for e in events if e["reason"] == "Page"]
        case ActionKind.CONSOLIDATE_NODE:
            lease = (await site.call("GET", f"{OURS}/namespaces/agent-a/gpuleases/l")).body
            node = (await site.call("GET", f"{CORE}/nodes/n1")).body
            return [bool(lease["metadata"].get("deletionTimestamp")), node["spec"]]
        case ActionKind.REPAIR_DRIFT:
            pool = (await site.call("GET", f"{OURS}/pools/h100")).body
            return [pool["spec"]["noticeSeconds"], pool["metadata"]["generation"]]
    path = f"{OURS}/namespaces/agent-a/endpoints/{action.name}"
    notes = (await site.call("GET", path)).body["metadata"]["annotations"]
    assert notes.pop("bidplane.dev/proposal") == uid
    return [text.replace(uid, "UID") for text in notes.values()]


EXPECTED: dict[ActionKind, list[Any]] = {
    ActionKind.SCALE_ENDPOINT: ["3"],
    ActionKind.PREWARM_ENDPOINT: ["wake UID"],
    ActionKind.SLEEP_ENDPOINT: ["sleep UID"],
    ActionKind.RETRY_ROLLOUT: ["UID"],
    ActionKind.CONSOLIDATE_NODE: [True, {"unschedulable": True}],
    ActionKind.SNAPSHOT_PLANE: [],
    ActionKind.PAGE_PERSON: ["on-call: look"],
    ActionKind.REPAIR_DRIFT: [60, 2],
}


@pytest.mark.explored
@pytest.mark.parametrize("action", NEW_ACTIONS, ids=lambda action: action.kind)
def test_actions_on_services_nodes_and_planes_are_applied_once(
    rounds: Rounds, action: Action
) -> None:
    for point in POINTS:

        async def first(site: GateSite, point: int = point) -> None:
            await site.set_policy(ALLOW_ALL)
            asked = action
            if action.namespace:
                path = f"{OURS}/namespaces/agent-a/endpoints/{action.name}"
                uid = (await site.call("GET", path)).body["metadata"]["uid"]
                asked = msgspec.structs.replace(action, uid=uid)
            Killer(site, point)
            assert (await site.propose(asked)).code == 201
            await asyncio.sleep(3)

        async def second(site: GateSite) -> None:
            await asyncio.sleep(100)
            shown = await site.proposal("p")
            assert shown["status"]["phase"] == "Applied", shown
            assert await traces(site, action, shown["metadata"]["uid"]) == EXPECTED[action.kind]

        events = [entry.event for entry in rounds(point, first, second)]
        assert events == [*LIFE, ProposalEvent.MEASURED]


def test_what_a_person_changed_back_is_not_changed_again(rounds: Rounds) -> None:
    """It was applied, the process was killed, and a person undid it before the next start."""

    async def first(site: GateSite) -> None:
        await site.set_policy(ALLOW_ALL)
        Killer(site, 5)  # the last is the change; that it was made is not recorded
        await site.propose(RAISE)
        await asyncio.sleep(3)
        pool = (await site.call("GET", f"{OURS}/pools/h100")).body
        assert pool["spec"]["floorPrice"] == "0.50"
        await site.client.patch(POOL, "h100", {"spec": {"floorPrice": "0.30"}})

    async def second(site: GateSite) -> None:
        await asyncio.sleep(100)
        shown = (await site.proposal("p"))["status"]
        assert (shown["phase"], "changed by somebody since" in shown["message"]) == (
            "Applied",
            True,
        )
        pool = (await site.call("GET", f"{OURS}/pools/h100")).body
        assert pool["spec"]["floorPrice"] == "0.30"

    rounds(0, first, second)


def test_a_persons_write_has_a_verdict_and_an_outcome(rounds: Rounds) -> None:
    for point in range(4):
        codes: list[int] = []

        async def first(site: GateSite, point: int = point, codes: list[int] = codes) -> None:
            await site.set_policy(ALLOW_ALL)
            Killer(site, point)
            change = {"spec": {"unschedulable": True}}
            codes.append((await site.patch(f"{CORE}/nodes/n1", change)).code)

        async def second(site: GateSite, codes: list[int] = codes) -> None:
            # Any Proposal wakes the controller, which first looks at what was interrupted.
            await site.propose(Action(kind=ActionKind.CORDON_NODE, name="n2"))
            await asyncio.sleep(3)
            node = (await site.call("GET", f"{CORE}/nodes/n1")).body
            events = [e.event for e in await site.audit() if e.target == "Node n1"]
            if node["spec"].get("unschedulable"):
                assert events == list(LIFE)
            else:
                assert (codes[0], events) == (503, [])

        rounds(point, first, second)
