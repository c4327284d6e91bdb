"""
The figures of `docs/designs/0003-two-stores-one-truth.md`, measured anew:

    .venv/bin/python -m tests.exchange.figures
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import msgspec

from bidplane.api.kinds import AGENT, POOL, RESOURCE_SLICE
from bidplane.core.market import RoundInput, clear_round
from bidplane.exchange.engine import Engine
from bidplane.exchange.service import Exchange
from bidplane.exchange.snapshot import HostSnapshot
from bidplane.ledger import Ledger, verify, wallets
from bidplane.ledger.records import lease_id
from bidplane.machinery.clock import SystemClock
from bidplane.runtime.identity.credentials import Tokens

from .fake_host import FakeHost
from .words import PRICE, agent, bid, gpus, pool


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for durable in (True, False):
            commits(Path(folder) / f"commits-{durable}.db", durable=durable)
            for wins in (1, 10, 100):
                rounds(Path(folder) / f"rounds-{wins}-{durable}.db", wins, durable=durable)
        quiet(Path(folder) / "quiet.db", 1000)
        clearing(Path(folder) / "clearing.db", 1000)
        asyncio.run(replay(Path(folder) / "replay.db", 1000))


def commits(path: Path, *, durable: bool) -> None:
    """The least a commit can be: one transfer, two accounts, one journal row."""
    ledger = Ledger.open(path, durable=durable)
    with ledger.commit(0) as commit:
        wallets.open_wallet(commit, uid="u", name="u", owner="u")
    start, count = time.perf_counter(), 300
    for n in range(count):
        with ledger.commit(n) as commit:
            wallets.fund(commit, uid="u", amount=1, key=str(n))
    say(f"commits of one transfer, durable={durable}", count / took(start), "per second")
    ledger.close()


def world(leases: int, *, salt: str = "") -> HostSnapshot:
    return HostSnapshot(
        agents=tuple(agent(f"a{i}", refill=100_000) for i in range(10)),
        pools=(pool(),),
        devices=tuple(d for i in range(-(-leases // 8)) for d in gpus(8, node=f"n{i}")),
        bids=tuple(bid(f"b{salt}-{i}", f"a{i % 10}", 1, PRICE + i) for i in range(leases)),
    )


def rounds(path: Path, wins: int, *, durable: bool) -> None:
    """Each round sells `wins` leases, the next one takes all of them back."""
    ledger = Ledger.open(path, durable=durable)
    engine = Engine(ledger)
    start, count, now, spent = time.perf_counter(), 40, 0.0, 0.0
    for n in range(count):
        scene = world(wins, salt=str(n))
        now += 1
        start = time.perf_counter()
        engine.run_round(scene, now)
        spent += took(start)
        left = frozenset(lease.id for lease in ledger.live_leases())
        engine.run_round(msgspec.structs.replace(scene, left=left, bids=()), now)
    size = path.stat().st_size
    say(f"rounds of {wins} wins, durable={durable}", count / spent, "per second")
    start = time.perf_counter()
    report = verify(path)
    assert report.is_sound, report.problem
    say(f"  verify {report.commits} commits, {size >> 10} KiB", took(start) * 1000, "ms")
    ledger.close()


def quiet(path: Path, leases: int) -> None:
    """A round in which every lease runs and nothing changes."""
    ledger, engine = Ledger.open(path), None
    engine = Engine(ledger)
    scene = world(leases)
    engine.run_round(scene, 1)
    claimed = frozenset(lease_id(b.uid) for b in scene.bids)
    scene = msgspec.structs.replace(scene, claimed=claimed)
    engine.run_round(scene, 2)
    head = ledger.head.sequence
    start = time.perf_counter()
    for n in range(5):
        engine.run_round(scene, 3 + n)
    assert ledger.head.sequence == head
    say(f"a quiet round with {leases} running leases", took(start) / 5 * 1000, "ms")
    ledger.close()


def clearing(path: Path, bids: int) -> None:
    """Pure clearing of a recorded round in which half of the bids lose."""
    ledger = Ledger.open(path, durable=False)
    scene = msgspec.structs.replace(world(bids), devices=world(bids // 2).devices)
    Engine(ledger).run_round(scene, 1)
    given = msgspec.json.decode(ledger.rounds_after(0)[0].input, type=RoundInput)
    start = time.perf_counter()
    clear_round(given)
    say(f"clear, price and place {bids} bids for {bids // 2} GPUs", took(start) * 1000, "ms")
    ledger.close()


async def replay(path: Path, leases: int) -> None:
    """The exchange dies after a commit of many leases; another tells the host."""
    ledger = Ledger.open(path)
    Engine(ledger).run_round(world(leases), 1)
    ledger.close()
    host = FakeHost()
    host.apply(POOL, "h100", spec={"product": "H100"})
    host.apply(RESOURCE_SLICE, "n1", spec={"nodeName": "n1", "devices": []})
    for i in range(10):
        host.apply(AGENT, f"a{i}", spec={"owner": "o"}, metadata={"uid": f"uid-a{i}"})
    start = time.perf_counter()
    ledger = Ledger.open(path)
    exchange = Exchange(host, ledger, Tokens(b"key"), clock=SystemClock())
    tasks = [asyncio.create_task(informer.run()) for informer in exchange.informers.values()]
    await exchange.synced()
    say("open the ledger, list the host", took(start) * 1000, "ms")
    start = time.perf_counter()
    assert await exchange.project() == 0
    say(f"project {leases} leases ({host.writes} writes) to a host in memory", took(start), "s")
    await asyncio.sleep(0)
    start, writes = time.perf_counter(), host.writes
    assert await exchange.project() == 0
    assert host.writes == writes
    say("find that nothing is left to tell", took(start) * 1000, "ms")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    ledger.close()


def took(start: float) -> float:
    return time.perf_counter() - start


def say(what: str, value: float, unit: str) -> None:
    print(f"{what:60} {value:10.1f} {unit}", flush=True)


if __name__ == "__main__":
    main()
