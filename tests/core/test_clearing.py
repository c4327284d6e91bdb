"""Who wins, and the promise that a winner pays the least it could have won with."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.core.chain import Block
from bidplane.core.market.clearing import Contestant, clear
from bidplane.core.market.model import ONE
from bidplane.core.market.room import Room

from .market import contests, packs

Contest = tuple[Room, list[Contestant]]


def wins(room: Room, field: list[Contestant], one: Contestant, price: int) -> bool:
    """Whether `one` would have won had it offered `price`, everybody else the same."""
    tried = one._replace(price=price)
    others = [c for c in field if c.id != one.id]
    return tried in clear(room, [*others, tried]).accepted


@given(contests())
def test_winners_fit_and_nobody_else_would(contest: Contest) -> None:
    room, field = contest
    outcome = clear(room, field)
    accepted = [c.block for c in outcome.accepted]
    assert packs(room.free, accepted)
    for loser, _ in outcome.rejected:
        assert not packs(room.free, [*accepted, loser.block])


@given(contests())
def test_a_winner_pays_between_its_reserve_and_its_bid(contest: Contest) -> None:
    room, field = contest
    outcome = clear(room, field)
    for winner in outcome.accepted:
        assert winner.reserve <= outcome.critical_price(winner) <= winner.price


@settings(max_examples=300, deadline=None)
@given(contests())
def test_the_price_wins_and_one_less_loses(contest: Contest) -> None:
    room, field = contest
    outcome = clear(room, field)
    for winner in outcome.accepted:
        price = outcome.critical_price(winner)
        assert wins(room, field, winner, price)
        if price > winner.reserve:
            assert not wins(room, field, winner, price - 1)


@settings(max_examples=300, deadline=None)
@given(contests())
def test_a_loser_is_told_the_least_that_would_have_won(contest: Contest) -> None:
    room, field = contest
    outcome = clear(room, field)
    for loser, _ in outcome.rejected:
        price = outcome.price_to_win(loser)
        if price is None:
            assert not wins(room, field, loser, 10**12)
        else:
            assert price > loser.price
            assert wins(room, field, loser, price)
            assert not wins(room, field, loser, price - 1)


@given(contests(), st.integers(1, 2000))
def test_raising_a_bid_never_loses(contest: Contest, more: int) -> None:
    room, field = contest
    for winner in clear(room, field).accepted:
        assert wins(room, field, winner, winner.price + more)


@given(contests(), st.data())
def test_the_order_of_bids_does_not_matter(contest: Contest, data: st.DataObject) -> None:
    room, field = contest
    outcome = clear(room, field)
    other = clear(room, data.draw(st.permutations(field)))
    assert outcome.accepted == other.accepted
    assert [c for c, _ in outcome.rejected] == [c for c, _ in other.rejected]
    for winner in outcome.accepted:
        assert outcome.critical_price(winner) == other.critical_price(winner)


def bid(id: str, gpus: int, price: int, weight: int = ONE, tie: int = 0) -> Contestant:
    return Contestant(id, Block(gpus), price, weight, tie, 100)


def test_the_price_is_the_best_losers_offer() -> None:
    outcome = clear(Room({"d": 8}), [bid("rich", 8, 900), bid("poor", 8, 500, tie=1)])
    assert [c.id for c in outcome.accepted] == ["rich"]
    assert outcome.critical_price(outcome.accepted[0]) == 500


def test_without_a_rival_the_price_is_the_reserve() -> None:
    outcome = clear(Room({"d": 8}), [bid("alone", 2, 900)])
    assert outcome.critical_price(outcome.accepted[0]) == 100


def test_who_loses_the_tie_must_offer_more() -> None:
    outcome = clear(Room({"d": 1}), [bid("early", 1, 500, tie=1), bid("late", 1, 500, tie=2)])
    assert [c.id for c in outcome.accepted] == ["early"]
    assert outcome.price_to_win(outcome.rejected[0][0]) == 501


def test_a_smaller_bid_is_served_past_one_that_does_not_fit() -> None:
    field = [bid("first", 4, 900), bid("wide", 8, 800), bid("small", 4, 200)]
    outcome = clear(Room({"d": 8}), field)
    assert [c.id for c in outcome.accepted] == ["first", "small"]
    # Without `first`, `wide` would have taken all eight.
    assert outcome.critical_price(outcome.accepted[0]) == 800
    assert outcome.critical_price(outcome.accepted[1]) == 100
