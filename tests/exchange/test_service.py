"""
The exchange and its host: what is decided is told, whatever dies in between.

The story is played again and again, with the process killed at each of its writes to
the host, before it and after it. However it went, it must end the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, POOL, RESOURCE_SLICE
from bidplane.api.lease import FINALIZER
from bidplane.exchange.projector import lease_object, lease_status
from bidplane.exchange.service import Exchange
from bidplane.exchange.snapshot import lease_name
from bidplane.ledger import Ledger, verify
from bidplane.ledger.records import lease_id
from bidplane.runtime.credentials import Tokens

from .fake_host import FakeHost, Killed


class ToldClock:
    """Shows the time it was told. Whoever sleeps on it waits for good."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        await asyncio.Event().wait()


class Stage:
    """A host, a ledger on disk, and an exchange that can die and come back."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"
        self.host = FakeHost()
        self.clock = ToldClock()
        self.deaths = 0
        self.host.apply(POOL, "h100", spec={"product": "H100", "floorPrice": "0.10"})
        self.host.apply(RESOURCE_SLICE, "n1", spec=slice_spec(4))
        for name in ("trainer", "chat"):
            self.host.apply(AGENT, name, spec={"owner": name, "refill": "100"})

    async def __aenter__(self) -> Stage:
        await self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        report = verify(self.path)
        assert report.is_sound, report.problem

    async def _start(self) -> None:
        self.ledger = Ledger.open(self.path, durable=False)
        self.exchange = Exchange(self.host, self.ledger, Tokens(b"key"), clock=self.clock)
        self._tasks = [asyncio.create_task(i.run()) for i in self.exchange.informers.values()]
        await self.exchange.synced()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.ledger.close()

    async def second(self, seconds: float = 1.0) -> None:
        """A round and what follows; if the exchange dies in it, another takes over."""
        self.clock.time += seconds
        for _ in range(20):
            await settle()
            try:
                self.exchange.run_round()
                left = await self.exchange.project()
            except Killed:
                self.deaths += 1
                await self._stop()
                await self._start()
                continue
            await settle()
            if not left and not self._pending():
                return
        raise AssertionError("the host was never told")

    def _pending(self) -> bool:
        """Whether the host does not yet say what the ledger says."""
        shown = {obj["metadata"]["name"]: obj for obj in self.host.of(GPU_LEASE)}
        live = {lease_name(lease.id): lease for lease in self.ledger.live_leases()}
        return shown.keys() != live.keys() or any(
            shown[name].get("status", {}).get("sequence") != lease.sequence
            for name, lease in live.items()
        )

    def bid(self, agent: str, name: str, gpus: int, price: str) -> None:
        self.host.apply(
            BID,
            name,
            f"agent-{agent}",
            spec={"gpus": gpus, "maxPrice": price},
            metadata={"labels": {labels.AGENT: agent}},
        )

    def status(self, agent: str, name: str) -> dict[str, Any]:
        return self.host.objects["bids", f"agent-{agent}", name]["status"]

    def lease(self, agent: str, name: str) -> dict[str, Any]:
        id = lease_id(f"uid-bids-{name}")
        return self.host.objects["gpuleases", f"agent-{agent}", lease_name(id)]

    def claim(self, agent: str, name: str) -> None:
        lease = self.lease(agent, name)
        condition = {"type": "Claimed", "status": "True"}
        self.host.apply(
            GPU_LEASE,
            lease["metadata"]["name"],
            f"agent-{agent}",
            status={**lease["status"], "conditions": [condition]},
        )

    def give_back(self, agent: str, name: str) -> None:
        lease = self.lease(agent, name)
        self.host.mark_deleted(GPU_LEASE, lease["metadata"]["name"], f"agent-{agent}")


def slice_spec(gpus: int) -> dict[str, Any]:
    attributes = {"productName": {"string": "H100"}, "bidplane.dev/linkDomain": {"string": "nv"}}
    return {
        "nodeName": "n1",
        "driver": "gpu.bidplane.dev",
        "pool": {"name": "n1"},
        "devices": [{"name": f"gpu-{i}", "attributes": attributes} for i in range(gpus)],
    }


async def settle() -> None:
    """Let the informers hear what the host has to say."""
    for _ in range(10):
        await asyncio.sleep(0)


def play(tmp_path: Path, story: Callable[[Stage], Awaitable[None]]) -> Stage:
    async def on_stage() -> Stage:
        async with Stage(tmp_path) as stage:
            await story(stage)
        return stage

    return asyncio.run(on_stage())


async def trainer_and_chat(stage: Stage) -> None:
    """One agent runs, another displaces it, both end: every kind of write there is."""
    await stage.second()
    stage.bid("trainer", "train", 4, "2.00")
    await stage.second()
    assert stage.status("trainer", "train")["phase"] == "Won"
    stage.claim("trainer", "train")
    await stage.second()
    assert stage.lease("trainer", "train")["status"]["phase"] == "Active"
    stage.bid("chat", "answer", 2, "9.00")
    await stage.second(60)
    assert stage.lease("trainer", "train")["status"]["phase"] == "Draining"
    assert stage.lease("trainer", "train")["status"]["reason"] == "Outbid"
    assert stage.lease("chat", "answer")["status"]["ready"] is False
    stage.give_back("trainer", "train")
    await stage.second(5)
    assert stage.lease("chat", "answer")["status"]["ready"] is True
    assert stage.status("trainer", "train")["phase"] == "Ended"
    stage.claim("chat", "answer")
    await stage.second()
    stage.give_back("chat", "answer")
    await stage.second(20)
    assert stage.host.of(GPU_LEASE) == []
    for name in ("trainer", "chat"):
        stage.host.mark_deleted(AGENT, name)
    await stage.second()
    await stage.second()
    assert stage.host.of(AGENT) == []


def outcome(stage: Stage) -> list[tuple[str, int, int]]:
    ledger = Ledger.open(stage.path)
    found = [(a.id, a.posted, a.held) for a in ledger.accounts()]
    ledger.close()
    return found


def test_the_story_without_a_crash(tmp_path: Path) -> None:
    stage = play(tmp_path, trainer_and_chat)
    assert {name: posted for name, posted, _ in outcome(stage) if name.startswith("wallet")} == {
        "wallet/uid-agents-trainer": 0,
        "wallet/uid-agents-chat": 0,
    }


def test_a_crash_at_any_write_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    calm = play(tmp_path / "calm", trainer_and_chat)
    assert calm.host.writes > 20
    for write in range(1, calm.host.writes + 1):
        for after in (False, True):
            folder = tmp_path / f"{write}-{after}"
            folder.mkdir()

            async def story(stage: Stage, write: int = write, after: bool = after) -> None:
                stage.host.kill_at, stage.host.kill_after = write, after
                await trainer_and_chat(stage)

            stage = play(folder, story)
            assert stage.deaths == 1
            assert outcome(stage) == outcome(calm), f"killed at write {write}, after={after}"


def test_a_host_that_is_away_is_told_when_it_is_back(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 1, "2.00")
        await settle()
        stage.host.down = True
        stage.clock.time += 1
        stage.exchange.run_round()
        assert await stage.exchange.project() > 0
        assert stage.ledger.live_leases()  # decided, though nobody could be told
        assert stage.host.of(GPU_LEASE) == []
        stage.host.down = False
        await stage.second()
        assert stage.status("trainer", "train")["phase"] == "Won"

    play(tmp_path, story)


def test_what_is_told_once_is_not_told_again(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 4, "2.00")
        stage.bid("chat", "answer", 4, "1.00")
        await stage.second()
        stage.claim("trainer", "train")
        for _ in range(30):
            await stage.second()
        writes = stage.host.writes
        for _ in range(10):
            await stage.second()
        assert stage.host.writes == writes

    play(tmp_path, story)


def test_a_late_cache_does_no_harm(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 4, "2.00")
        await settle()
        stage.clock.time += 1
        stage.exchange.run_round()
        # On the host, and not yet in the cache: written by one that died just before.
        made = lease_object(stage.ledger.live_leases()[0])
        made["metadata"].update(uid="there", resourceVersion="1")
        key = ("gpuleases", "agent-trainer", made["metadata"]["name"])
        stage.host.objects[key] = made
        assert await stage.exchange.project() == 0
        assert stage.lease("trainer", "train")["status"]["phase"] == "Pending"

    play(tmp_path, story)


def test_what_somebody_else_wrote_over_is_put_right(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 4, "2.00")
        await stage.second()
        name = stage.lease("trainer", "train")["metadata"]["name"]
        stage.host.apply(GPU_LEASE, name, "agent-trainer", status={"phase": "Active"})
        await stage.second()
        lease = stage.ledger.live_leases()[0]
        shown = stage.lease("trainer", "train")["status"]
        assert shown["phase"] == lease_status(lease).phase == "Pending"

    play(tmp_path, story)


def test_a_lease_the_ledger_does_not_know_is_removed(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        forged = {"finalizers": [FINALIZER]}
        stage.host.apply(GPU_LEASE, "lease-forged", "agent-chat", metadata=forged, spec={})
        await stage.second()
        assert stage.host.of(GPU_LEASE) == []

    play(tmp_path, story)


@pytest.mark.parametrize("namespace", ["agent-chat", "default"])
def test_a_bid_cannot_name_another_agents_wallet(tmp_path: Path, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.host.apply(
            BID,
            "theft",
            namespace,
            spec={"gpus": 1, "maxPrice": "2.00"},
            metadata={"labels": {labels.AGENT: "trainer"}},
        )
        await stage.second()
        assert stage.ledger.live_leases() == []

    play(tmp_path, story)


def test_a_bid_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await stage.second()
        stage.bid("trainer", "train", 4, "cheap")
        await stage.second()
        status = stage.status("trainer", "train")
        assert (status["phase"], status["reason"]) == ("Refused", "BadPrice")
        assert status["message"].startswith("'cheap' is not an amount of credits")

    play(tmp_path, story)
