"""
kill -9 at every write point of a round, for real, on each database.

A process runs the same two rounds again and again, each time in a child that kills
itself before (or after) its nth statement. Whoever opens the ledger then finds the whole
round or none of it.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from .conftest import Place

# Run by a process of its own: a child that is forked there shares nothing with pytest.
WORKER = """
import json, os, signal, sys
from pathlib import Path

from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.ledger import Ledger, leases, verify, wallets
from bidplane.ledger.records import lease_id
from bidplane.storage.postgres import PostgresDatabase
from bidplane.storage.sqlite import Database

from ledger.words import open_wallet, win

place, when, what = sys.argv[1:4]
base = PostgresDatabase if place.startswith("postgres") else Database
WRITES = ("execute", "execute_many", "copy")


def arm(left):
    # Every statement of the transaction is a write point: BEGIN, rows, journal, COMMIT.
    def mortal(name):
        whole = getattr(base, name)
        def statement(self, *args):
            nonlocal left
            left -= 1
            if left == 0 and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            found = whole(self, *args)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return found
        return statement
    for name in WRITES:
        if hasattr(base, name):
            setattr(base, name, mortal(name))


def round_(ledger, number):
    # A round with a bit of everything: funding, a win, a claim, a settlement, a release.
    at = 1000 * number
    with ledger.commit(at) as commit:
        wallets.fund(commit, uid="u1", amount=1000, key=str(number))
        leases.claim(commit, win(commit, f"b{number}").id)
        if commit.lease_of_bid(f"b{number - 1}"):
            leases.release(commit, lease_id(f"b{number - 1}"), LeaseEvent.LEFT)
        commit.add_round(input=b"{}", result=b"{}")


def engine_round(ledger, number):
    # The exchange's own round: it displaces the lease before, which leaves; parts and gangs too.
    from bidplane.exchange.engine import Engine
    from bidplane.exchange.snapshot import HostSnapshot
    from exchange.words import PRICE, agent, bid, gpus, parted, pool

    bids = tuple(
        bid(f"{kind}{n}", ("ann", "bob")[n % 2], 1, n * PRICE, share=share, blocks=blocks)
        for n in range(max(1, number - 2), number + 1)
        for kind, share, blocks in (("w", "", 1), ("h", "1/2", 1), ("g", "1/4", 2))
    )
    over = frozenset(lease.id for lease in ledger.live_leases() if lease.notice_at)
    world = HostSnapshot(
        agents=(agent("ann", refill=10**6), agent("bob", refill=10**6)),
        pools=(parted(pool()),),
        devices=gpus(2),
        bids=bids,
        left=over,
        claimed=frozenset(lease.id for lease in ledger.live_leases()),
    )
    Engine(ledger).run_round(world, 1_000_000.0 + 70 * number)


def quiet(ledger):
    # The round that keeps the float out; after it, the same again writes nothing.
    from bidplane.exchange.engine import Engine
    from bidplane.exchange.snapshot import HostSnapshot
    from exchange.words import agent, gpus, pool
    import msgspec

    world = HostSnapshot(
        agents=(agent("ann", refill=10**6),),
        pools=(msgspec.structs.replace(pool(), float_percent=5),),
        devices=tuple(d for n in range(5) for d in gpus(8, node=f"n{n}")),
    )
    engine = Engine(ledger)
    engine.run_round(world, 1_000_000.0)
    return engine, world


def sale(ledger, number):
    # From the float, to a bid, which asks twice.
    from exchange.words import PRICE, bid
    import msgspec

    engine, world = quiet(ledger)
    wanted = msgspec.structs.replace(bid(f"b{number}", "ann", 1, PRICE), instant=True)
    sold = engine.desk.serve(wanted, world.agents[0], now=1_000_000_000)
    again = engine.desk.serve(wanted, world.agents[0], now=1_000_000_000)
    assert sold.id == again.id == lease_id(f"b{number}")


if what == "engine":
    round_ = engine_round
elif what == "sale":
    round_ = sale
else:
    with_wallet = Ledger.open(place)
    open_wallet(with_wallet)
    with_wallet.close()
ledger = Ledger.open(place)
round_(ledger, 1)
ledger.close()
number, point = 2, 0
seen = {"killed": 0, "none": 0, "whole": 0}
while True:
    point += 1
    if what == "sale":
        ledger = Ledger.open(place)
        quiet(ledger)
        ledger.close()
    before = verify(place)
    child = os.fork()
    if child == 0:
        try:
            ledger = Ledger.open(place)
            arm(point)
            round_(ledger, number)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(3)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    after = verify(place)
    assert after.is_sound, after.problem
    done = after.commits - before.commits
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        seen["killed"] += 1
    else:
        assert os.WEXITSTATUS(status) == 0
        assert done == 1
        break
    assert done in (0, 1)
    # All of it, or nothing: a lease, two holds, rent, a round, and the journal.
    grown = (after.transfers - before.transfers, after.leases - before.leases)
    least = (2, 1) if what == "ledger" else (0, 1)
    whole = all(n >= m for n, m in zip(grown, least))
    assert whole if done else grown == (0, 0), grown
    seen["whole" if done else "none"] += 1
    number += done
print(json.dumps(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ledger", "engine", "sale"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_whole_round_or_none_of_it(place: Place, when: str, what: str) -> None:
    """
    `engine`: the exchange's own round, with whole GPUs, parts and gangs that displace others.
    `sale`: one GPU from the float, to a bid, between two rounds.
    """
    worker = subprocess.run(
        [sys.executable, "-c", WORKER, str(place), when, what],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": __file__.rpartition("/ledger/")[0]},
        timeout=120,
    )
    assert worker.returncode == 0, worker.stderr
    seen = json.loads(worker.stdout)
    assert seen["none"] >= 8
    # After COMMIT was answered, and only then, the round is there for certain.
    # (The engine's next round has other statements, and a sale is read again after it.)
    least = 1 if when == "after" else 0
    assert seen["whole"] == least or (what != "ledger" and seen["whole"] > least)
    assert seen["killed"] == seen["none"] + seen["whole"]
