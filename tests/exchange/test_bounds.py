"""
Bounds on terms and on the float, whatever is bid and in whatever order, across restarts.

What is under terms, and what was bought, is counted here from the leases of the ledger.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.bid import BidPhase, BidReason
from bidplane.api.lease import Phase
from bidplane.exchange.instantsales import NoSale
from bidplane.exchange.snapshot import BidView, PoolView
from bidplane.ledger.records import wallet_of
from effort import effort

from .market import Market
from .words import PRICE, agent, bid, gpus, pool

GPUS = 16
OWNERS = ("ann", "bob", "cat")
AGENTS = tuple(
    agent(f"{owner}-{number}", owner=owner, refill=100_000) for owner in OWNERS for number in (1, 2)
)


def bounded(**more: Any) -> PoolView:
    """A pool with the default bounds."""
    bounds = {"term_percent": 50, "term_owner_percent": 25, "longest_term_seconds": 4 * 3600}
    return msgspec.structs.replace(pool(), **bounds, float_owner_percent=25, **more)


def term_bid(uid: str, agent: str, gpus: int, seconds: int, price: int = PRICE) -> BidView:
    return msgspec.structs.replace(bid(uid, agent, gpus, price), term_seconds=seconds)


def under_terms(market: Market) -> dict[str, int]:
    """GPUs by owner, of leases whose term runs or has yet to begin."""
    counts = dict.fromkeys(OWNERS, 0)
    for lease in market.ledger.live_leases():
        waits = lease.phase is Phase.PENDING and lease.term_seconds > 0
        if waits or round(market.now * 1000) < lease.term_until:
            counts[lease.owner] += len(lease.devices)
    return counts


@pytest.fixture
def machines(market: Market) -> Market:
    """Two machines of eight GPUs, and six agents of three owners."""
    devices = (*gpus(8, node="n1"), *gpus(8, node="n2"))
    market.change(agents=AGENTS, pools=(bounded(),), devices=devices)
    return market


def test_one_owner_has_a_quarter_and_all_owners_half_of_a_lot(machines: Market) -> None:
    report = machines.round(
        term_bid("a1", "ann-1", 2, 600),
        term_bid("a2", "ann-2", 2, 900),
        term_bid("a3", "ann-1", 1, 600, price=PRICE - 1),
        term_bid("b", "bob-1", 4, 600, price=PRICE - 2),
        term_bid("c", "cat-1", 1, 600, price=PRICE - 3),
    )
    won = {name for name, status in report.bids.items() if status.phase is BidPhase.WON}
    assert won == {"a1", "a2", "b"}
    assert {report.bids[name].reason for name in ("a3", "c")} == {BidReason.TERM_BOUND}
    machines.claim("a1", "a2", "b")
    report = machines.round()
    told = report.bids["a3"].message
    assert "of the 16 GPUs of h100, one owner may have 4 under terms" in told
    assert "there is room for it from 1970-01-12T13:56:42" in told, told
    assert "may be 8 under terms" in report.bids["c"].message
    # At that time it wins, and not a second before.
    report = machines.round(after=598)
    assert report.bids["a3"].reason is BidReason.TERM_BOUND
    report = machines.round(after=1)
    assert report.bids["a3"].phase is BidPhase.WON


def test_a_term_longer_than_the_pool_sells_or_larger_than_the_bound_is_refused(
    machines: Market,
) -> None:
    report = machines.round(
        term_bid("long", "ann-1", 1, 4 * 3600 + 1),
        term_bid("wide", "bob-1", 8, 600),
        term_bid("fits", "cat-1", 4, 4 * 3600),
    )
    assert "sells terms of at most 14400 s" in report.bids["long"].message
    assert "it asks for more than that" in report.bids["wide"].message
    assert report.bids["fits"].phase is BidPhase.WON


def test_who_cannot_pay_keeps_nobody_from_a_term(machines: Market) -> None:
    poor = msgspec.structs.replace(agent("poor", owner="poor", refill=1), refill=1000, cap=1000)
    dear = [term_bid(f"p{n}", "poor", 4, 3600, price=9 * PRICE) for n in range(2)]
    report = machines.round(*dear, term_bid("a", "ann-1", 4, 600), agents=(*AGENTS, poor))
    assert report.bids["a"].phase is BidPhase.WON


@pytest.mark.parametrize("count", [1, 3])
def test_of_few_gpus_one_may_have_a_term_claimed_or_not(market: Market, count: int) -> None:
    market.change(agents=AGENTS, pools=(bounded(),), devices=gpus(count))
    assert market.round(term_bid("a", "ann-1", 1, 60)).bids["a"].phase is BidPhase.WON
    assert market.round(term_bid("b", "bob-1", 1, 60)).bids["b"].reason is BidReason.TERM_BOUND
    market.claim("a")
    assert market.round().bids["b"].reason is BidReason.TERM_BOUND


bids = st.tuples(
    st.just("bid"),
    st.integers(0, len(AGENTS) - 1),
    st.sampled_from([1, 1, 1, 2, 3, 4, 8]),
    st.sampled_from([0, 60, 300, 3000, 20_000]),
    st.integers(1, 5),
)
steps = st.one_of(
    bids,
    bids,
    bids,
    st.tuples(st.just("claim"), st.just(0), st.just(0), st.just(0), st.just(0)),
    st.tuples(st.just("leave"), st.integers(0, 30), st.just(0), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.just(0), st.just(0), st.sampled_from([1, 30, 400]), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(0), st.just(0)),
)


@settings(max_examples=effort(20, 500), deadline=None)
@given(st.lists(steps, min_size=5, max_size=25), st.sampled_from([1, 3, 7, 16]))
def test_no_sequence_of_bids_gets_beyond_the_bounds_of_terms(
    sequence: list[tuple[str, int, int, int, int]], count: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        market = Market(Path(folder) / "ledger.db")
        market.change(agents=AGENTS, pools=(bounded(),), devices=gpus(count))
        for number, (act, who, size, seconds, price) in enumerate(sequence):
            if act == "bid":
                made = term_bid(f"b{number}", AGENTS[who].name, size, seconds, price * PRICE)
                market.round(made)
            elif act == "claim":
                live = market.ledger.live_leases()
                market.claim(*(lease.bid_uid for lease in live if lease.phase is Phase.PENDING))
            elif act == "leave":
                market.leave(*(f"b{other}" for other in range(who, number, 3)))
            elif act == "wait":
                market.round(after=seconds)
            else:
                market.restart()
                market.round()
            counts = under_terms(market)
            assert sum(counts.values()) <= max(1, count // 2)
            assert max(counts.values()) <= max(1, count // 4)
            for lease in market.ledger.live_leases():
                assert lease.term_seconds <= 4 * 3600
        market.ledger.close()


def buy(market: Market, name: str, key: str) -> object:
    wallet = market.ledger.account(wallet_of(f"uid-{name}"))
    assert wallet is not None
    desk = market.engine.desk
    now = round(market.now * 1000)
    return desk.buy(wallet, pool="h100", max_price=100 * PRICE, key=key, now=now)


def floating(market: Market, nodes: int) -> None:
    """A pool of which 5 % are float: of 20 machines 8 GPUs, of which 2 are one owner's."""
    devices = tuple(d for n in range(nodes) for d in gpus(8, node=f"n{n:02d}"))
    market.round(pools=(bounded(float_percent=5),), devices=devices, agents=AGENTS)


def test_one_owner_buys_a_quarter_of_the_float_in_a_minute(market: Market) -> None:
    floating(market, 20)
    sales = [buy(market, name, "1") for name in ("ann-1", "ann-2")]
    assert not any(isinstance(sale, NoSale) for sale in sales)
    market.round(after=10)
    market.restart()
    market.round()
    refused = buy(market, "ann-1", "2")
    assert isinstance(refused, NoSale)
    assert refused.reason == "FloatBound"
    assert "25 % of the float of h100" in refused.message
    assert "buy again at 1970-01-12T13:47:41Z" in refused.message, refused.message
    assert not isinstance(buy(market, "bob-1", "1"), NoSale)
    market.round(after=48)
    assert isinstance(buy(market, "ann-1", "3"), NoSale)
    market.round(after=1)
    assert not isinstance(buy(market, "ann-1", "4"), NoSale)


@settings(max_examples=effort(10, 200), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 20), st.booleans(), st.booleans()),
        min_size=5,
        max_size=30,
    ),
    st.sampled_from([3, 20]),
)
def test_no_sequence_of_orders_gets_beyond_the_bound_of_the_float(
    sequence: list[tuple[int, int, bool, bool]], nodes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        market = Market(Path(folder) / "ledger.db")
        floating(market, nodes)
        bound = max(1, 8 * nodes * 5 * 25 // 10_000)
        bought: list[tuple[float, str]] = []
        refusals = 0
        for number, (who, wait, restarts, returns) in enumerate(sequence):
            sale = buy(market, AGENTS[who].name, f"k{number}")
            if isinstance(sale, NoSale):
                refusals += sale.reason == "FloatBound"
            else:
                bought.append((market.now, AGENTS[who].owner))
            for owner in OWNERS:
                recent = [at for at, who_ in bought if who_ == owner and at > market.now - 60]
                assert len(recent) <= bound
            if restarts:
                market.restart()
            left = {lease.id for lease in market.ledger.live_leases()} if returns else set()
            if wait or restarts:
                market.round(after=wait or 1, left=frozenset(left))
        market.ledger.close()
