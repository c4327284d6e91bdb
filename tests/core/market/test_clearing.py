"""Who wins, and the promise that a winner pays the least it could have won with."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.contested import clear
from bidplane.core.market.model import ONE

from .contests import contests, packs

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
    for loser in outcome.losers:
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
    for loser in outcome.losers:
        if loser.is_lease:
            continue
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
    assert outcome.losers == other.losers
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
    assert outcome.price_to_win(outcome.losers[0]) == 501


def test_a_smaller_bid_is_served_past_one_that_does_not_fit() -> None:
    field = [bid("first", 4, 900), bid("wide", 8, 800), bid("small", 4, 200)]
    outcome = clear(Room({"d": 8}), field)
    assert [c.id for c in outcome.accepted] == ["first", "small"]
    # Without `first`, `wide` would have taken all eight.
    assert outcome.critical_price(outcome.accepted[0]) == 800
    assert outcome.critical_price(outcome.accepted[1]) == 100


# Bids and leases of one agent

OWNED = contests(agents=("x", "x", "y"))


@settings(max_examples=500, deadline=None)
@given(OWNED)
def test_a_loser_is_told_the_least_that_would_have_won_beside_its_own_leases(
    contest: Contest,
) -> None:
    room, field = contest
    outcome = clear(room, field)
    for loser in outcome.losers:
        if loser.is_lease:
            continue
        price = outcome.price_to_win(loser)
        if price is None:
            assert not wins(room, field, loser, 10**12)
            own = outcome.own_in_the_way(loser)
            assert own or not room.fits(loser.block)
        else:
            assert price > loser.price
            assert wins(room, field, loser, price)
            assert not wins(room, field, loser, price - 1)


@settings(max_examples=500, deadline=None)
@given(OWNED, st.integers(1, 2000))
def test_raising_a_bid_never_loses_beside_its_own_leases(contest: Contest, more: int) -> None:
    room, field = contest
    for winner in clear(room, field).accepted:
        if not winner.is_lease:
            assert wins(room, field, winner, winner.price + more)


@settings(max_examples=500, deadline=None)
@given(OWNED)
def test_a_bid_that_lost_changes_nothing_for_others(contest: Contest) -> None:
    room, field = contest
    outcome = clear(room, field)
    for loser in outcome.losers:
        if not loser.is_lease:
            without = clear(room, [c for c in field if c.id != loser.id])
            assert without.accepted == outcome.accepted


@settings(max_examples=500, deadline=None)
@given(OWNED)
def test_bids_of_one_agent_that_lost_do_not_lift_its_prices(contest: Contest) -> None:
    room, field = contest
    outcome = clear(room, field)
    for agent in "xy":
        own = {c.id for c in outcome.losers if c.agent == agent and not c.is_lease}
        without = clear(room, [c for c in field if c.id not in own])
        for winner in outcome.accepted:
            if winner.agent == agent:
                assert outcome.critical_price(winner) == without.critical_price(winner)


@settings(max_examples=500, deadline=None)
@given(OWNED)
def test_a_lease_is_not_lost_when_only_its_own_agent_bids(contest: Contest) -> None:
    """Also where leases of strangers rank above it."""
    room, field = contest
    for agent in "xy":
        bids = [c for c in field if c.agent == agent and not c.is_lease]
        urgent = any(bid.urgent for bid in bids)
        for leases in (
            [c for c in field if c.is_lease and c.agent == agent],
            [c for c in field if c.is_lease],
        ):
            lost = [c for c in clear(room, [*bids, *leases]).losers if c in leases]
            assert not [c for c in lost if c.agent == agent and (c.urgent or not urgent)]


# One GPU each; the stranger's lease ranks between the bid and the lease of the same agent.
BID = Contestant("bid", Block(1), 900, ONE, 1, 100, "x")
BETWEEN = Contestant("between", Block(1, "e"), 300, 1280, 0, 100, "y", True)
LOWEST = Contestant("lowest", Block(1, "d"), 100, 1280, 0, 100, "x", True)


def test_a_bid_displaces_a_strangers_lease_and_not_a_lower_ranked_lease_of_its_agent() -> None:
    room = Room({"d": 1, "e": 1})
    outcome = clear(room, [BID, BETWEEN, LOWEST])
    assert outcome.accepted == [BID, LOWEST]
    assert outcome.losers == [BETWEEN]
    assert outcome.critical_price(BID) == 376  # 375 × 1 is 300 × 1.25
    assert outcome.critical_price(LOWEST) == 100
    assert clear(room, [BID._replace(price=375), BETWEEN, LOWEST]).accepted == [BETWEEN, LOWEST]
    assert clear(room, [BID._replace(urgent=True), BETWEEN, LOWEST]).losers == [LOWEST]


def test_a_lease_still_loses_to_a_stranger_who_comes_after_a_bid_of_its_agent() -> None:
    """The bid takes what is free; the stranger takes the lowest lease, whoever has that."""
    stranger = Contestant("stranger", Block(1), 600, ONE, 1, 100, "z")
    outcome = clear(Room({"d": 1, "e": 1, "f": 1}), [BID, stranger, BETWEEN, LOWEST])
    assert outcome.losers == [LOWEST]
    # The other way round the bid is the one for whom somebody must leave.
    first = stranger._replace(price=1000)
    outcome = clear(Room({"d": 1, "e": 1, "f": 1}), [first, BID, BETWEEN, LOWEST])
    assert outcome.losers == [BETWEEN]
    # It would have won by less than `between` ranks at: in the seat of `lowest`.
    assert outcome.critical_price(first) == 126


@settings(max_examples=500, deadline=None)
@given(OWNED)
def test_a_winner_with_own_leases_pays_between_its_reserve_and_its_bid(contest: Contest) -> None:
    room, field = contest
    outcome = clear(room, field)
    for winner in outcome.accepted:
        assert winner.reserve <= outcome.critical_price(winner) <= winner.price


def test_an_urgent_bid_takes_its_own_agents_lease_and_another_does_not() -> None:
    lease = Contestant("lease", Block(1, "d"), 100, 1280, 0, 100, "x", True)
    bid = Contestant("bid", Block(1), 900, ONE, 1, 100, "x")
    plain = clear(Room({"d": 1}), [lease, bid])
    assert (plain.accepted, plain.price_to_win(bid)) == ([lease], None)
    assert plain.own_in_the_way(bid) == ("lease",)
    assert plain.critical_price(lease) == 100
    assert clear(Room({"d": 1}), [lease, bid._replace(urgent=True)]).losers == [lease]


def test_a_bid_takes_the_free_gpu_and_a_stranger_the_lease_of_its_agent() -> None:
    lease = Contestant("lease", Block(1, "d"), 100, 1280, 0, 100, "x", True)
    bid = Contestant("bid", Block(1), 900, ONE, 1, 100, "x")
    stranger = Contestant("stranger", Block(1), 500, ONE, 1, 100, "y")
    outcome = clear(Room({"d": 2}), [lease, bid, stranger])
    assert [c.id for c in outcome.accepted] == ["bid", "stranger"]


def test_a_bid_gets_what_its_own_lease_leaves_when_a_stranger_displaces_that() -> None:
    lease = Contestant("lease", Block(8, "d"), 100, 1280, 0, 100, "x", True)
    bid = Contestant("bid", Block(1), 900, ONE, 1, 100, "x")
    stranger = Contestant("stranger", Block(1), 1100, ONE, 1, 100, "y")
    assert clear(Room({"d": 8}), [lease, bid]).accepted == [lease]
    outcome = clear(Room({"d": 8}), [lease, bid, stranger])
    assert [c.id for c in outcome.accepted] == ["stranger", "bid"]
