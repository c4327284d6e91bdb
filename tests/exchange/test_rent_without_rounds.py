"""
Rent runs by the clock, also while no round runs.

An agent that stops the exchange must not hold its GPUs for less than they cost. So after a stall
or a restart a lease is billed for the time that has really passed, as far as its wallet goes; if
that does not cover it, the lease gets notice.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bidplane.api.lease import Phase
from bidplane.ledger import verify, wallets
from bidplane.ledger.records import Account

from .market import Market
from .words import CREDIT, agent, bid

RATE = 4 * 100_000 / 3600  # micro-credits a second: 4 GPUs at the floor price
EPOCH = 60


def running(path: Path, credits: int) -> Market:
    """A lease of 4 GPUs that has just become active, in a wallet of `credits` micro-credits."""
    market = Market(path)
    market.round(agents=(agent("eve", refill=0),), bids=())
    with market.ledger.commit(round(market.now * 1000)) as commit:
        wallets.fund(commit, uid="uid-eve", amount=credits, key="start")
    market.round(bid("b0", "eve", 4, 100_000))
    market.claim("b0")
    assert market.lease("b0").phase is Phase.ACTIVE
    return market


def accounts(market: Market) -> dict[str, Account]:
    return {account.id: account for account in market.ledger.accounts()}


def close(market: Market) -> None:
    market.ledger.close()
    report = verify(market.path)
    assert report.is_sound, report.problem


@given(
    gaps=st.lists(st.floats(0.2, 2000.0), min_size=1, max_size=12),
    restarts=st.integers(0, 2**12 - 1),
)
@example(gaps=[508.0, 1.0, 508.0], restarts=0b101)
@settings(max_examples=40, deadline=None)
def test_a_lease_pays_for_every_second_it_ran(gaps: list[float], restarts: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        market = running(Path(folder) / "ledger.db", 100 * CREDIT)
        began = market.now
        for n, gap in enumerate(gaps):
            if restarts >> n & 1:
                market.restart()
            market.round(after=gap)
            assert sum(account.posted for account in accounts(market).values()) == 0
        market.leave("b0", after=0)
        lease, elapsed = market.lease("b0"), market.now - began
        # A started second counts whole; a lease that is given back pays at least ten.
        assert RATE * elapsed - 1 <= lease.charged <= RATE * max(elapsed + 1, 10) + 1
        close(market)


@given(gaps=st.lists(st.floats(0.2, 2000.0), min_size=1, max_size=12), credits=st.integers(0, 300))
@settings(max_examples=40, deadline=None)
def test_nobody_pays_beyond_its_wallet(gaps: list[float], credits: int) -> None:
    """It pays for the time up to what it has, then it has notice; balances stay above zero."""
    with tempfile.TemporaryDirectory() as folder:
        have = round(RATE * (EPOCH + credits)) + 1
        market = running(Path(folder) / "ledger.db", have)
        began, phase = market.now, Phase.ACTIVE
        for gap in gaps:
            market.round(after=gap)
            lease, wallet = market.lease("b0"), accounts(market)["wallet/uid-eve"]
            elapsed = market.now - began
            assert 0 <= wallet.held <= wallet.posted == have - lease.charged
            assert lease.charged <= RATE * (elapsed + 1) + 1
            if phase is Phase.ACTIVE and RATE * (elapsed + 1) > have:
                assert lease.phase is Phase.DRAINING
                assert lease.reason == "Unfunded"
            phase = lease.phase
        close(market)


def test_a_stall_is_billed_at_once_and_the_lease_goes_on(tmp_path: Path) -> None:
    market = running(tmp_path / "ledger.db", 100 * CREDIT)
    market.round(after=508)
    lease = market.lease("b0")
    assert lease.phase is Phase.ACTIVE
    assert lease.charged == pytest.approx(RATE * 508, abs=RATE)
    close(market)


def test_a_wallet_that_cannot_cover_the_stall_is_emptied_and_gets_notice(tmp_path: Path) -> None:
    have = round(RATE * 200)
    market = running(tmp_path / "ledger.db", have)
    market.round(after=508)
    lease = market.lease("b0")
    assert (lease.phase, lease.reason) == (Phase.DRAINING, "Unfunded")
    assert lease.charged == have
    close(market)


def test_a_clock_that_jumped_costs_an_hour_and_no_more(tmp_path: Path) -> None:
    market = running(tmp_path / "ledger.db", 100 * CREDIT)
    market.round(after=10 * 365 * 86400)
    lease = market.lease("b0")
    assert lease.phase is Phase.DRAINING
    assert lease.charged <= RATE * (3600 + EPOCH) + 1
    close(market)


def test_a_budget_is_kept_through_a_stall(tmp_path: Path) -> None:
    market = Market(tmp_path / "ledger.db")
    market.round(agents=(agent("eve", refill=100),))
    budget = round(RATE * 100)
    market.round(replace(bid("b0", "eve", 4, 100_000), budget=budget, work="w"))
    market.claim("b0")
    market.round(after=508)
    lease = market.lease("b0")
    assert lease.phase is Phase.DRAINING
    assert lease.charged <= budget
    close(market)
