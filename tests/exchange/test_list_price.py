"""Bids that name no price: priority times list price, in each pool that they may enter."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.bid import BidPhase
from bidplane.api.pool import PoolSpec, list_price
from bidplane.exchange.round.defaultprices import with_default_price
from bidplane.exchange.snapshot import AgentView, BidView, PoolView, agent_view, pool_view

from .market import Market
from .words import CREDIT, agent, bid, gpus, pool


def listed(name: str, price: int) -> PoolView:
    return msgspec.structs.replace(pool(name), list_price=price)


def ranked(name: str, priority: int) -> AgentView:
    return msgspec.structs.replace(agent(name, refill=1000), priority=priority)


def prices(priced: BidView) -> dict[str, int]:
    return {choice.pool: choice.price for choice in (priced, *priced.otherwise)}


def test_priority_decides_between_bids_that_name_no_price(market: Market) -> None:
    market.change(agents=(ranked("trainer", 1), ranked("chat", 5)), pools=(listed("h100", CREDIT),))
    market.round(bid("low", "trainer", 4, 0))
    assert market.lease("low").max_price == CREDIT
    market.claim("low")
    report = market.round(bid("high", "chat", 4, 0), after=60)
    assert report.bids["high"].phase is BidPhase.WON
    assert market.lease("high").max_price == 5 * CREDIT
    assert [gone.lease for gone in report.result.displaced] == [market.lease("low").id]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 100), min_size=2, max_size=7),
    st.integers(1, 4),
    st.integers(1, 10) | st.just(1000),
)
def test_without_prices_the_highest_priorities_have_the_gpus(
    priorities: list[int], count: int, listed_credits: int
) -> None:
    """All at once, and a later one that is worth twice as much as what it displaces."""
    with tempfile.TemporaryDirectory() as folder:
        market = Market(Path(folder) / "ledger.db")
        agents = [
            msgspec.structs.replace(ranked(f"a{n}", priority), refill=10**15, cap=10**15)
            for n, priority in enumerate(priorities)
        ]
        by_bid = {f"b{n}": priority for n, priority in enumerate(priorities)}
        pools = (listed("h100", listed_credits * CREDIT),)
        market.change(agents=tuple(agents), pools=pools, devices=gpus(count))
        report = market.round(*(bid(f"b{n}", f"a{n}", 1, 0) for n in range(len(priorities))))
        winners = [name for name, told in report.bids.items() if told.phase is BidPhase.WON]
        expected = sorted(priorities, reverse=True)[:count]
        assert sorted((by_bid[name] for name in winners), reverse=True) == expected

        market.claim(*winners)
        late = msgspec.structs.replace(ranked("late", 2 * min(expected)), refill=10**15, cap=10**15)
        market.change(agents=(*agents, late))
        report = market.round(bid("late", "late", 1, 0), after=120)
        assert report.bids["late"].phase is BidPhase.WON
        gone = [outcome.lease for outcome in report.result.displaced]
        if len(winners) < count:
            assert not gone
        else:
            (lease,) = gone
            (displaced,) = [name for name in winners if market.lease(name).id == lease]
            assert by_bid[displaced] == min(expected)
        market.ledger.close()


def test_the_agents_own_price_stands_over_the_default() -> None:
    fixed = msgspec.structs.replace(ranked("chat", 5), max_price=7)
    unpriced = bid("b", "chat", 1, 0, pool="h100")
    assert with_default_price(unpriced, fixed, [listed("h100", CREDIT)]).price == 7
    named = bid("b", "chat", 1, 3, pool="h100")
    assert with_default_price(named, fixed, [listed("h100", CREDIT)]) == named


def test_a_bid_without_a_pool_offers_what_each_pool_lists() -> None:
    pools = [listed("h100", 4 * CREDIT), listed("l40", CREDIT)]
    priced = with_default_price(bid("b", "chat", 1, 0), ranked("chat", 2), pools)
    assert prices(priced) == {"h100": 8 * CREDIT, "l40": 2 * CREDIT}
    same = [listed("h100", 9), listed("l40", 9)]
    assert prices(with_default_price(bid("b", "chat", 1, 0), ranked("chat", 2), same)) == {"": 18}


def test_a_bid_for_several_pools_at_once_offers_the_average_over_its_gpus() -> None:
    pools = [listed("h100", 4 * CREDIT), listed("l40", CREDIT)]
    need = bid("b", "chat", 1, 0, pool="l40")
    joint = msgspec.structs.replace(bid("b", "chat", 2, 0, pool="h100"), also=(need,))
    priced = with_default_price(joint, ranked("chat", 1), pools)
    assert priced.price == 3 * CREDIT


def test_an_alternative_that_names_no_price_has_its_own_pools() -> None:
    pools = [listed("h100", 4 * CREDIT), listed("l40", CREDIT)]
    instead = bid("b", "chat", 1, 0, pool="l40")
    either = msgspec.structs.replace(bid("b", "chat", 1, 9, pool="h100"), otherwise=(instead,))
    priced = with_default_price(either, ranked("chat", 1), pools)
    assert prices(priced) == {"h100": 9, "l40": CREDIT}


@pytest.mark.parametrize(
    ("spec", "price"),
    [({}, 1_000_000), ({"floorPrice": "0.30"}, 3_000_000), ({"listPrice": "2.50"}, 2_500_000)],
)
def test_the_list_price_is_ten_times_the_floor_unless_the_pool_says(
    spec: dict[str, str], price: int
) -> None:
    assert list_price(msgspec.convert({"product": "H100", **spec}, PoolSpec)) == price
    view = pool_view({"metadata": {"name": "h100"}, "spec": {"product": "H100", **spec}})
    assert view is not None
    assert view.list_price == price


def test_an_agent_is_read_with_its_priority_and_without_a_price() -> None:
    spec = {"owner": "ann", "priority": 5}
    view = agent_view({"metadata": {"name": "chat", "uid": "u"}, "spec": spec})
    assert (view.priority, view.max_price) == (5, 0)
