"""Credits from agent to agent: of what is free, up to what the other may carry over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.ledger import Ledger, statement, wallets
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.wallets import REFILL_MILLISECONDS, Moving

from .words import CREDIT, balance, check, held, open_wallet, win


def move(
    ledger: Ledger, amount: int, *, sender: str = "u1", to: str = "u2", key: str = "k", **rest: int
) -> Moving:
    cap = rest.get("cap", 100 * CREDIT)
    with ledger.commit(5000) as commit:
        return wallets.transfer(
            commit, sender=sender, receiver=to, amount=amount, cap=cap, key=key, memo="a favour"
        )


@pytest.fixture
def pair(ledger: Ledger) -> Ledger:
    open_wallet(ledger, "u1", credits=10)
    open_wallet(ledger, "u2", credits=1)
    return ledger


def test_what_one_has_the_other_gets_and_both_statements_say_so(pair: Ledger) -> None:
    assert move(pair, 3 * CREDIT) is Moving.DONE
    assert (balance(pair, "u1"), balance(pair, "u2")) == (7 * CREDIT, 4 * CREDIT)
    paid, got = statement(pair, "u1", now=6000), statement(pair, "u2", now=6000)
    assert paid is not None
    assert got is not None
    assert (paid.lines[-1].text, paid.lines[-1].amount) == ("to u2: a favour", -3 * CREDIT)
    assert (got.lines[-1].text, got.lines[-1].amount) == ("from u1: a favour", 3 * CREDIT)


def test_a_key_moves_once_and_means_one_thing(pair: Ledger) -> None:
    open_wallet(pair, "u3", credits=1)
    assert move(pair, CREDIT) is Moving.DONE
    assert move(pair, CREDIT) is Moving.DUPLICATE
    assert move(pair, 2 * CREDIT) is Moving.KEY_REUSED
    assert move(pair, CREDIT, to="u3") is Moving.KEY_REUSED
    assert balance(pair, "u1") == 9 * CREDIT


def test_every_refusal_has_a_name_and_changes_nothing(pair: Ledger, store: LedgerStore) -> None:
    head = pair.head
    assert move(pair, 0) is Moving.NOT_AN_AMOUNT
    assert move(pair, -5) is Moving.NOT_AN_AMOUNT
    assert move(pair, 1, to="u1") is Moving.SAME_WALLET
    assert move(pair, 1, to="nobody") is Moving.NO_RECEIVER
    assert move(pair, 1, sender="nobody") is Moving.NO_SENDER
    assert move(pair, 10 * CREDIT + 1) is Moving.WALLET_TOO_SMALL
    assert move(pair, CREDIT, cap=2 * CREDIT - 1) is Moving.OVER_CAP
    assert pair.head == head
    assert move(pair, CREDIT, cap=2 * CREDIT) is Moving.DONE
    check(store)


def test_credits_that_are_held_stay(pair: Ledger) -> None:
    with pair.commit(2000) as commit:
        win(commit, "b1")
    free = 10 * CREDIT - held(pair)
    assert move(pair, free + 1) is Moving.WALLET_TOO_SMALL
    assert move(pair, free) is Moving.DONE


CAP, REFILL = 20, 10
MOVES = st.tuples(
    st.sampled_from(["a", "b", "c"]), st.sampled_from(["a", "b", "c"]), st.integers(1, 30)
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(hours=st.lists(st.lists(MOVES, max_size=4), max_size=6))
def test_no_order_of_transfers_and_refills_gets_past_the_caps(
    fresh: Callable[[], LedgerStore], hours: list[list[tuple[str, str, int]]]
) -> None:
    """Carry-over laundering: parking credits with a friend before a refill gains nothing."""
    store = fresh()
    ledger = Ledger(store)
    names = ("a", "b", "c")
    with ledger.commit(0) as commit:
        for name in names:
            wallets.open_wallet(commit, uid=name, name=name, owner="ann")
    for hour, moves in enumerate(hours):
        with ledger.commit(hour * REFILL_MILLISECONDS) as commit:
            for name in names:
                wallets.refill(commit, uid=name, amount=REFILL, cap=CAP)
        for number, (sender, receiver, amount) in enumerate(moves):
            with ledger.commit(hour * REFILL_MILLISECONDS + number) as commit:
                wallets.transfer(
                    commit,
                    sender=sender,
                    receiver=receiver,
                    amount=amount,
                    cap=CAP,
                    key=f"{hour}/{number}",
                )
        assert all(balance(ledger, name) <= CAP for name in names)
    check(store)
    store.close()
