"""A lease's life beyond winning and leaving: terms, renewal, early rounds, restart classes, age."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.bid import BidPhase, BidReason
from bidplane.api.lease import Phase
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.market.clearing import preemption
from bidplane.core.market.model import ONE
from bidplane.core.market.pricing.early import MOST, Bucket, fee
from bidplane.exchange.round import inputs
from bidplane.exchange.snapshot import BidView
from bidplane.ledger import verify
from bidplane.ledger.records import REVENUE, TransferKind, wallet_of

from .market import Market
from .words import CREDIT, PRICE, agent, bid, pool

FLOOR = 100_000


def with_term(made: BidView, seconds: int, **more: Any) -> BidView:
    return msgspec.structs.replace(made, term_seconds=seconds, **more)


def test_a_term_is_held_whole_and_nobody_displaces_it(market: Market) -> None:
    rich = (agent("trainer", refill=1000), agent("chat", refill=1000))
    market.round(with_term(bid("b1", "trainer", 4, PRICE), 600), agents=rich)
    lease = market.lease("b1")
    assert lease.win_price == FLOOR * 125 // 100, "a quarter more than without"
    wallet = next(a for a in market.ledger.accounts() if a.name == "trainer")
    assert wallet.held == 4 * 600 * PRICE // 3600
    market.claim("b1")
    report = market.round(bid("b2", "chat", 4, 100 * PRICE), after=300)
    assert report.bids["b2"].reason is BidReason.NO_FREE_BLOCK
    assert market.lease("b1").price == lease.win_price
    # After its term it is as any other.
    report = market.round(after=301)
    assert [d.lease for d in report.result.displaced] == [lease.id]
    assert market.lease("b1").charged == -(-4 * 601 * lease.win_price // 3600)


def test_a_term_that_does_not_renew_ends_on_time_with_its_notice(market: Market) -> None:
    made = with_term(bid("b1", "trainer", 1, PRICE), 120, renews=False)
    market.round(made)
    market.claim("b1")
    ends = market.now + 120
    market.round(after=89)
    assert market.lease("b1").phase is Phase.ACTIVE
    market.round(after=1)
    lease = market.lease("b1")
    assert (lease.phase, lease.reason) == (Phase.DRAINING, "Expired")
    assert lease.reclaim_at == round(ends * 1000)
    assert lease.compensation == 0


def test_a_term_given_back_early_pays_for_what_it_used(market: Market) -> None:
    market.round(with_term(bid("b1", "trainer", 1, PRICE), 3000))
    market.claim("b1")
    market.leave("b1", after=30)
    assert market.balance("trainer") == 10 * CREDIT - -(-30 * 125_000 // 3600)
    wallet = next(a for a in market.ledger.accounts() if a.name == "trainer")
    assert wallet.held == 0


def test_a_term_the_wallet_cannot_hold_is_refused(market: Market) -> None:
    report = market.round(with_term(bid("b1", "trainer", 4, PRICE), 86_400))
    assert report.bids["b1"].reason is BidReason.WALLET_TOO_SMALL
    assert market.balance("trainer") == 10 * CREDIT


def test_with_a_term_one_competes_with_less(market: Market) -> None:
    """Of two equal bids the one without a term wins, and the other is told what would have."""
    plain = bid("b1", "trainer", 4, 2 * PRICE)
    report = market.round(plain, with_term(bid("b2", "chat", 4, 2 * PRICE), 60))
    assert report.bids["b1"].phase is BidPhase.WON
    assert report.bids["b2"].price_to_win in ("9.00", "9.000002")  # a tie may go either way
    assert "To win now, set" in report.bids["b2"].message


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_what_competes_with_a_price_is_the_least_that_does(price: int, other: int) -> None:
    from bidplane.core.market import Ask

    ask = Ask(id="a", agent="a", owner="a", gpus=1, price=price, premium=25)
    assert ask.with_premium(ask.offered) <= price
    least = ask.with_premium(other)
    assert msgspec.structs.replace(ask, price=least).offered >= other
    assert msgspec.structs.replace(ask, price=least - 1).offered < other


def test_an_early_round_costs_a_fee_once(market: Market) -> None:
    market.round()
    made = msgspec.structs.replace(bid("b1", "trainer", 2, PRICE), urgent=True)
    market.change(bids=(made,))
    market.now += 0.1
    paid = fee(PRICE, 2 * GPU_WEIGHT)
    for _ in range(2):
        market.engine.run_round(market.world, market.now, frozenset({"b1"}))
    assert market.lease("b1").phase is Phase.PENDING
    assert market.balance("trainer") == 10 * CREDIT - paid
    fees = [t for t in market.ledger.transfers_of(REVENUE) if t.kind is TransferKind.EARLY]
    assert [t.amount for t in fees] == [paid]


def test_an_early_round_may_take_the_last_of_a_wallet(market: Market) -> None:
    made = msgspec.structs.replace(bid("b1", "trainer", 2, PRICE), urgent=True)
    exactly = msgspec.structs.replace(agent("trainer"), refill=fee(PRICE, 2 * GPU_WEIGHT))
    market.change(bids=(made,), agents=(exactly,))
    market.engine.run_round(market.world, market.now, frozenset({"b1"}))
    assert market.balance("trainer") == 0


def test_an_owner_may_not_call_rounds_for_ever() -> None:
    bucket: Bucket | None = Bucket()
    for n in range(MOST):
        assert bucket is not None
        bucket = bucket.take(1_000_000 + n)
    assert bucket is not None
    assert bucket.take(1_000_100) is None
    assert bucket.take(1_000_000 + 10_000) is not None


@given(st.lists(st.integers(0, 30_000), max_size=60))
def test_a_bucket_gives_no_more_than_it_fills(waits: list[int]) -> None:
    bucket, now, taken = Bucket(), 1_000_000, 0
    for wait in waits:
        now += wait
        left = bucket.take(now)
        if left is not None:
            bucket, taken = left, taken + 1
    assert taken <= MOST + (now - 1_000_000) // 10_000 + 1


def test_a_heavy_restart_ranks_higher_and_pays_more_levy(market: Market) -> None:
    heavy = msgspec.structs.replace(agent("trainer"), heavy=True)
    terms = msgspec.structs.replace(pool(), heavy_restart_seconds=180)
    market.round(
        bid("b1", "trainer", 2, PRICE),
        bid("b2", "chat", 2, PRICE),
        agents=(heavy, agent("chat")),
        pools=(terms,),
    )
    market.claim("b1", "b2")
    market.round(after=100)
    weights = {i.agent: i.weight for i in market.engine_input().incumbents}
    assert weights["trainer"] > weights["chat"]
    assert max(weights.values()) <= preemption.MOST_WEIGHT == 3 * ONE
    assert market.lease("b1").levy_percent == 5 * 210 // 60
    assert market.lease("b2").levy_percent == 5
    market.leave("b1", "b2")
    levies = {
        t.lease: t.amount
        for t in market.ledger.transfers_of("fund/h100")
        if t.kind is TransferKind.LEVY
    }
    assert max(levies.values()) > 3 * min(levies.values())


@pytest.fixture
def heavy(market: Market) -> Market:
    market.round(
        agents=(msgspec.structs.replace(agent("trainer"), heavy=True), agent("chat")),
        pools=(msgspec.structs.replace(pool(), heavy_restart_seconds=180),),
    )
    return market


def start(market: Market, uid: str, seconds: float) -> int:
    """A lease whose pod was ready after so long; returns the restart it is ranked with."""
    market.round(bid(uid, "trainer", 4, PRICE))
    market.claim(uid)
    market.round(after=seconds)
    market.round(up=market.world.up | {market.lease(uid).id}, after=0)
    market.leave(uid)
    market.change(bids=())
    return market.lease(uid).restart_seconds


def test_who_says_heavy_and_starts_at_once_is_light(heavy: Market) -> None:
    """Its word counts until three starts were seen; then what was seen does."""
    assert [start(heavy, f"b{n}", 5) for n in range(4)] == [180, 180, 180, 30]
    assert heavy.lease("b3").levy_percent == 5, "and it pays the light levy"
    # Its policy may say so again, after it has said otherwise.
    said = heavy.world.agents
    light = tuple(msgspec.structs.replace(one, heavy=False) for one in said)
    heavy.round(agents=light)
    heavy.change(agents=said)
    assert start(heavy, "b4", 5) == 180


def test_who_starts_as_slowly_as_it_says_stays_heavy(heavy: Market) -> None:
    assert [start(heavy, f"b{n}", 120) for n in range(6)] == [180] * 6


def test_a_start_is_counted_once_and_only_of_a_lease_that_runs(heavy: Market) -> None:
    heavy.round(bid("b1", "trainer", 4, PRICE))
    heavy.round(up=frozenset({heavy.lease("b1").id}))
    assert heavy.lease("b1").up_at == 0
    heavy.claim("b1")
    heavy.round(after=7)
    heavy.round()
    wallet = heavy.ledger.account(wallet_of("uid-trainer"))
    assert wallet is not None
    assert (wallet.starts, heavy.lease("b1").up_at > 0) == (1, True)


def test_the_bids_of_an_owner_share_their_age(monkeypatch: pytest.MonkeyPatch) -> None:
    old = [bid(f"b{n}", name, 1, PRICE, created=n) for n, name in enumerate("aabc", start=1)]
    owners = [agent("a", owner="ann"), agent("b", owner="ann"), agent("c", owner="carl")]
    ages = inputs._ages(old, owners, 1000 * 1800 * 10)
    assert [ages[f"b{n}"] for n in (1, 2, 3, 4)] == [512, 256, 170, 512]
    monkeypatch.setattr(inputs, "STANDING_MOST", 2)
    assert "b3" not in inputs._ages(old, owners, 0)


def test_an_owner_with_too_many_bids_waits_with_the_newest(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "STANDING_MOST", 1)
    report = market.round(
        bid("b1", "trainer", 4, PRICE, created=1), bid("b2", "trainer", 4, PRICE, created=2)
    )
    assert report.bids["b2"].reason is BidReason.TOO_MANY_BIDS
    assert report.bids["b2"].phase is BidPhase.WAITING


def test_a_bid_raised_while_its_lease_runs_keeps_it(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    raised = msgspec.structs.replace(market.world.bids[0], price=3 * PRICE)
    market.round(bids=(raised,))
    lease = market.lease("b1")
    assert (lease.max_price, lease.price) == (3 * PRICE, FLOOR)
    wallet = next(a for a in market.ledger.accounts() if a.name == "trainer")
    assert wallet.held == 4 * 60 * 3 * PRICE // 3600, "an epoch at what it offers now"
    # Twice its first bid would have displaced it; now it pays what staying costs.
    report = market.round(bid("b2", "chat", 4, 2 * PRICE), after=60)
    assert not report.result.displaced
    assert PRICE < market.lease("b1").price < 2 * PRICE
    assert verify(market.path).is_sound


def test_a_bid_lowered_while_its_lease_runs_changes_nothing(market: Market) -> None:
    """Or who means to leave would let itself be displaced, and be compensated for it."""
    market.round(bid("b1", "trainer", 4, 2 * PRICE))
    market.claim("b1")
    before = market.lease("b1")
    lowered = msgspec.structs.replace(market.world.bids[0], price=PRICE)
    report = market.round(bid("b2", "chat", 4, 2 * PRICE), bids=(lowered,))
    assert market.lease("b1") == before
    assert not report.result.displaced


def test_a_bid_is_not_raised_beyond_what_its_wallet_can_hold(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    before = market.lease("b1")
    raised = msgspec.structs.replace(market.world.bids[0], price=1000 * PRICE)
    market.round(bids=(raised,))
    assert market.lease("b1") == before


def test_only_the_alternative_that_won_is_raised(market: Market) -> None:
    other = bid("b1", "trainer", 2, 9 * PRICE)
    made = msgspec.structs.replace(bid("b1", "trainer", 4, PRICE), otherwise=(other,))
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    market.round(bids=(made,))
    assert market.lease("b1").max_price == PRICE


def test_a_hold_is_renewed_when_it_covers_less_than_a_notice_and_not_before(
    market: Market,
) -> None:
    """60 s are held; a notice of 30 s and one late round must stay covered, 32 s."""
    market.change(pools=(pool(floor=PRICE),), agents=(agent("trainer", refill=1000),))
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    held = []
    for _ in range(29):
        market.round()
        held.append(market.lease("b1").holds)
    assert held[27] == held[0] < held[28]
