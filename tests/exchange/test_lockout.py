"""
Nobody is locked out: on 8 to 128 GPUs, beside 1 to 50 rivals, a bid that outranks what is in its
way and is worth more wins in the round in which it arrives.

The judge tries every set of leases of a machine. It shares no code with the clearing. It looks at
bids that no other bid outranks, so that nobody else can have taken the room.
"""

from __future__ import annotations

import random
import tempfile
from itertools import combinations
from pathlib import Path

import pytest

from bidplane.api.lease import Phase
from bidplane.core.market import Incumbent, RoundInput
from effort import effort

from .market import Market
from .words import PRICE, agent, bid, gpus

SITUATIONS = effort(20, 1000)
NEW = "newcomer"
SIZES = (1, 1, 2, 4, 8)


def situation(path: Path, seed: int) -> tuple[Market, random.Random]:
    """A market that rivals have filled, with wins that are claimed or not, and bids that wait."""
    dice = random.Random(seed)
    machines, rivals = dice.randint(1, 16), dice.randint(1, 50)
    market = Market(path)
    names = [f"rival-{n}" for n in range(rivals)]
    agents = tuple(agent(name, refill=100_000) for name in (NEW, *names))
    devices = tuple(d for n in range(machines) for d in gpus(8, node=f"n{n:02d}"))
    market.round(agents=agents, devices=devices)
    bids = 0
    for _ in range(dice.randint(1, 3)):
        made = []
        for _ in range(dice.randint(1, 2 * machines + 4)):
            made.append(f"b{bids}")
            price = dice.randint(PRICE // 10, PRICE)
            size = dice.choice(SIZES)
            standing = bid(made[-1], dice.choice(names), size, price)
            market.change(bids=(*market.world.bids, standing))
            bids += 1
        market.round(after=dice.choice([1, 30, 600]))
        live = {lease.bid_uid for lease in market.ledger.live_leases()}
        market.claim(*(name for name in made if name in live and dice.random() < 0.8))
    market.round(after=dice.choice([1, 61, 1800]))
    return market, dice


def must_win(given: RoundInput, gpus: int, price: int) -> bool:
    """
    Tell if a bid outranks every other bid, and leases that it outranks and that are worth less have
    what it lacks in one machine.
    """
    key = price * 1024
    if any(ask.price * ask.weight >= key for ask in given.asks):
        return False
    (lot,) = given.lots
    for domain in lot.domains:
        able = [
            lease
            for lease in given.incumbents
            if lease.domain == domain.name and not lease.pinned and lease.price * lease.weight < key
        ]
        for count in range(len(able) + 1):
            for leaving in combinations(able, count):
                room = len(domain.free) + sum(lease.gpus for lease in leaving)
                if room >= gpus and sum(map(worth, leaving)) < key * gpus:
                    return True
    return False


def worth(lease: Incumbent) -> int:
    return lease.price * lease.weight * lease.gpus


@pytest.mark.explored
@pytest.mark.timeout(0)
def test_a_bid_that_is_worth_more_wins_at_once() -> None:
    judged = contested = 0
    for seed in range(SITUATIONS):
        with tempfile.TemporaryDirectory() as folder:
            market, dice = situation(Path(folder) / "ledger.db", seed)
            size = dice.choice(SIZES)
            price = round(PRICE * dice.choice([1.2, 1.6, 2, 4, 10]))
            given = market.engine_input()
            expected = must_win(given, size, price)
            report = market.round(bid("new", NEW, size, price), after=0.001)
            if expected:
                judged += 1
                contested += bool(report.result.displaced)
                assert report.bids["new"].phase == "Won", (seed, report.bids["new"].message)
                lease = market.lease("new")
                assert lease.phase is Phase.PENDING
                assert lease.max_price == price
            market.ledger.close()
    print(f"{judged} of {SITUATIONS} bids had to win, {contested} by displacing leases; all did")
    assert judged > SITUATIONS * 3 // 4
    assert contested > SITUATIONS // 10


def test_the_judge_sees_what_cannot_win() -> None:
    """A guard: where leases are worth more, the judge promises nothing, and the bid waits."""
    with tempfile.TemporaryDirectory() as folder:
        market = Market(Path(folder) / "ledger.db")
        market.change(devices=gpus(8), agents=(agent("a", refill=100_000), agent(NEW, refill=100)))
        market.round(bid("large", "a", 8, PRICE))
        market.claim("large")
        for price, wins in ((9 * PRICE, False), (11 * PRICE, True)):
            assert must_win(market.engine_input(), 1, price) is wins
            name = f"b{price}"
            report = market.round(bid(name, NEW, 1, price))
            assert (report.bids[name].phase == "Won") is wins
            gone = tuple(b for b in market.world.bids if b.uid != name)
            market.change(bids=gone)
        market.ledger.close()
