"""
Bids that would rather pay the float's price than wait for a round: served at once, or in the
next round as any other; never twice, whoever dies in between.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.ranges import overlap
from bidplane.exchange.engine import Engine
from bidplane.exchange.instantsales import NoSale
from bidplane.exchange.snapshot import BidView
from bidplane.exchange.views import explanation
from bidplane.ledger import Ledger
from bidplane.ledger.records import Lease, TransferKind, lease_id
from bidplane.ledger.rounds import explain_bid

from .market import Market
from .words import CREDIT, PRICE, agent, bid, gpus, parted, pool

FIRST = 105_000  # five hundredths above what a round would ask


@pytest.fixture
def floating(market: Market) -> Market:
    """Five machines of eight, of which five hundredths are kept: two GPUs."""
    devices = tuple(d for n in range(5) for d in gpus(8, node=f"n{n}"))
    market.round(
        pools=(parted(msgspec.structs.replace(pool(), float_percent=5)),),
        devices=devices,
        agents=(agent("trainer", refill=1000), agent("chat", refill=1000)),
    )
    return market


def instant(uid: str, price: int = PRICE, **more: Any) -> BidView:
    made = bid(uid, "chat", more.pop("gpus", 1), price, share=more.pop("share", ""))
    return msgspec.structs.replace(made, instant=True, **more)


def serve(market: Market, wanted: BidView, **changes: Any) -> Lease | NoSale:
    view = next(agent for agent in market.world.agents if agent.name == wanted.agent)
    view = msgspec.structs.replace(view, **changes)
    return market.engine.desk.serve(wanted, view, now=round(market.now * 1000))


def sold(market: Market, wanted: BidView) -> Lease:
    lease = serve(market, wanted)
    assert isinstance(lease, Lease), lease
    return lease


def refused(market: Market, wanted: BidView, **changes: Any) -> str:
    head = market.ledger.head
    lease = serve(market, wanted, **changes)
    assert isinstance(lease, NoSale)
    assert market.ledger.head == head, "a refusal moved something"
    return lease.reason


def test_it_has_its_lease_before_any_round(floating: Market) -> None:
    lease = sold(floating, instant("b1"))
    assert (lease.id, lease.win_price, lease.instant) == (lease_id("b1"), FIRST, True)
    assert (lease.bid_name, lease.bid_namespace) == ("b1", "agent-chat")
    report = floating.round(instant("b1"))
    assert report.bids["b1"].phase == "Won"
    assert report.bids["b1"].message == (
        "bought 1 GPU in h100 at once, at its instant price of 0.105"
    )
    assert not report.result.won, "it won again"


def test_asked_again_it_is_the_same_lease(floating: Market) -> None:
    """Heard of again after a restart, in a watch that began anew: a bid wins once."""
    lease = sold(floating, instant("b1"))
    head = floating.ledger.head
    assert sold(floating, instant("b1")).id == lease.id
    floating.restart()
    assert sold(floating, instant("b1")).id == lease.id
    assert floating.ledger.head == head


def test_where_the_float_is_empty_or_too_dear_it_waits_for_the_round(floating: Market) -> None:
    assert refused(floating, instant("b1", FIRST - 1)) == "PriceTooLow"
    report = floating.round(instant("b1", FIRST - 1))
    assert [won.price for won in report.result.won] == [100_000], "the round asks for less"
    for n in range(2):
        sold(floating, instant(f"c{n}"))
    assert refused(floating, instant("c3")) == "SoldOut"
    assert floating.round(instant("c3")).bids["c3"].phase == "Won"


def test_parts_of_a_gpu_are_cut_from_one(floating: Market) -> None:
    leases = [sold(floating, instant(f"b{n}", share="1/2")) for n in range(2)]
    assert leases[0].devices[0].whole == leases[1].devices[0].whole
    first, second = (lease.devices[0].units for lease in leases)
    assert not overlap(first, second)
    assert [lease.weight for lease in leases] == [GPU_WEIGHT // 2, GPU_WEIGHT // 2]


@pytest.mark.parametrize(
    "wanted",
    [
        msgspec.structs.replace(instant("b1"), instant=False),
        instant("b1", gpus=2),
        instant("b1", blocks=2),
        instant("b1", term_seconds=600),
        instant("b1", deadline=1),
        instant("b1", problem="maxPrice: 'x' is not a price"),
        instant("b1", selector="true"),
        instant("b1", distinct_attribute="uuid"),
        instant("b1", pool="nowhere"),
        instant("b1", share="1g.10gb"),
        instant("b1", otherwise=(instant("b1", gpus=2),)),
    ],
)
def test_what_a_float_does_not_sell_waits_for_the_round(floating: Market, wanted: BidView) -> None:
    assert refused(floating, wanted) == "SoldOut"


def test_money_rules_are_those_of_any_bid(floating: Market) -> None:
    assert refused(floating, instant("b1", 10**6 * CREDIT)) == "WalletTooSmall"
    assert refused(floating, instant("b1"), suspended=True) == "SoldOut"
    assert refused(floating, instant("b1"), deleting=True) == "SoldOut"
    assert refused(floating, instant("b1"), uid="nobody") == "WalletTooSmall"


def test_of_alternatives_it_buys_what_gains_most(floating: Market) -> None:
    """Half a GPU at four times the price of a whole one gains more than the whole one."""
    half = instant("b1", 4 * PRICE, share="1/2")
    lease = sold(floating, instant("b1", PRICE, otherwise=(half,)))
    assert (lease.share, lease.max_price) == ("0.5", 4 * PRICE)


def test_a_heavy_agent_pays_its_levy_here_too(floating: Market) -> None:
    light, heavy = instant("b1"), instant("b2")
    floating.change(
        pools=(msgspec.structs.replace(floating.world.pools[0], heavy_restart_seconds=180),)
    )
    floating.round()
    assert sold(floating, light).levy_percent == 5
    lease = serve(floating, heavy, heavy=True)
    assert isinstance(lease, Lease)
    assert (lease.levy_percent, lease.restart_seconds) == (17, 180)


def test_no_gpu_is_kept_from_a_bid_that_offers_what_it_costs(floating: Market) -> None:
    """The rest is leased for a term; the float is what is left, and it is not in the round."""
    held = bid("all", "trainer", 38, PRICE)
    floating.round(msgspec.structs.replace(held, spread=True, term_seconds=600))
    floating.claim("all")
    plain = msgspec.structs.replace(instant("plain"), instant=False)
    report = floating.round(instant("low", FIRST), plain, instant("high"))
    assert [win.ask for win in report.result.won] == []
    phases = {uid: status.phase for uid, status in report.bids.items()}
    assert (phases["high"], phases["low"], phases["plain"]) == ("Won", "Waiting", "Waiting")
    assert floating.lease("high").instant


def test_explained_though_no_round_decided_it(floating: Market) -> None:
    sold(floating, instant("b1"))
    found = explain_bid(floating.ledger, "b1")
    assert found is not None
    assert (found.round, found.sentence) == (
        0,
        "bought 1 GPU in h100 at once, at its instant price of 0.105, 0.105 an hour;"
        " it offered 3.60",
    )
    mine = explanation(floating.ledger, "b1", agent="chat")
    assert mine is not None
    assert (mine.price, mine.round, mine.lease) == ("0.105", 0, f"lease-{lease_id('b1')}")
    assert explanation(floating.ledger, "b1", agent="trainer") is None


def test_another_exchange_on_the_ledger_is_not_sold_over(floating: Market) -> None:
    """The float is memory. Whoever else has sold from it since is found out before a sale."""
    other = Ledger.open(floating.path, durable=False)
    rival = Engine(other)
    taken = tuple(bid(f"r{n}", "trainer", 8, PRICE) for n in range(5))
    rival.run_round(
        msgspec.structs.replace(
            floating.world,
            bids=taken,
            pools=(msgspec.structs.replace(floating.world.pools[0], float_percent=0),),
        ),
        floating.now,
    )
    other.close()
    assert refused(floating, instant("b1")) == "SoldOut"
    assert not floating.engine.desk.floats


def test_what_else_is_written_closes_no_float(floating: Market) -> None:
    """A wallet that is funded between two rounds is no reason not to sell."""
    with floating.ledger.commit(round(floating.now * 1000)) as commit:
        commit.transfer("gift", TransferKind.FUND, debit="mint", credit="wallet/uid-chat", amount=1)
    sold(floating, instant("b1"))


def test_serving_takes_less_than_a_millisecond_of_cpu(market: Market) -> None:
    """The write of an unsynced ledger included; the bound is generous, for shared machines."""
    devices = tuple(d for n in range(125) for d in gpus(8, node=f"n{n}"))
    market.round(
        pools=(msgspec.structs.replace(pool(), float_percent=5),),
        devices=devices,
        agents=(agent("trainer"), agent("chat", refill=10_000)),
    )
    took = []
    for n in range(50):
        before = time.thread_time()
        sold(market, instant(f"b{n}"))
        took.append(time.thread_time() - before)
    print(f"median {1000 * sorted(took)[25]:.2f} ms")
    assert sorted(took)[25] < 0.010


def test_who_offers_less_than_the_float_costs_is_not_even_asked(
    floating: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand that wait beside a float they do not pay for cost a round nothing."""
    asked: list[str] = []
    serve = floating.engine.desk.serve

    def noted(bid: BidView, *args: Any, **more: Any) -> Any:
        asked.append(bid.uid)
        return serve(bid, *args, **more)

    held = msgspec.structs.replace(bid("all", "trainer", 38, PRICE), spread=True)
    floating.round(msgspec.structs.replace(held, term_seconds=600))
    floating.claim("all")
    monkeypatch.setattr(floating.engine.desk, "serve", noted)
    cheap = [instant(f"low-{n}", FIRST - 1) for n in range(20)]
    rich = instant("or-else", 1, otherwise=(instant("or-else", PRICE, share="1/2"),))
    report = floating.round(*cheap, rich)
    assert asked == ["or-else"]
    assert report.bids["or-else"].phase == "Won"
