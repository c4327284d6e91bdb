"""A whole GPU out of two that are cut: parts that may move go together, and who wants it pays."""

from __future__ import annotations

import msgspec
import pytest

from bidplane.api.lease import Phase
from bidplane.exchange.views import round_view
from bidplane.ledger.rounds import replay
from bidplane.ledger.verify import verify

from .market import Market
from .words import PRICE, agent, bid, gpus, movable, parted, pool, with_memory

MINUTE = 61.0


@pytest.fixture
def scattered(market: Market) -> Market:
    """Two GPUs, each cut for one small instance."""
    market.round(
        agents=(movable("a"), movable("b"), agent("big", refill=1000)),
        pools=(parted(pool(), mig=True),),
        devices=with_memory(gpus(2)),
    )
    small = ("a1", "a2", "b1")
    for uid in small:
        market.round(bid(uid, uid[0], 1, 2 * PRICE, share="1g.10gb"))
        market.claim(uid)
    assert market.lease("a1").devices[0].whole != market.lease("b1").devices[0].whole
    market.leave("a1")
    market.change(bids=())
    market.round(after=MINUTE)
    return market


def test_who_pays_for_it_gets_a_whole_gpu(scattered: Market) -> None:
    report = scattered.round(bid("whole", "big", 1, 20 * PRICE))
    assert report.bids["whole"].phase == "Won"
    whole, gone, (there,) = scattered.lease("whole"), scattered.moved(), scattered.kept()
    assert whole.waits_for == (gone.id,)
    assert whole.devices == (gone.devices[0].whole,)
    assert there.devices[0].whole != whole.devices[0]
    assert (there.share, there.weight, there.price) == ("1g.10gb", gone.weight, gone.price)
    assert there.devices[0].slots in [(2,), (3,)]
    assert gone.compensation > 0
    assert whole.charged == gone.compensation, "the mover's costs are the winner's"
    assert report.pools["h100"].leased == 2


def test_all_go_on_where_they_are_now(scattered: Market) -> None:
    scattered.round(bid("whole", "big", 1, 20 * PRICE))
    gone, (there,) = scattered.moved(), scattered.kept()
    # A bid of another shape does not take it; of the same it does.
    scattered.round(bid("other", gone.agent, 1, 2 * PRICE, share="2g.20gb"))
    assert scattered.kept() == [there]
    scattered.leave(gone.bid_uid)
    report = scattered.round(bid("again", gone.agent, 1, 2 * PRICE, share="1g.10gb"))
    assert scattered.lease("again").devices == there.devices
    assert "kept for it when its lease was moved" in report.bids["again"].message
    scattered.claim("again", "whole")
    assert scattered.lease("again").phase is Phase.ACTIVE
    assert scattered.lease("whole").phase is Phase.ACTIVE


def test_it_is_in_the_rounds_record_and_the_ledger_is_sound(scattered: Market) -> None:
    report = scattered.round(bid("whole", "big", 1, 20 * PRICE))
    (record,) = scattered.ledger.rounds_after(report.round - 1, limit=1)
    assert replay(record).is_same
    gone = scattered.moved()
    (outcome,) = round_view(record, agent=gone.agent).outcomes
    there = scattered.kept()[0].devices[0]
    assert (outcome.event, outcome.share) == ("Moved", "1g.10gb")
    assert outcome.message.startswith(f"moves from {gone.devices[0].name} to {there.name}")
    scattered.restart()
    scattered.ledger.close()
    assert verify(scattered.path).is_sound
    scattered.restart()


@pytest.mark.parametrize("why", ["not movable", "poor", "has just come", "free"])
def test_nobody_moves_for_nothing(scattered: Market, why: str) -> None:
    price = 20 * PRICE
    match why:
        case "not movable":
            agents = tuple(
                msgspec.structs.replace(one, movable=False) for one in scattered.world.agents
            )
            scattered.change(agents=agents)
        case "poor":
            price = 101_000  # the base price, and too little for the moves
        case "has just come":
            for n, name in enumerate("ab"):
                scattered.round(bid(f"new{n}", name, 1, 2 * PRICE, share="1g.10gb"))
                scattered.claim(f"new{n}")
        case "free":
            scattered.change(devices=with_memory(gpus(3)))
    scattered.round(bid("whole", "big", 1, price))
    assert [lease for lease in scattered.ledger.live_leases() if lease.reason == "Moved"] == []
    assert scattered.kept() == []
    won = scattered.ledger.lease_of_bid("whole")
    assert (won is not None) == (why == "free")


def test_agents_of_one_owner_owe_each_other_nothing(scattered: Market) -> None:
    agents = tuple(msgspec.structs.replace(one, owner="one") for one in scattered.world.agents)
    scattered.change(agents=agents)
    scattered.round(bid("next", "a", 1, 2 * PRICE, share="1g.10gb"))
    scattered.claim("next")
    for lease in scattered.ledger.live_leases():
        if lease.bid_uid != "next":
            scattered.leave(lease.bid_uid)
    # Now all that runs was won by that owner.
    other = scattered.lease("next").devices[0]
    scattered.round(
        *(bid(f"f{n}", "b", 1, 2 * PRICE, share="1g.10gb") for n in range(2)), after=MINUTE
    )
    scattered.claim("f0", "f1")
    away = [n for n in ("f0", "f1") if scattered.lease(n).devices[0].whole != other.whole]
    assert len(away) == 1
    scattered.leave(*({"f0", "f1"} - set(away)), after=MINUTE)
    scattered.round(bid("whole", "big", 1, PRICE), after=MINUTE)
    assert scattered.moved().compensation == 0
    assert scattered.lease("whole").charged == 0
