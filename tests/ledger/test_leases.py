"""A lease and its money: what is held, metered, billed, compensated and given back."""

from __future__ import annotations

import pytest

from bidplane.api.lease import Phase
from bidplane.core.leases.lifecycle import LeaseError, LeaseEvent
from bidplane.ledger import leases
from bidplane.ledger.commit import BrokenPromise, Overdraft
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import REVENUE, Lease, fund_of, lease_id
from bidplane.ledger.reports.statement import statement
from bidplane.ledger.store import LedgerStore

from .words import CREDIT, MILLI, PRICE, balance, check, held, open_wallet, win


def lease(ledger: Ledger, bid: str = "b1") -> Lease:
    found = ledger.lease_of_bid(bid)
    assert found is not None
    return found


def running(ledger: Ledger, *, price: int = PRICE, owed: int = 0) -> str:
    """A lease of one GPU, active since second 10."""
    open_wallet(ledger)
    with ledger.commit(5_000) as commit:
        id = win(commit, price=price, owed=owed).id
    with ledger.commit(10_000) as commit:
        leases.claim(commit, id)
    return id


def test_winning_holds_an_epoch_at_the_highest_price(ledger: Ledger) -> None:
    open_wallet(ledger)
    with ledger.commit(1) as commit:
        win(commit, gpus=2, price=PRICE // 2)
    assert held(ledger) == 2 * 60 * MILLI
    assert balance(ledger) == 10 * CREDIT


def test_the_leases_of_one_work_are_those_of_this_commit_too(ledger: Ledger) -> None:
    open_wallet(ledger)
    with ledger.commit(1) as commit:
        first = win(commit, "b1")
    with ledger.commit(2) as commit:
        second = win(commit, "b2", first=1)
        leases.claim(commit, first.id)
        same = commit.leases_for(first.wallet, first.work)
        assert {lease.id: lease.phase for lease in same} == {
            first.id: Phase.ACTIVE,
            second.id: Phase.PENDING,
        }
        assert commit.leases_for(first.wallet, "other") == []


def test_a_bid_wins_once(ledger: Ledger, store: LedgerStore) -> None:
    running(ledger)
    with pytest.raises(BrokenPromise), ledger.commit(20_000) as commit:
        win(commit, "b1", first=1)
    check(store)


def test_nothing_is_charged_before_the_claim(ledger: Ledger) -> None:
    open_wallet(ledger)
    with ledger.commit(0) as commit:
        id = win(commit).id
    assert lease(ledger).meter(50_000).due == 0
    with ledger.commit(59_000) as commit:
        leases.claim(commit, id)
    assert lease(ledger).meter(60_001).due == 2 * MILLI


def test_every_started_second_is_billed_at_release(ledger: Ledger, store: LedgerStore) -> None:
    id = running(ledger)
    with ledger.commit(24_200) as commit:
        leases.release(commit, id, LeaseEvent.LEFT)
    assert balance(ledger) == 10 * CREDIT - 15 * MILLI
    assert held(ledger) == 0
    revenue, fund = ledger.account(REVENUE), ledger.account(fund_of("h100"))
    assert revenue is not None
    assert fund is not None
    assert revenue.posted == 15 * MILLI * 95 // 100
    assert fund.posted - CREDIT == 15 * MILLI * 5 // 100
    check(store)


def test_an_early_release_pays_the_minimum(ledger: Ledger) -> None:
    id = running(ledger)
    with ledger.commit(11_000) as commit:
        leases.release(commit, id, LeaseEvent.LEFT)
    assert balance(ledger) == 10 * CREDIT - 10 * MILLI


def test_a_preemptor_pays_what_it_caused_beside_its_rent(ledger: Ledger) -> None:
    id = running(ledger, owed=42 * MILLI)
    with ledger.commit(22_000) as commit:
        leases.release(commit, id, LeaseEvent.LEFT)
    assert balance(ledger) == 10 * CREDIT - 42 * MILLI - 12 * MILLI
    assert (lease(ledger).charged, lease(ledger).displacement) == (54 * MILLI, 42 * MILLI)


def test_a_preemptor_that_leaves_early_pays_the_minimum_too(ledger: Ledger) -> None:
    id = running(ledger, owed=42 * MILLI)
    with ledger.commit(11_000) as commit:
        leases.release(commit, id, LeaseEvent.LEFT)
    assert balance(ledger) == 10 * CREDIT - 42 * MILLI - 10 * MILLI


def test_a_change_of_price_charges_each_second_at_its_own(ledger: Ledger) -> None:
    id = running(ledger)
    with ledger.commit(20_000) as commit:
        leases.reprice(commit, id, PRICE // 2)
    transfers = len(ledger.transfers_of(REVENUE))
    with ledger.commit(40_000) as commit:
        leases.release(commit, id, LeaseEvent.LEFT)
    assert balance(ledger) == 10 * CREDIT - 20 * MILLI
    assert transfers == 0, "a change of price moves no money"


def test_a_price_above_the_bid_is_refused(ledger: Ledger) -> None:
    id = running(ledger)
    with pytest.raises(BrokenPromise), ledger.commit(20_000) as commit:
        leases.reprice(commit, id, PRICE + 1)


def test_settling_bills_and_holds_the_next_epoch(ledger: Ledger, store: LedgerStore) -> None:
    id = running(ledger)
    with ledger.commit(38_000) as commit:
        assert not leases.needs_settling(commit, lease(ledger))
    with ledger.commit(39_000) as commit:  # less than the notice and a late round is left
        assert leases.needs_settling(commit, lease(ledger))
        assert leases.settle(commit, id) is None
    assert balance(ledger) == 10 * CREDIT - 29 * MILLI
    assert held(ledger) == 60 * MILLI
    assert lease(ledger).charged == 29 * MILLI
    check(store)


def test_a_cheap_lease_is_settled_at_the_end_of_its_epoch(ledger: Ledger) -> None:
    running(ledger, price=1)
    with ledger.commit(69_999) as commit:
        assert not leases.needs_settling(commit, lease(ledger))
    with ledger.commit(70_000) as commit:
        assert leases.needs_settling(commit, lease(ledger))


def test_who_cannot_top_up_drains_on_what_was_held(ledger: Ledger, store: LedgerStore) -> None:
    open_wallet(ledger, credits=1)
    with ledger.commit(0) as commit:
        id = win(commit, gpus=8).id  # holds 0.48 of 1 credit
        leases.claim(commit, id)
    with ledger.commit(29_000) as commit:
        assert leases.settle(commit, id) is None  # 0.768 left, 0.48 held
    with ledger.commit(58_000) as commit:
        assert leases.settle(commit, id) is None
        assert balance(ledger) > 0
    with ledger.commit(87_000) as commit:
        assert leases.settle(commit, id) is LeaseEvent.UNFUNDED
        leases.notice(commit, id, LeaseEvent.UNFUNDED)
    assert lease(ledger).reclaim_at == 117_000
    with ledger.commit(500_000) as commit:
        leases.release(commit, id, LeaseEvent.LEFT)
    # 87 s of running and 30 s of notice, eight GPUs: rent ran to the end of the notice.
    assert balance(ledger) == CREDIT - 117 * 8 * MILLI
    check(store)


def test_time_beyond_the_hold_is_charged_for_an_hour(ledger: Ledger) -> None:
    id = running(ledger)
    with ledger.commit(10_000_000) as commit:  # the exchange was away
        assert leases.settle(commit, id) is LeaseEvent.UNFUNDED
    assert balance(ledger) == 10 * CREDIT - (60 + 3600) * MILLI
    assert lease(ledger).metered == 0


def test_a_displaced_lease_is_billed_compensated_and_given_notice(
    ledger: Ledger, store: LedgerStore
) -> None:
    id = running(ledger)
    with ledger.commit(30_000) as commit:
        leases.notice(commit, id, LeaseEvent.OUTBID, compensation=13 * MILLI)
    after = lease(ledger)
    assert (after.phase, after.reason) == (Phase.DRAINING, "Outbid")
    assert (after.notice_at, after.reclaim_at) == (30_000, 60_000)
    assert balance(ledger) == 10 * CREDIT - 20 * MILLI + 13 * MILLI
    with ledger.commit(35_000) as commit:
        leases.release(commit, id, LeaseEvent.LEFT)
    assert balance(ledger) == 10 * CREDIT - 25 * MILLI + 13 * MILLI
    check(store)


def test_who_waits_is_ready_when_the_last_one_has_left(ledger: Ledger, store: LedgerStore) -> None:
    open_wallet(ledger)
    open_wallet(ledger, "u2")
    with ledger.commit(0) as commit:
        for bid, first in (("a", 0), ("b", 1)):
            leases.claim(commit, win(commit, bid, first=first).id)
    with ledger.commit(20_000) as commit:
        leaving = (lease_id("a"), lease_id("b"))
        for id in leaving:
            leases.notice(commit, id, LeaseEvent.OUTBID)
        win(commit, "c", uid="u2", gpus=2, waits_for=leaving)
    check(store)
    with ledger.commit(21_000) as commit:
        leases.claim(commit, lease_id("c"))
        assert not leases.is_unclaimed(lease(ledger, "c"), 10**9)
    assert lease(ledger, "c").phase is Phase.PENDING  # claimed, not ready
    with ledger.commit(22_000) as commit:
        leases.release(commit, leaving[0], LeaseEvent.LEFT)
    assert not lease(ledger, "c").ready
    with ledger.commit(23_000) as commit:
        leases.release(commit, leaving[1], LeaseEvent.LEFT)
        leases.claim(commit, lease_id("c"))
    assert (lease(ledger, "c").phase, lease(ledger, "c").active_at) == (Phase.ACTIVE, 23_000)
    check(store)


def test_a_lease_that_is_not_claimed_is_late_after_a_minute(ledger: Ledger) -> None:
    open_wallet(ledger)
    with ledger.commit(5_000) as commit:
        win(commit)
    assert not leases.is_unclaimed(lease(ledger), 64_999)
    assert leases.is_unclaimed(lease(ledger), 65_000)


def test_what_the_table_forbids_changes_nothing(ledger: Ledger, store: LedgerStore) -> None:
    id = running(ledger)
    with pytest.raises(LeaseError), ledger.commit(20_000) as commit:
        leases.release(commit, id, LeaseEvent.UNCLAIMED)
    assert lease(ledger).phase is Phase.ACTIVE
    check(store)


def test_a_win_that_cannot_be_held_is_refused(ledger: Ledger, store: LedgerStore) -> None:
    open_wallet(ledger, credits=1)
    with pytest.raises(Overdraft), ledger.commit(1) as commit:
        _ = [win(commit, f"b{n}", gpus=8, first=8 * n) for n in range(3)]
    assert ledger.live_leases() == []
    check(store)


def test_a_statement_adds_up_and_shows_what_accrues(ledger: Ledger) -> None:
    id = running(ledger)
    with ledger.commit(39_000) as commit:
        leases.settle(commit, id)
    found = statement(ledger, "u1", now=45_000)
    assert found is not None
    assert [line.kind for line in found.lines] == ["fund", "rent", "levy"]
    assert sum(line.amount for line in found.lines) == found.balance == balance(ledger)
    assert found.lines[-1].balance == found.balance
    assert found.accruing == 6 * MILLI
    assert found.held == 60 * MILLI
    assert found.lines[1].text == f"rent of lease-{id}"
    assert statement(ledger, "nobody", now=0) is None
