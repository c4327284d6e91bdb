"""All GPUs of one link domain, however many those are: sold whole, or not at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api.kinds import BID
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.bidding.asks import problems
from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.exchange.instantsales import is_instant
from bidplane.exchange.snapshot import BidView
from bidplane.ledger import leases
from bidplane.ledger.rounds import explain_bid

from .market import Market
from .words import PRICE, agent, bid, gpus, movable, pool


def all_of_one(uid: str, who: str, price: int = PRICE, **more: Any) -> BidView:
    return msgspec.structs.replace(bid(uid, who, 1, price), whole_domain=True, **more)


@pytest.fixture
def fours(market: Market) -> Market:
    market.round(
        agents=(agent("a", refill=1000), agent("b", refill=1000)),
        devices=(*gpus(4, node="n1"), *gpus(4, node="n2")),
    )
    return market


def test_it_is_all_of_a_domain_and_all_of_it_is_paid_for(fours: Market) -> None:
    fours.round(bid("one", "b", 1, PRICE))
    report = fours.round(all_of_one("x", "a"))
    lease = fours.lease("x")
    assert (lease.gpus, len({d.node for d in lease.devices})) == (4, 1)
    assert lease.node != fours.lease("one").node
    assert report.bids["x"].message == "won 4 GPUs in h100 at 0.10 per GPU-hour"
    hold = fours.ledger.hold(lease.hold)
    assert hold is not None
    assert hold.amount == leases.hold_for(PRICE, 4 * GPU_WEIGHT, pool().terms)
    verdict = explain_bid(fours.ledger, "x")
    assert verdict is not None
    assert verdict.sentence.startswith("won 4 GPUs in h100 at 0.10 per GPU-hour, 0.40 an hour;")


def test_where_a_part_of_each_is_leased_it_waits_or_displaces(fours: Market) -> None:
    fours.round(*(bid(f"one-{i}", "b", 3, PRICE) for i in range(2)))
    fours.claim("one-0", "one-1")
    report = fours.round(all_of_one("x", "a"))
    assert (report.bids["x"].phase, report.bids["x"].gpus_sold) == ("Waiting", 4)
    report = fours.round(all_of_one("y", "a", 10 * PRICE))
    assert report.bids["y"].phase == "Won"


def test_the_least_it_must_have_is_kept(fours: Market) -> None:
    report = fours.round(all_of_one("x", "a", gpus=8))
    assert report.bids["x"].reason == "LargerThanEveryDomain"


def test_domains_that_differ_or_are_no_block_are_not_sold_whole(market: Market) -> None:
    """A block of four may be half of an eight: nobody could promise that it is all of one."""
    market.round(agents=(agent("a", refill=1000),))
    for devices in (
        (*gpus(4, node="n1"), *gpus(8, node="n2")),
        gpus(3, node="n1"),
    ):
        report = market.round(bids=(all_of_one("x", "a"),), devices=devices)
        assert (report.bids["x"].phase, report.bids["x"].reason) == (
            "Refused",
            "ConstraintNotSold",
        )
        assert "add that size to its chain" in report.bids["x"].message
    threes = msgspec.structs.replace(pool(), chain=(3, 1))
    report = market.round(pools=(threes,))
    assert report.bids["x"].phase == "Won"
    assert market.lease("x").gpus == 3


def test_a_gang_of_them(fours: Market) -> None:
    fours.round(all_of_one("x", "a", blocks=2))
    assert (fours.lease("x").gpus, fours.lease("x").parts) == (8, (4, 4))


def test_one_gpu_of_the_float_is_not_all_of_a_domain() -> None:
    assert not is_instant(all_of_one("x", "a", instant=True))
    assert is_instant(msgspec.structs.replace(bid("x", "a", 1, PRICE), instant=True))


def test_a_raise_is_for_all_of_it(fours: Market) -> None:
    fours.round(all_of_one("x", "a"))
    fours.claim("x")
    fours.round(bids=(all_of_one("x", "a", 3 * PRICE),))
    assert fours.lease("x").max_price == 3 * PRICE


@pytest.mark.parametrize(
    "more", [{"spread": True}, {"share": "1/2"}, {"oneNode": True}, {"also": [{"gpus": 1}]}]
)
def test_it_goes_with_nothing_else(more: dict[str, Any]) -> None:
    spec = {"gpus": 1, "maxPrice": "1.00", "wholeDomain": True, **more}
    found = problems(BID, {"metadata": {"name": "x"}, "spec": spec})
    assert any("wholeDomain asks for a whole link domain" in one for one in found)


def test_who_moves_takes_up_a_whole_domain_again(market: Market) -> None:
    market.round(
        agents=(movable("a"), agent("b", refill=1000)),
        devices=(*gpus(4, node="n1"), *gpus(4, node="n2")),
    )
    market.round(all_of_one("x", "a"))
    market.claim("x")
    moved = market.lease("x")
    with market.ledger.commit(round(market.now * 1000) + 1000) as commit:
        leases.notice(commit, moved.id, LeaseEvent.MOVED)
        other = tuple(d.device for d in market.world.devices if d.device.node != moved.node)
        leases.reserve_devices(commit, moved.id, domain=f"{other[0].node}/nvlink-0", devices=other)
    market.now += 2
    market.leave("x")
    market.round(bids=(all_of_one("again", "a"),))
    assert market.lease("again").devices == other
