"""Credits are moved, never made or lost; nobody spends what is not there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.api.money import LARGEST_AMOUNT, LARGEST_SUPPLY
from bidplane.ledger import wallets
from bidplane.ledger.commit import BrokenPromise, Overdraft
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import REVENUE, Hold, TransferKind, wallet_of
from bidplane.ledger.store import ConstraintViolated, LedgerStore
from bidplane.ledger.tables import ACCOUNT, TRANSFER
from bidplane.ledger.wallets import Funding

from .words import CREDIT, balance, check, held, open_wallet

HOUR = 3600 * 1000


def test_a_commit_that_changes_nothing_writes_nothing(ledger: Ledger) -> None:
    open_wallet(ledger)
    head = ledger.head
    with ledger.commit(99):
        pass
    assert ledger.head == head


def test_an_error_undoes_the_whole_commit(ledger: Ledger, store: LedgerStore) -> None:
    open_wallet(ledger)
    head = ledger.head

    def fund_and_fail() -> None:
        with ledger.commit(1) as commit:
            wallets.fund(commit, uid="u1", amount=5, key="k")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fund_and_fail()
    assert ledger.head == head
    assert balance(ledger) == 10 * CREDIT
    check(store)


def test_a_duplicate_key_moves_nothing(ledger: Ledger) -> None:
    open_wallet(ledger)
    for at, expected in ((1, Funding.DONE), (2, Funding.DUPLICATE), (3, Funding.DUPLICATE)):
        with ledger.commit(at) as commit:
            assert wallets.fund(commit, uid="u1", amount=CREDIT, key="k") is expected
    with ledger.commit(4) as commit:
        assert wallets.fund(commit, uid="u1", amount=2, key="k") is Funding.KEY_REUSED
        assert wallets.fund(commit, uid="u1", amount=CREDIT, key="k") is Funding.DUPLICATE
    assert balance(ledger) == 11 * CREDIT


def test_a_transfer_of_the_same_id_is_made_once(ledger: Ledger, store: LedgerStore) -> None:
    open_wallet(ledger)
    made = []
    for amount in (5, 5, 7):
        with ledger.commit(1) as commit:
            for _ in range(2):
                wallet, kind = wallet_of("u1"), TransferKind.RENT
                made.append(commit.transfer("t", kind, debit=wallet, credit=REVENUE, amount=amount))
    assert made == [True, False, False, False, False, False]
    assert balance(ledger) == 10 * CREDIT - 5
    check(store)


def test_an_overdraft_is_refused_by_check(ledger: Ledger, store: LedgerStore) -> None:
    open_wallet(ledger)
    rent, free = TransferKind.RENT, 6 * CREDIT
    with ledger.commit(1) as commit:
        commit.open_hold(Hold(id="part", account=wallet_of("u1"), lease="", amount=4 * CREDIT))
    with pytest.raises(Overdraft), ledger.commit(1) as commit:
        commit.transfer("t", rent, debit=wallet_of("u1"), credit=REVENUE, amount=free + 1)
    with pytest.raises(Overdraft), ledger.commit(1) as commit:
        commit.open_hold(Hold(id="h", account=wallet_of("u1"), lease="", amount=11 * CREDIT))
    check(store)


def test_an_overdraft_is_refused_by_constraint(ledger: Ledger, store: LedgerStore) -> None:
    open_wallet(ledger)
    account = ledger.account(wallet_of("u1"))
    assert account is not None
    for broken in (
        msgspec.structs.replace(account, posted=-1),
        msgspec.structs.replace(account, held=account.posted + 1),
        msgspec.structs.replace(account, held=-1),
    ):
        with pytest.raises(ConstraintViolated), store.transaction():
            store.update(ACCOUNT, broken)
    check(store)


def test_a_transfer_is_never_changed(ledger: Ledger, store: LedgerStore) -> None:
    open_wallet(ledger)
    transfer = ledger.transfers_of(wallet_of("u1"))[0]
    with pytest.raises(ConstraintViolated), store.transaction():
        store.update(TRANSFER, msgspec.structs.replace(transfer, amount=1))


def test_a_hold_is_closed_once(ledger: Ledger) -> None:
    open_wallet(ledger)
    with ledger.commit(1) as commit:
        commit.open_hold(Hold(id="h", account=wallet_of("u1"), lease="", amount=CREDIT))
    assert held(ledger) == CREDIT
    with ledger.commit(2) as commit:
        commit.close_hold(commit.hold("h"), captured=0)
    assert held(ledger) == 0
    with pytest.raises(BrokenPromise), ledger.commit(3) as commit:
        commit.close_hold(commit.hold("h"), captured=0)


def test_a_clock_that_goes_back_is_read_as_standing_still(
    ledger: Ledger, store: LedgerStore
) -> None:
    open_wallet(ledger, at=5000)
    with ledger.commit(1000) as commit:
        assert commit.at == 5000
        wallets.fund(commit, uid="u1", amount=1, key="later")
    check(store)


def test_the_refill_comes_each_hour_up_to_the_cap(ledger: Ledger) -> None:
    def refill(at: int) -> int:
        with ledger.commit(at) as commit:
            wallets.open_wallet(commit, uid="u1", name="trainer", owner="ann")
            return wallets.refill(commit, uid="u1", amount=100, cap=250)

    start = 7000
    assert refill(start) == 100  # at its opening
    assert refill(start) == 0
    assert refill(start + HOUR - 1) == 0
    assert refill(start + HOUR) == 100
    assert refill(start + 2 * HOUR) == 50  # the cap
    assert refill(start + 9 * HOUR) == 0
    assert balance(ledger) == 250


def test_hours_that_were_missed_are_granted_together(ledger: Ledger) -> None:
    with ledger.commit(0) as commit:
        wallets.open_wallet(commit, uid="u1", name="trainer", owner="ann")
        wallets.refill(commit, uid="u1", amount=100, cap=1000)
    with ledger.commit(3 * HOUR) as commit:
        assert wallets.refill(commit, uid="u1", amount=100, cap=1000) == 300


def test_held_credits_count_toward_the_cap(ledger: Ledger) -> None:
    open_wallet(ledger, credits=1)
    with ledger.commit(0) as commit:
        commit.open_hold(Hold(id="h", account=wallet_of("u1"), lease="", amount=CREDIT))
        assert wallets.refill(commit, uid="u1", amount=5 * CREDIT, cap=2 * CREDIT) == CREDIT


def test_a_closed_wallet_is_empty_and_stays(ledger: Ledger, store: LedgerStore) -> None:
    open_wallet(ledger)
    with ledger.commit(1) as commit:
        assert wallets.close_wallet(commit, uid="u1")
    with ledger.commit(2) as commit:
        assert not wallets.close_wallet(commit, uid="u1")
        assert wallets.fund(commit, uid="u1", amount=5, key="late") is Funding.NO_SUCH_WALLET
        assert wallets.refill(commit, uid="u1", amount=5, cap=10) == 0
        assert not wallets.open_wallet(commit, uid="u1", name="u1", owner="ann")
    account = ledger.account(wallet_of("u1"))
    assert account is not None
    assert (account.posted, account.held, account.is_open) == (0, 0, False)
    check(store)


def test_a_wallet_belongs_to_a_uid_not_to_a_name(ledger: Ledger) -> None:
    with ledger.commit(0) as commit:
        for uid in ("u1", "u2"):
            wallets.open_wallet(commit, uid=uid, name="trainer", owner="ann")
        wallets.fund(commit, uid="u1", amount=5, key="k")
    assert (balance(ledger, "u1"), balance(ledger, "u2")) == (5, 0)
    assert {account.id for account in ledger.wallets_named("trainer")} == {
        wallet_of("u1"),
        wallet_of("u2"),
    }


operations = st.lists(
    st.tuples(
        st.sampled_from(["fund", "hold", "capture", "void", "pay"]),
        st.sampled_from(["u1", "u2"]),
        st.integers(1, 30),
        st.integers(0, 4),
    ),
    max_size=15,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(operations, max_size=6))
def test_whatever_is_tried_the_books_balance(
    fresh: Callable[[], LedgerStore], commits: list[list[tuple[str, str, int, int]]]
) -> None:
    store = fresh()
    ledger = Ledger(store)
    for batch in commits:
        number = ledger.head.sequence
        try:
            with ledger.commit(number) as commit:
                for uid in ("u1", "u2"):
                    wallets.open_wallet(commit, uid=uid, name=uid, owner="ann")
                for step, (what, uid, amount, key) in enumerate(batch):
                    wallet, name = wallet_of(uid), f"{uid}/{number}/{key}"
                    match what:
                        case "fund":
                            wallets.fund(commit, uid=uid, amount=amount, key=str(key))
                        case "hold":
                            hold = Hold(id=name, account=wallet, lease="", amount=amount)
                            commit.open_hold(hold)
                        case "capture":
                            commit.close_hold(commit.hold(name), captured=1)
                        case "void":
                            commit.close_hold(commit.hold(name), captured=0)
                        case "pay":
                            commit.transfer(
                                f"pay/{number}/{step}",
                                TransferKind.RENT,
                                debit=wallet,
                                credit=REVENUE,
                                amount=amount,
                            )
        except BrokenPromise:
            assert ledger.head.sequence == number  # refused whole
        check(store)
    store.close()


def test_no_wallet_and_no_mint_outgrows_its_column(ledger: Ledger, store: LedgerStore) -> None:
    """Every balance stays far inside 64 bits, however often and however much is granted."""
    open_wallet(ledger)
    with ledger.commit(1) as commit:
        full = LARGEST_AMOUNT - 10 * CREDIT
        assert wallets.fund(commit, uid="u1", amount=full + 1, key="a") is Funding.WALLET_FULL
        assert wallets.fund(commit, uid="u1", amount=full, key="b") is Funding.DONE
        assert wallets.fund(commit, uid="u1", amount=1, key="c") is Funding.WALLET_FULL
        assert wallets.refill(commit, uid="u1", amount=LARGEST_AMOUNT, cap=LARGEST_SUPPLY) == 0
    at = 2
    for number in range(2, 1 + LARGEST_SUPPLY // LARGEST_AMOUNT):
        with ledger.commit(at) as commit:
            wallets.open_wallet(commit, uid=f"w{number}", name=f"w{number}", owner="o")
            wallets.refill(commit, uid=f"w{number}", amount=LARGEST_AMOUNT, cap=LARGEST_AMOUNT)
        at += 1
    with ledger.commit(at) as commit:
        wallets.open_wallet(commit, uid="last", name="last", owner="o")
        left = wallets.mintable(commit)
        assert left < LARGEST_AMOUNT, "a fund was seeded too"
        assert wallets.refill(commit, uid="last", amount=LARGEST_AMOUNT, cap=LARGEST_AMOUNT) == left
        wallets.open_wallet(commit, uid="poor", name="poor", owner="o")
        assert wallets.fund(commit, uid="poor", amount=1, key="d") is Funding.MINT_EXHAUSTED
        assert wallets.refill(commit, uid="poor", amount=1, cap=1) == 0
    check(store)
