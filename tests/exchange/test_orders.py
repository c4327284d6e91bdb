"""Instant orders: one GPU from the float, at once, at the posted price, or a named no."""

from __future__ import annotations

import time

import msgspec
import pytest

from bidplane.api.lease import Phase
from bidplane.core.market import clear_round
from bidplane.exchange.instantsales import NoSale
from bidplane.ledger.records import Lease, wallet_of

from .market import Market
from .words import CREDIT, PRICE, agent, bid, gpus, pool

FLOOR = 100_000
FIRST = 105_000  # five hundredths above what a round would ask


@pytest.fixture
def floating(market: Market) -> Market:
    """Five machines of eight, of which five hundredths are kept: two GPUs."""
    devices = tuple(d for n in range(5) for d in gpus(8, node=f"n{n}"))
    market.round(
        pools=(msgspec.structs.replace(pool(), float_percent=5),),
        devices=devices,
        agents=(agent("trainer", refill=1000), agent("chat", refill=1000)),
    )
    return market


def buy(market: Market, name: str = "chat", *, key: str, price: int = PRICE) -> Lease | NoSale:
    wallet = market.ledger.account(wallet_of(f"uid-{name}"))
    assert wallet is not None
    now = round(market.now * 1000)
    return market.engine.desk.buy(wallet, pool="h100", max_price=price, key=key, now=now)


def refused(market: Market, **order: object) -> str:
    head = market.ledger.head
    sale = buy(market, **order)  # type: ignore[arg-type]
    assert isinstance(sale, NoSale)
    assert market.ledger.head == head, "a refusal moved something"
    return sale.reason


def test_it_sells_until_the_float_is_gone_each_dearer(floating: Market) -> None:
    first, second = buy(floating, key="1"), buy(floating, key="2")
    assert isinstance(first, Lease)
    assert isinstance(second, Lease)
    assert (first.win_price, second.win_price) == (FIRST, FIRST + FIRST * 2 // 100)
    assert set(first.devices).isdisjoint(second.devices)
    assert first.instant
    assert refused(floating, key="3") == "SoldOut"
    floating.round()
    again = buy(floating, key="3")
    assert isinstance(again, Lease)
    assert again.devices[0] not in (*first.devices, *second.devices)


def test_the_float_is_not_in_the_round_and_returns_to_the_next(floating: Market) -> None:
    given = floating.engine_input()
    lot = given.lots[0]
    assert (sum(len(d.free) for d in lot.domains), lot.floated) == (38, 2)
    assert clear_round(given).lots[0].leased == 0


def test_a_waiting_block_is_not_broken_for_the_float(floating: Market) -> None:
    floating.change(bids=(bid("b1", "trainer", 8, FLOOR - 1),))
    assert floating.engine_input().lots[0].floated == 0


def test_only_whole_blocks_of_its_own_pool_keep_a_domain_out_of_the_float(
    floating: Market,
) -> None:
    elsewhere = bid("b1", "trainer", 8, FLOOR - 1, pool="a100")
    part = bid("b2", "trainer", 8, FLOOR - 1, share="1/2")
    floating.change(bids=(elsewhere, part))
    assert floating.engine_input().lots[0].floated == 2


def test_refusals_have_names_and_move_nothing(floating: Market) -> None:
    assert refused(floating, key="1", price=FIRST - 1) == "PriceTooLow"
    assert refused(floating, key="1", price=10**6 * CREDIT) == "WalletTooSmall"
    wallet = floating.ledger.account(wallet_of("uid-chat"))
    assert wallet is not None
    none = floating.engine.desk.buy(wallet, pool="nowhere", max_price=PRICE, key="1", now=0)
    assert isinstance(none, NoSale)
    assert none.reason == "NoSuchPool"


def test_one_key_buys_once(floating: Market) -> None:
    first = buy(floating, key="1")
    head = floating.ledger.head
    again = buy(floating, key="1")
    assert isinstance(first, Lease)
    assert isinstance(again, Lease)
    assert again.id == first.id
    assert floating.ledger.head == head
    assert refused(floating, key="1", price=PRICE + 1) == "KeyReused"


def test_it_is_a_lease_like_any_other_after(floating: Market) -> None:
    sale = buy(floating, key="1")
    assert isinstance(sale, Lease)
    floating.round(claimed=frozenset({sale.id}))
    lease = floating.ledger.lease(sale.id)
    assert lease is not None
    assert lease.phase is Phase.ACTIVE
    # No rank from a restart in its first epoch; then as any other.
    assert floating.engine_input().incumbents[0].weight == 1024
    floating.now += 61
    assert floating.engine_input().incumbents[0].weight > 1024
    floating.round(left=frozenset({sale.id}))
    ended = floating.ledger.lease(sale.id)
    assert ended is not None
    assert ended.phase is Phase.RELEASED
    assert ended.charged > 0


def test_an_engine_that_just_started_sells_nothing_yet(floating: Market) -> None:
    floating.restart()
    assert refused(floating, key="1") == "NoSuchPool"


def test_an_order_takes_about_a_millisecond(market: Market) -> None:
    """Of CPU, the write of an unsynced ledger included; generous, for shared machines."""
    devices = tuple(d for n in range(125) for d in gpus(8, node=f"n{n}"))
    market.round(
        pools=(msgspec.structs.replace(pool(), float_percent=5),),
        devices=devices,
        agents=(agent("trainer"), agent("chat", refill=10_000)),
    )
    took = []
    for n in range(50):
        before = time.thread_time()
        assert isinstance(buy(market, key=str(n)), Lease)
        took.append(time.thread_time() - before)
    print(f"median {1000 * sorted(took)[25]:.2f} ms")
    assert sorted(took)[25] < 0.010
