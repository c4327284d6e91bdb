"""
Displacement by worth: what the market promises about contended rounds, each promise tried on
hundreds of small markets (`worlds`), and on thousands with BIDPLANE_EXPLORE=1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from bidplane.api.bid import BidReason
from bidplane.bench.support.contested import contested_round
from bidplane.core.market import Lost, RoundInput, RoundResult, clear_round
from bidplane.core.market.clearing import contested
from bidplane.core.market.clearing.contested import STATES_MOST
from effort import effort

from .judge import locked_out, worth_after, worth_before
from .worlds import world

pytestmark = [pytest.mark.explored, pytest.mark.timeout(effort(300, 3600))]

ROUNDS = effort(25, 1700)  # of each of six kinds
KINDS = [
    {"parts": parts, "joint": joint, "poor": poor}
    for parts, joint in ((False, False), (True, False), (False, True))
    for poor in (False, True)
]
kinds = pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: "-".join(name for name, on in kind.items() if on) or "whole"
)


def rounds(kind: dict[str, bool], first: int = 0) -> Iterator[tuple[RoundInput, RoundResult]]:
    for seed in range(first, first + ROUNDS):
        given = world(seed, **kind)
        yield given, clear_round(given)


def at_price(given: RoundInput, id: str, price: int) -> RoundInput:
    asks = tuple(
        msgspec.structs.replace(
            ask, price=price, also=tuple(msgspec.structs.replace(n, price=price) for n in ask.also)
        )
        if ask.id == id
        else ask
        for ask in given.asks
    )
    return msgspec.structs.replace(given, asks=asks)


def wins(given: RoundInput, id: str, price: int) -> bool:
    return any(won.ask == id for won in clear_round(at_price(given, id, price)).won)


def only_bids(given: RoundInput) -> set[str]:
    """The bids whose agents have no other: of several, one more or less can be another's."""
    count = Counter(ask.agent for ask in given.asks)
    return {ask.id for ask in given.asks if count[ask.agent] == 1}


@kinds
def test_the_price_told_wins_and_one_less_does_not(kind: dict[str, bool]) -> None:
    for given, result in rounds({**kind, "poor": False}):
        for loss in result.lost:
            if loss.price_to_win is None:
                assert not wins(given, loss.ask, 10**9), (given, loss)
            else:
                assert wins(given, loss.ask, loss.price_to_win), (given, loss)
                assert not wins(given, loss.ask, loss.price_to_win - 1), (given, loss)


@kinds
def test_a_winner_pays_the_least_that_wins_and_never_more_than_it_bid(
    kind: dict[str, bool],
) -> None:
    for given, result in rounds(kind, 10_000):
        asks = {ask.id: ask for ask in given.asks}
        alone = only_bids(given)
        for won in result.won:
            assert won.price <= asks[won.ask].price
            if won.ask in alone and not kind["poor"]:
                assert wins(given, won.ask, won.price), (given, won)
                assert won.price <= 100 or not wins(given, won.ask, won.price - 1), (given, won)


@kinds
def test_rent_is_the_least_with_which_a_lease_stays(kind: dict[str, bool]) -> None:
    for given, result in rounds({**kind, "poor": False}, 20_000):
        bidders = {ask.agent for ask in given.asks}
        leases = {lease.id: lease for lease in given.incumbents}
        for kept in result.kept:
            lease = leases[kept.lease]
            assert kept.price <= lease.price
            if lease.agent in bidders:
                continue  # its agent's own bids lift nothing
            for price, stays in ((kept.price, True), (kept.price - 1, False)):
                if price < lease.reserve:
                    continue  # rent is no lower, whatever would stay at less
                changed = tuple(
                    msgspec.structs.replace(i, price=price) if i.id == lease.id else i
                    for i in given.incumbents
                )
                tried = clear_round(msgspec.structs.replace(given, incumbents=changed))
                assert any(k.lease == lease.id for k in tried.kept) is stays, (given, kept, price)


@kinds
def test_offering_more_never_loses(kind: dict[str, bool]) -> None:
    for given, result in rounds({**kind, "poor": False}, 30_000):
        for won in result.won:
            price = next(ask.price for ask in given.asks if ask.id == won.ask)
            for more in (price + 1, 2 * price, 20 * price):
                assert wins(given, won.ask, more), (given, won, more)


@kinds
def test_the_worth_of_what_runs_never_falls(kind: dict[str, bool]) -> None:
    displaced = 0
    for given, result in rounds(kind, 40_000):
        displaced += len(result.displaced)
        assert worth_after(given, result) >= worth_before(given), given
    assert displaced > ROUNDS // 10, "nobody was displaced: this shows nothing"


@kinds
def test_a_bid_that_lost_changes_nothing(kind: dict[str, bool]) -> None:
    for given, result in rounds({**kind, "poor": False}, 50_000):
        for loss in result.lost:
            asks = tuple(ask for ask in given.asks if ask.id != loss.ask)
            without = clear_round(msgspec.structs.replace(given, asks=asks))
            assert {w.ask for w in without.won} == {w.ask for w in result.won}, (given, loss)
            assert without.displaced == result.displaced, (given, loss)


def test_the_largest_parts_too_are_the_first_to_take_a_seat() -> None:
    """An eighth that ranks between two halves keeps them and a whole GPU off no lease of two."""
    given = world(50_749, parts=True)
    assert sorted(a.share for a in given.asks) == ["", "", "0.125", "0.125", "0.5", "0.5"]
    result = clear_round(given)
    assert {won.ask for won in result.won} == {"bid-0", "bid-3", "bid-5"}
    assert [gone.lease for gone in result.displaced] == ["lease-1"]


@kinds
def test_who_is_displaced_is_compensated_by_those_who_take_its_seat(kind: dict[str, bool]) -> None:
    for given, result in rounds(kind, 60_000):
        leases = {lease.id: lease for lease in given.incumbents}
        for gone in result.displaced:
            assert gone.by
            assert gone.compensation == leases[gone.lease].compensation
        owed = sum(won.minimum for won in result.won)
        assert owed == sum(gone.compensation for gone in result.displaced)
        agents = {ask.id: ask.agent for ask in given.asks}
        spent = Counter[str]()
        for won in result.won:
            spent[agents[won.ask]] += won.hold + won.minimum
        assert all(amount <= given.available[agent] for agent, amount in spent.items())


@pytest.mark.parametrize("joint", [False, True], ids=["one lot", "two lots"])
@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
def test_nobody_is_locked_out_by_leases_that_are_worth_less(joint: bool, parts: bool) -> None:
    for given, result in rounds({"joint": joint, "parts": parts}, 70_000):
        assert not list(locked_out(given, result)), given


def test_the_judge_sees_a_lock_out() -> None:
    """A guard: with a result in which nobody won, it names who should have."""
    seen = 0
    for given, result in rounds({}, 70_000):
        if result.displaced:
            nothing = RoundResult(lost=tuple(_lost(w.ask) for w in result.won))
            seen += bool(list(locked_out(given, nothing)))
    assert seen > ROUNDS // 20


def _lost(ask: str) -> Lost:
    return Lost(ask=ask, reason=BidReason.OUTBID)


def test_beyond_the_bounds_of_work_a_price_told_still_wins() -> None:
    """More bids win than there are states that prices look at, so a price may not be the least."""
    given = contested_round(60, waiting=100, displacing=60, seed=2)
    outcome = clear_round(given)
    offers = {ask.id: ask.price for ask in given.asks}
    assert len(outcome.won) > STATES_MOST
    assert all(won.price <= offers[won.ask] for won in outcome.won)
    told = {loss.ask: loss.price_to_win for loss in outcome.lost}
    for loser in ("b0", "b50", "b99"):
        asks = tuple(
            msgspec.structs.replace(ask, price=told[loser]) if ask.id == loser else ask
            for ask in given.asks
        )
        again = clear_round(msgspec.structs.replace(given, asks=asks))
        assert loser in {won.ask for won in again.won}


def test_beyond_the_bounds_of_work_a_rent_is_lower_and_never_higher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = contested_round(10, waiting=60, displacing=0, seed=3)
    rents = {kept.lease: kept.price for kept in clear_round(given).kept}
    contestants, leases = len(given.asks) + len(given.incumbents), len(given.incumbents)
    monkeypatch.setattr(contested, "THREATS_MOST", contestants * leases)  # one attempt for each
    monkeypatch.setattr(contested, "THREATS_LEAST", 1)
    bounded = {kept.lease: kept.price for kept in clear_round(given).kept}
    assert all(bounded[lease] <= rent for lease, rent in rents.items())
    assert sum(bounded[lease] < rent for lease, rent in rents.items()) > leases // 4
