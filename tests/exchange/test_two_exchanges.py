"""Two exchanges on one ledger, which should not be: they take turns, and sell nothing twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bidplane.bench.support import postgres
from bidplane.core.devices.ranges import Ranges, size_of, union
from bidplane.exchange.engine import Engine
from bidplane.exchange.snapshot import HostSnapshot
from bidplane.ledger import Ledger, verify

from .words import PRICE, agent, bid, gpus, parted, pool


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    if request.param == "sqlite":
        yield tmp_path / "ledger.db"
        return
    try:
        with postgres.Server(durable=False) as server:
            yield server.dsn("ledger")
    except postgres.NoPostgres as error:
        pytest.skip(str(error))


def test_two_exchanges_on_one_ledger_sell_nothing_twice(place: Path | str) -> None:
    """Each round is one transaction that begins with what is there: the second finds it sold."""
    world = HostSnapshot(
        agents=(agent("ann", refill=1000), agent("bob", refill=1000)),
        pools=(parted(pool()),),
        devices=gpus(2),
    )
    Ledger.open(place, durable=False).close()

    def run(name: str) -> None:
        ledger = Ledger.open(place, durable=False)
        engine = Engine(ledger)
        for n in range(8):
            made = tuple(
                bid(f"{name}-{n}-{i}", name, 1, PRICE, share=share)
                for i, share in enumerate(("1/2", "1/4", "1/8"))
            )
            engine.run_round(msgspec.structs.replace(world, bids=made), 1_000_000.0 + n)
        ledger.close()

    errors: list[BaseException] = []

    def guarded(name: str) -> None:
        try:
            run(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(name,)) for name in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    report = verify(place)
    assert report.is_sound, report.problem
    ledger = Ledger.open(place, durable=False)
    held: dict[str, list[Ranges]] = {}
    for device in (device for lease in ledger.live_leases() for device in lease.devices):
        held.setdefault(device.name, []).append(device.units)
    assert held
    for parts in held.values():
        assert sum(map(size_of, parts)) == size_of(union(parts)), "no unit is sold twice"
    ledger.close()
