"""
The pilot over its own credential, on a real host with its gate: a night, in virtual time.

Scenes of the story that need no Endpoint: idle nodes are parked (correct), its own log is evicted
(blocked), traffic comes back and a node returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.kinds import BID, ENDPOINT, GPU_LEASE, NODE, POD, POOL, Kind, Object
from bidplane.api.times import parse_or_zero
from bidplane.core.gate.digest import markdown
from bidplane.core.minds import rules
from bidplane.core.minds.observation import Intention, Observation
from bidplane.errors import api_error
from bidplane.kube.client import Listing
from bidplane.ledger.audit.summary import digest_of
from bidplane.pilot.changes import HostChanges
from bidplane.pilot.loop import LEAST_SECONDS, TICK_SECONDS, Pilot

from .conftest import CORE, OURS, GateSite, Story, add_endpoint

PILOT = "pilot:pilot"


class PilotsClient:
    """A client of the host over its application, with the pilot's token."""

    def __init__(self, site: GateSite) -> None:
        self._site = site
        self.writes: list[str] = []

    async def list(self, kind: Kind, namespace: str | None = None, **options: Any) -> Listing:
        body = await self._call("GET", self._path(kind))
        return Listing(body["items"], body["metadata"]["resourceVersion"])

    def watch(self, kind: Kind, namespace: str | None = None, **options: Any) -> Any:
        return self._site.client.watch(kind, namespace, **options)

    async def create(self, kind: Kind, obj: Object, namespace: str | None = None) -> Object:
        self.writes.append(kind.kind)
        created: Object = await self._call("POST", self._path(kind), obj)
        return created

    def _path(self, kind: Kind) -> str:
        base = f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"
        return f"/planes/host/{base}/{kind.plural}"

    async def _call(self, method: str, path: str, body: Object | None = None) -> Any:
        answer = await self._site.call(method, path, body, by=PILOT)
        if answer.code >= 300:
            raise api_error(answer.code, str(answer.body.get("reason", "")), answer.message)
        return answer.body


async def by_rules(observation: Observation) -> Sequence[Intention]:
    return rules.decide(observation)


def pilot_of(
    site: GateSite, *, follows: bool = False, **options: Any
) -> tuple[Pilot, PilotsClient]:
    client = PilotsClient(site)
    if follows:
        options["changes"] = HostChanges(client, clock=site.clock)
    return Pilot(client, options.pop("mind", by_rules), clock=site.clock, **options), client  # type: ignore[arg-type]


async def empty_the_fleet(site: GateSite) -> None:
    for name in ("pod-1", "pod-2"):
        await site.client.delete(POD, name, "default", grace_seconds=0)
    await site.client.patch(GPU_LEASE, "l", {"metadata": {"finalizers": None}}, "agent-a")
    await site.client.delete(GPU_LEASE, "l", "agent-a")
    await site.client.delete(ENDPOINT, "broken", "agent-a")


async def proposals(site: GateSite) -> list[tuple[str, str]]:
    items = (await site.call("GET", f"{OURS}/proposals")).body["items"]
    return sorted((p["status"]["summary"], p["status"]["phase"]) for p in items)


def test_a_night(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        await empty_the_fleet(site)
        pilot, client = pilot_of(site)
        end = site.clock.now() + 2000
        await pilot.run(asyncio.sleep, until=end)
        assert await proposals(site) == [("ParkNode n1", "Waiting")], "one stays in service"
        assert set(client.writes) == {"Proposal"}
        (item,) = (await site.call("GET", f"{OURS}/proposals")).body["items"]
        name, status = item["metadata"]["name"], item["status"]
        assert item["spec"]["reason"].startswith("nobody has used it for 30 minutes")
        assert len(item["spec"]["observation"]) == 64
        approved = await site.decide(name, "approve", by="operator:oli", digest=status["digest"])
        assert approved.code == 200, approved
        await asyncio.sleep(1)
        assert await proposals(site) == [("ParkNode n1", "Applied")]

        # The morning: a bid waits for the pool, and the node comes back.
        waits = {"phase": "Waiting", "reason": "Outbid", "message": "", "pool": "h100"}
        bid = {"metadata": {"name": "b"}, "spec": {"gpus": 2}, "status": waits}
        await site.client.create(BID, bid, "agent-a", with_status=True)
        await pilot.tick()
        await asyncio.sleep(1)
        assert ("ReturnNode n1", "Waiting") in await proposals(site)
        events = [entry.event for entry in await site.audit()]
        assert events[:5] == ["waits", "approved", "allowed", "begun", "applied"]

    host(story)


def test_in_shadow_all_is_judged_and_nothing_applied(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        rules_for_all = [{"name": "all", "when": "true", "ruling": "Allow"}]
        await site.set_policy({"rules": rules_for_all})
        await empty_the_fleet(site)
        pilot, _ = pilot_of(site, shadow=True)
        await pilot.run(asyncio.sleep, until=site.clock.now() + 2000)
        await asyncio.sleep(1)
        assert await proposals(site) == [("ParkNode n1", "Shadow")]
        node = (await site.call("GET", f"{CORE}/nodes/n1")).body
        assert not node["spec"].get("unschedulable")
        (entry,) = await site.audit()
        assert (entry.event, entry.reason) == ("shadowed", "Allowed")
        assert entry.message.startswith("would be Allow: ")

    host(story)


def test_its_own_log_is_not_evicted_whoever_approves(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        marks = {"labels": {"bidplane.dev/operator-part": "log"}}
        await site.client.patch(POD, "pod-1", {"metadata": marks}, "default")
        uid = (await site.client.get(POD, "pod-1", "default"))["metadata"]["uid"]
        evict = Action(kind=ActionKind.EVICT_POD, namespace="default", name="pod-1", uid=uid)

        async def tired(observation: Observation) -> Sequence[Intention]:
            return [Intention(action=evict, reason="logs are noise")]

        pilot, _ = pilot_of(site, mind=tired)
        (name,) = await pilot.tick()
        await asyncio.sleep(1)
        status = (await site.proposal(name))["status"]
        assert (status["phase"], status["reason"]) == ("Denied", "Protected")
        assert "the pilot's own logging and audit" in status["message"]
        decided = await site.decide(name, "approve", by="owner:ann", digest=status["digest"])
        assert decided.code == 409
        deleted = await site.call("DELETE", f"{CORE}/namespaces/default/pods/pod-1")
        assert deleted.code == 403, "a person is told the same"
        assert [entry.reason for entry in await site.audit()] == ["Protected", "Protected"]

    host(story)


def test_killed_anywhere_it_proposes_each_intention_once(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        cordon = Action(kind=ActionKind.CORDON_NODE, name="n1")

        async def always(observation: Observation) -> Sequence[Intention]:
            same = [p for p in observation.proposals if p.action == cordon]
            return [] if same else [Intention(action=cordon, reason="r")]

        first, _ = pilot_of(site, mind=always)
        second, _ = pilot_of(site, mind=always)
        # Both have observed before either proposes: one was killed, and is started again.
        seen = await first._observe()
        intention = Intention(action=cordon, reason="r")
        assert await first._propose(seen, intention) is not None
        assert await second._propose(seen, intention) is None
        assert await second.tick() == []
        await asyncio.sleep(1)
        assert len(await proposals(site)) == 1

    host(story)


def test_a_host_that_is_away_is_waited_for(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        pilot, _ = pilot_of(site)
        app, naps = site.app, 0

        async def away(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})

        async def nap(seconds: float) -> None:
            nonlocal naps
            naps += 1
            site.app = app if naps > 2 else away
            await asyncio.sleep(seconds)

        site.app = away
        await pilot.run(nap, until=site.clock.now() + 150)
        assert naps == 5
        assert (await site.client.get(NODE, "n1"))["metadata"]["name"] == "n1"

    host(story)


async def no_mind(observation: Observation) -> Sequence[Intention]:
    return []


class Looks:
    """A mind that wants nothing, and notes when it was asked, in seconds since the start."""

    def __init__(self, site: GateSite) -> None:
        self._clock, self._start = site.clock, site.clock.now()
        self.at: list[float] = []

    async def __call__(self, observation: Observation) -> Sequence[Intention]:
        self.at.append(round(self._clock.now() - self._start))
        return []


def test_it_looks_again_soon_after_a_change(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        await site.client.delete(ENDPOINT, "broken", "agent-a")
        looks = Looks(site)
        pilot, _ = pilot_of(site, mind=looks, follows=True)
        start = site.clock.now()
        run = asyncio.create_task(pilot.run(asyncio.sleep, until=start + 200))
        await asyncio.sleep(12)
        failed = {"status": {"phase": "Waking", "failed": True, "message": "CrashLoopBackOff"}}
        await site.client.patch(ENDPOINT, "awake", failed, "agent-a", subresource="status")
        await asyncio.sleep(1)
        gone = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        await site.client.patch(NODE, "n2", gone, subresource="status")
        await asyncio.sleep(20)
        # Prices, beats and traffic change all the time, and wait.
        for number in range(20):
            traffic = {"status": {"demand": {"number": number, "awake": True}}}
            await site.client.patch(ENDPOINT, "awake", traffic, "agent-a", subresource="status")
            await site.client.patch(POOL, "h100", {"metadata": {"labels": {"x": str(number)}}})
            await asyncio.sleep(1)
        await run
        # One at the start; one by each change, and not within five seconds of the one before.
        assert looks.at[:4] == [0, 12, 12 + LEAST_SECONDS, 17 + TICK_SECONDS]
        assert len(looks.at) == 9, looks.at

    host(story)


def test_a_failed_rollout_is_retried_when_it_is_due(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        await site.set_policy({"rules": [{"name": "all", "when": "true", "ruling": "Allow"}]})
        await empty_the_fleet(site)
        await add_endpoint(site, "broken", phase="Waking", failed=True, message="no image")
        pilot, _ = pilot_of(site, follows=True)
        start = site.clock.now()
        await pilot.run(asyncio.sleep, until=start + 400)
        items = (await site.call("GET", f"{OURS}/proposals")).body["items"]
        made: dict[str, list[float]] = {}
        for item in items:
            at = parse_or_zero(item["metadata"]["creationTimestamp"]) - int(start)
            made.setdefault(item["spec"]["action"]["kind"], []).append(at)
        # Five tries, 10 s after the first, doubled each time; then a person.
        assert [round(at, -1) for at in sorted(made["RetryRollout"])] == [0, 10, 30, 70, 150]
        assert [round(at, -1) for at in made["PagePerson"]] == [310]

    host(story)


def test_a_mind_that_repeats_itself_is_heard_once(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        haiku = Action(kind=ActionKind.OFF_TOPIC, name="model", value="warm silicon")
        poems = iter(range(10**6))

        async def poet(observation: Observation) -> Sequence[Intention]:
            new = Action(kind=ActionKind.OFF_TOPIC, name="model", value=f"poem {next(poems)}")
            return [Intention(action=action, reason="r") for action in (haiku, haiku, new, new)]

        pilot, _ = pilot_of(site, mind=poet)
        await pilot.run(asyncio.sleep, until=site.clock.now() + 3000)
        shown = await proposals(site)
        assert {phase for _, phase in shown} == {"Denied"}
        assert sum("warm silicon" in summary for summary, _ in shown) == 1
        assert len(shown) == 101, "a hundred ticks, a poem each"
        await pilot.run(asyncio.sleep, until=site.clock.now() + 590)
        assert len(await proposals(site)) == 120, "no more in an hour, whatever it wants"
        reasons = {entry.reason for entry in await site.audit()}
        assert reasons == {"OffTopic"}

        # A week later the objects are gone, and the audit has them still.
        entries = len(await site.audit())
        await asyncio.sleep(8 * 86_400)
        assert await proposals(site) == []
        assert len(await site.audit()) == entries == 120

    host(story)


def test_people_hear_of_what_changed(host: Callable[[Story], None]) -> None:
    async def story(site: GateSite) -> None:
        lines: list[str] = []

        async def tell(line: str) -> None:
            lines.append(line)

        cordon = Action(kind=ActionKind.CORDON_NODE, name="n1")
        missing = Action(kind=ActionKind.CORDON_NODE, name="n9")
        await site.propose(missing, name="old")
        await asyncio.sleep(1)
        pilot, _ = pilot_of(site, mind=no_mind, tell=tell)
        await pilot.tick()
        assert lines == [], "what it finds at first is no news"
        await site.propose(cordon, name="new")
        await asyncio.sleep(1)
        await pilot.tick()
        await pilot.tick()
        waits = "CordonNode n1, proposed by pilot, waits for you: bidplane proposals show new"
        assert lines == [waits]
        digest = (await site.proposal("new"))["status"]["digest"]
        await site.decide("new", "approve", by="owner:ann", digest=digest)
        await asyncio.sleep(1)
        await pilot.tick()
        assert lines[1:] == [waits.replace("waits for you", "is done")]

        now = site.clock.now()
        summary = await site.gate.record(lambda t: digest_of(t, since=now - 3600, now=now))
        page = markdown(summary)
        assert "## Waiting for you (0)\n\nnothing" in page
        assert "## Done (1)" in page
        assert "pilot pilot: CordonNode n1: CordonNode n1: done" in page
        assert "## Refused (1)" in page
        assert "there is no Node n9" in page
        later = now + 7200
        empty = await site.gate.record(lambda t: digest_of(t, since=later - 60, now=later))
        assert [*empty.done, *empty.refused, *empty.waiting, *empty.failed] == []

    host(story)
