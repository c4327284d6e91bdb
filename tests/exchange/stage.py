"""A host, a ledger on disk, and an exchange between them that can die and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, NODE, POOL, RESOURCE_SLICE
from bidplane.exchange.round.conditions import lease_name
from bidplane.exchange.service import Exchange
from bidplane.ledger import Ledger, verify
from bidplane.ledger.records import lease_id
from bidplane.runtime.identity.credentials import Tokens

from .fake_host import FakeHost, Killed

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


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
        self.host.apply(NODE, "n1", spec={}, status=READY)
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
        self.exchange = self.make_exchange()
        self._tasks = [asyncio.create_task(i.run()) for i in self.exchange.informers.values()]
        await self.exchange.synced()

    def make_exchange(self) -> Exchange:
        return Exchange(self.host, self.ledger, Tokens(b"key"), clock=self.clock)

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

    def bid(self, agent: str, name: str, gpus: int, price: str, **more: Any) -> None:
        self.host.apply(
            BID,
            name,
            f"agent-{agent}",
            spec={"gpus": gpus, "maxPrice": price, **more},
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


def play(
    tmp_path: Path,
    story: Callable[[Any], Awaitable[None]],
    stage: Callable[[Path], Stage] = Stage,
) -> Stage:
    async def on_stage() -> Stage:
        async with stage(tmp_path) as made:
            await story(made)
        return made

    return asyncio.run(on_stage())


def outcome(stage: Stage) -> list[tuple[str, int, int]]:
    ledger = Ledger.open(stage.path)
    found = [(a.id, a.posted, a.held) for a in ledger.accounts()]
    ledger.close()
    return found


def crash_at_every_write(
    tmp_path: Path, story: Callable[[Stage], Awaitable[None]], *, writes: int
) -> None:
    """The story comes to the same end, wherever it is killed; it has more than `writes` places."""
    (tmp_path / "calm").mkdir()
    calm = play(tmp_path / "calm", story)
    assert calm.host.writes > writes
    for write in range(1, calm.host.writes + 1):
        for after in (False, True):
            folder = tmp_path / f"{write}-{after}"
            folder.mkdir()

            async def killed(stage: Stage, write: int = write, after: bool = after) -> None:
                stage.host.kill_at, stage.host.kill_after = write, after
                await story(stage)

            stage = play(folder, killed)
            assert stage.deaths == 1
            assert outcome(stage) == outcome(calm), f"killed at write {write}, after={after}"
