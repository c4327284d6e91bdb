"""Pools that sell blocks of other sizes; and sizes that change while leases run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api.lease import Phase
from bidplane.api.money import GPU_WEIGHT, format_credits
from bidplane.client.asking import quotes
from bidplane.core.devices.chain import CHAIN, Chain
from bidplane.exchange import views
from bidplane.exchange.snapshot import PoolView, pool_view
from bidplane.ledger import leases
from bidplane.ledger.records import Lease
from bidplane.ledger.rounds import explain_bid, replay

from .market import Market
from .words import CREDIT, PRICE, agent, bid, gpus, movable, pool

MINUTE = 61.0


def selling(chain: Chain, **more: Any) -> PoolView:
    return msgspec.structs.replace(pool(), chain=chain, **more)


def rich(name: str) -> Any:
    return agent(name, refill=1000)


@pytest.fixture
def boxes(market: Market) -> Market:
    """Two boxes of three cards, each on one link; sold by threes."""
    market.round(
        pools=(selling((3, 1)),),
        agents=(rich("a"), rich("b")),
        devices=(*gpus(3, node="n1"), *gpus(3, node="n2")),
    )
    return market


def quote(market: Market, count: int) -> list[tuple[str, int, bool, str]]:
    lots = market.engine.run_round(market.world, market.now).result.lots
    prices = views.prices(market.ledger, lots, market.engine.desk)
    account = market.ledger.account("wallet/uid-a")
    assert account is not None
    wallet = views.wallet_view(account, 0)
    found = quotes(prices, wallet, gpus=count)
    return [(q.pool, q.sold_as, q.linked, q.cost_per_hour) for q in found]


def test_three_cards_on_one_link_are_sold_as_one_block(boxes: Market) -> None:
    boxes.round(bid("x", "a", 3, PRICE), bid("y", "b", 3, PRICE))
    for uid in ("x", "y"):
        lease = boxes.lease(uid)
        assert lease.gpus == 3
        assert len({device.node for device in lease.devices}) == 1
    assert boxes.lease("x").node != boxes.lease("y").node


def test_two_are_sold_as_three_and_the_surplus_is_said_and_paid_for(boxes: Market) -> None:
    assert quote(boxes, 2) == [("h100", 3, True, "0.30")]
    report = boxes.round(bid("x", "a", 2, PRICE))
    assert report.bids["x"].message == "won 3 GPUs (asked for 2) in h100 at 0.10 per GPU-hour"
    assert report.bids["x"].gpus_sold == 3
    lease = boxes.lease("x")
    assert (lease.gpus, lease.weight) == (3, 3 * GPU_WEIGHT)
    hold = boxes.ledger.hold(lease.hold)
    assert hold is not None
    assert hold.amount == leases.hold_for(PRICE, 3 * GPU_WEIGHT, pool().terms)
    verdict = explain_bid(boxes.ledger, "x")
    assert verdict is not None
    assert "won 3 GPUs (asked for 2) in h100 at 0.10 per GPU-hour, 0.30 an hour" in verdict.sentence


def test_who_could_hold_what_it_asked_for_must_hold_what_it_is_sold(boxes: Market) -> None:
    boxes.round(agents=(*boxes.world.agents, agent("poor", refill=10)))
    held = {n: leases.hold_for(CREDIT, GPU_WEIGHT * n, pool().terms) for n in (2, 3)}
    price = 10 * CREDIT * CREDIT // held[2]  # all it has, for two
    report = boxes.round(bid("x", "poor", 2, price))
    assert report.bids["x"].reason == "WalletTooSmall"
    short = leases.hold_for(price, GPU_WEIGHT * 3, pool().terms) - boxes.balance("poor")
    assert format_credits(short) in report.bids["x"].message


def test_more_than_the_largest_block_is_refused_and_told_what_is_sold(boxes: Market) -> None:
    report = boxes.round(bid("x", "a", 4, PRICE))
    assert (report.bids["x"].phase, report.bids["x"].reason) == ("Refused", "LargerThanEveryDomain")
    assert "blocks of up to 3 GPUs are sold, each inside one domain" in report.bids["x"].message
    assert quote(boxes, 4) == [("h100", 4, False, "0.40")]


def test_anywhere_they_are_as_few_blocks_as_the_chain_has(boxes: Market) -> None:
    report = boxes.round(msgspec.structs.replace(bid("x", "a", 5, PRICE), spread=True))
    assert report.bids["x"].phase == "Won"
    lease = boxes.lease("x")
    assert (lease.gpus, lease.parts, lease.weight) == (5, (3, 1, 1), 5 * GPU_WEIGHT)


def test_what_is_sold_is_told_with_the_prices(boxes: Market) -> None:
    lots = boxes.round().result.lots
    (price,) = views.prices(boxes.ledger, lots, boxes.engine.desk).pools
    assert price.chain == (3, 1)
    assert list(price.classes) == ["3", "1"]


def test_rounds_replay_with_the_chain_they_had(boxes: Market) -> None:
    report = boxes.round(bid("x", "a", 2, PRICE))
    boxes.round(pools=(selling(CHAIN),))
    (record,) = boxes.ledger.rounds_after(report.round - 1, limit=1)
    assert replay(record).to_the_byte
    assert replay(record).result.won[0].gpus == 3


def test_a_round_saved_before_pools_had_chains_replays(market: Market) -> None:
    market.change(devices=gpus(8))
    report = market.round(bid("x", "trainer", 3, PRICE), bid("y", "chat", 16, PRICE))
    (record,) = market.ledger.rounds_after(report.round - 1, limit=1)
    given, result = msgspec.json.decode(record.input), msgspec.json.decode(record.result)
    for lot in (*given["lots"], *result["lots"]):
        assert lot.pop("chain") == [8, 4, 2, 1]
    for loss in result["lost"]:
        assert loss.pop("largest") == 8
    old = msgspec.structs.replace(
        record, input=msgspec.json.encode(given), result=msgspec.json.encode(result)
    )
    assert replay(old).is_same
    assert not replay(old).to_the_byte


def test_nothing_is_sold_by_a_chain_that_cannot_be_counted() -> None:
    spec = {"product": "H100", "chain": [6, 4, 1]}
    assert pool_view({"metadata": {"name": "h100"}, "spec": spec}) is None
    spec["chain"] = [6, 3, 1]
    view = pool_view({"metadata": {"name": "h100"}, "spec": spec})
    assert view is not None
    assert view.chain == (6, 3, 1)


# A chain that changes while leases run


@pytest.fixture
def fours(market: Market) -> Market:
    """A machine of eight: half of it is leased, in one block of four, sold for three."""
    market.round(
        agents=(movable("a"), rich("b"), rich("big")),
        devices=(*gpus(8, node="n1"), *gpus(3, node="n2")),
    )
    market.round(bid("x", "a", 3, 2 * PRICE, pool="h100"))
    market.claim("x")
    market.round(after=MINUTE)
    assert (market.lease("x").gpus, market.lease("x").node) == (4, "n1")
    return market


def terms_of(lease: Lease) -> tuple[Any, ...]:
    return (lease.devices, lease.weight, lease.max_price, lease.price, lease.phase)


def test_who_runs_keeps_what_it_has_at_its_price(fours: Market) -> None:
    before, balance = terms_of(fours.lease("x")), fours.balance("a")
    fours.round(pools=(selling((3, 1)),))
    for _ in range(3):
        fours.round(after=MINUTE)
    assert terms_of(fours.lease("x")) == before
    paid = balance - fours.balance("a")
    assert 0 < paid < 4 * 200 * CREDIT // 36_000 + 10  # four GPUs, 200 s at 0.10 at most


def test_what_is_left_beside_it_is_sold_by_the_new_sizes(fours: Market) -> None:
    """Four of eight are free: one block of three there, and one on the other machine."""
    fours.round(pools=(selling((3, 1)),))
    report = fours.round(*(bid(f"b{i}", "b", 3, PRICE) for i in range(3)))
    won = [uid for uid, status in report.bids.items() if status.phase == "Won" and uid != "x"]
    assert len(won) == 2
    assert {fours.lease(uid).node for uid in won} == {"n1", "n2"}
    (lost,) = [s for uid, s in report.bids.items() if uid not in (*won, "x")]
    assert lost.reason == "Outbid", "it could have the running one's, for more"
    held = [device for uid in ("x", *won) for device in fours.lease(uid).devices]
    assert len(held) == len(set(held)) == 10


def test_it_competes_where_it_is_and_is_outbid_as_any_other(fours: Market) -> None:
    fours.round(pools=(selling((3, 1)),))
    fours.round(*(bid(f"b{i}", "b", 3, 9 * PRICE) for i in range(3)))
    gone = fours.lease("x")
    assert (gone.phase, gone.reason) == (Phase.DRAINING, "Outbid")
    assert gone.compensation > 0
    waiting = [uid for uid in ("b0", "b1", "b2") if fours.lease(uid).waits_for]
    assert len(waiting) == 1
    fours.leave("x")
    assert fours.lease(waiting[0]).ready


def test_it_is_not_moved(market: Market) -> None:
    """Its next bid for as much would be sold otherwise: what is kept for it would be nobody's."""
    market.round(
        agents=(movable("a"), rich("b")),
        devices=(*gpus(4, node="n1"), *gpus(4, node="n2")),
    )
    market.round(bid("x", "a", 2, 30 * PRICE), bid("y", "a", 2, 30 * PRICE))
    market.claim("x", "y")
    market.round(bid("z", "a", 2, 30 * PRICE))
    market.claim("z")
    market.leave("y")
    assert {market.lease("x").node, market.lease("z").node} == {"n1", "n2"}
    market.round(after=MINUTE)
    three = bid("three", "b", 3, PRICE)
    report = market.round(three, pools=(selling((3, 1)),))
    assert report.bids["three"].phase == "Waiting"
    assert not report.result.moved
    # By the chain it was sold by, room is made.
    report = market.round(pools=(selling(CHAIN),))
    assert report.result.moved


def test_a_raise_is_still_for_what_it_has(fours: Market) -> None:
    """The bid said three, and was sold four. By threes that is another size; it is the same bid."""
    fours.round(pools=(selling((3, 1)),))
    raised = tuple(
        msgspec.structs.replace(b, price=5 * PRICE) if b.uid == "x" else b for b in fours.world.bids
    )
    fours.round(bids=raised)
    assert fours.lease("x").max_price == 5 * PRICE


def test_of_several_alternatives_the_raise_is_the_one_that_won(market: Market) -> None:
    both = msgspec.structs.replace(
        bid("x", "trainer", 4, 2 * PRICE, pool="h100"),
        otherwise=(bid("x", "trainer", 1, 20 * PRICE, pool="h100"),),
    )
    market.round(agents=(rich("trainer"),), bids=(msgspec.structs.replace(both, otherwise=()),))
    market.claim("x")
    market.round(bids=(both,), pools=(selling((3, 1)),))
    assert market.lease("x").max_price == 2 * PRICE, "one GPU is worth more; four are not"


def scattered_fours(market: Market) -> None:
    market.round(
        agents=(movable("a"), movable("c"), rich("big")),
        devices=(*gpus(8, node="n1"), *gpus(8, node="n2")),
    )
    market.round(bid("a1", "a", 4, PRICE), bid("a2", "a", 4, PRICE), bid("c1", "c", 4, PRICE))
    market.claim("a1", "a2", "c1")
    market.leave("a1" if market.lease("a1").node == market.lease("a2").node else "a2")
    market.change(bids=())
    market.round(after=MINUTE)
    market.round(bid("big", "big", 8, PRICE))
    assert market.kept()


def test_what_is_kept_for_who_moved_is_had_by_a_bid_for_exactly_as_much(market: Market) -> None:
    """The chain changed between the notice and the next bid."""
    scattered_fours(market)
    gone, (there,) = market.moved(), market.kept()
    market.round(pools=(selling((3, 1)),))
    market.leave(gone.bid_uid)
    market.round(bid("one", gone.agent, 1, PRICE), bid("four", gone.agent, 4, PRICE))
    assert market.lease("four").devices == there.devices
    assert market.ledger.lease_of_bid("one") is None, "one GPU would have been sold as four"


def test_a_gang_in_one_domain_is_not_moved(market: Market) -> None:
    """Its next bid is for a gang again, and nobody would take up what is kept for one block."""
    market.round(
        agents=(movable("a"), rich("big")),
        devices=(*gpus(8, node="n1"), *gpus(8, node="n2")),
    )
    for uid in ("g1", "g2", "g3"):
        market.round(bid(uid, "a", 2, 30 * PRICE, blocks=2))
        market.claim(uid)
    assert {lease.node for lease in map(market.lease, ("g1", "g2"))} == {"n1"}
    market.leave("g1")
    market.round(after=MINUTE)
    report = market.round(bid("big", "big", 8, PRICE))
    assert report.bids["big"].phase == "Waiting"
    assert not report.result.moved


# The float


def test_the_float_leaves_waiting_threes_whole(market: Market) -> None:
    """Twenty boxes of three: five hundredths are three GPUs, unless somebody waits for threes."""
    boxes = [device for i in range(20) for device in gpus(3, node=f"n{i:02}")]
    floating = selling((3, 1), float_percent=5)
    market.round(agents=(rich("a"),), devices=tuple(boxes), pools=(floating,))
    assert sum(len(f.devices) for f in market.engine.desk.floats.values()) == 3
    market.round(bid("poor", "a", 2, 1))  # sold as three, and below the reserve: it waits
    assert not market.engine.desk.floats


def test_the_float_leaves_alternatives_and_scattered_blocks_whole(market: Market) -> None:
    boxes = [device for i in range(20) for device in gpus(3, node=f"n{i:02}")]
    floating = selling((3, 1), float_percent=5)
    market.round(agents=(rich("a"),), devices=tuple(boxes), pools=(floating,))
    far = bid("far", "a", 1, 1, pool="nowhere")
    far = msgspec.structs.replace(far, otherwise=(bid("far", "a", 3, 1, pool="h100"),))
    market.round(bids=(far,))
    assert not market.engine.desk.floats
    market.round(bids=(msgspec.structs.replace(bid("s", "a", 4, 1), spread=True),))
    assert not market.engine.desk.floats
    market.round(bids=(msgspec.structs.replace(bid("s", "a", 2, 1), spread=True),))
    assert market.engine.desk.floats, "two anywhere are two single ones"
