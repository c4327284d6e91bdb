"""
kill -9, for real: a process runs rounds on a durable ledger and says what it committed;
it is killed in the middle, and whatever it said must be there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bidplane.ledger import Ledger, verify

WORKER = """
import sys
from pathlib import Path
from bidplane.exchange.engine import Engine
from bidplane.exchange.snapshot import HostSnapshot
from bidplane.ledger import Ledger
from exchange.words import PRICE, agent, bid, gpus, pool

ledger = Ledger.open(Path(sys.argv[1]))
engine = Engine(ledger)
start = ledger.head.sequence
now = 1_000_000.0 + 10 * start
live = ledger.live_leases()
while True:
    now += 7
    n = ledger.head.sequence
    names = ("ann", "bob", "carl")
    world = HostSnapshot(
        agents=tuple(agent(name, refill=1000) for name in names),
        pools=(pool(),),
        devices=gpus(8),
        bids=tuple(
            bid(f"{name}-{n}", name, 1 + (n + i) % 8, PRICE * (1 + (n * 7 + i) % 5), created=n)
            for i, name in enumerate(names)
        ),
        claimed=frozenset(lease.id for lease in ledger.live_leases()),
        left=frozenset(lease.id for lease in ledger.live_leases() if lease.reclaim_at),
    )
    engine.run_round(world, now)
    print(ledger.head.sequence, flush=True)
"""


@pytest.mark.slow
def test_what_was_committed_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    said = 0
    for rounds in (1, 2, 3, 5, 8, 13):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(Path(__file__).parent.parent)},
        )
        assert worker.stdout is not None
        for _ in range(rounds):
            said = int(worker.stdout.readline())
        worker.kill()  # it is by now somewhere in its next round
        worker.wait()
        for line in worker.stdout.readlines():  # said before it died, and not yet read
            said = int(line) if line.endswith("\n") else said
        worker.stdout.close()
        report = verify(path)
        assert report.is_sound, report.problem
        assert report.commits >= said
    ledger = Ledger.open(path)
    assert ledger.last_round > 10
    ledger.close()
