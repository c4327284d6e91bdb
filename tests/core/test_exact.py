"""On a small fleet the exact clearing reaches the optimum, and its prices are critical too."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.core.chain import CHAIN, Block
from bidplane.core.market import exact
from bidplane.core.market.clearing import Contestant, clear
from bidplane.core.market.exact import ExactClearing, clear_exactly
from bidplane.core.market.model import ONE
from bidplane.core.market.room import Room

from .market import contests, packs
from .test_oracle import optimum

Contest = tuple[dict[str, int], list[Contestant]]


def exactly(free: dict[str, int], field: list[Contestant]) -> ExactClearing:
    outcome = clear_exactly(Room(free), field)
    assert isinstance(outcome, ExactClearing)
    return outcome


def total(contestants: list[Contestant]) -> int:
    return sum(c.key * c.block.size for c in contestants)


@settings(max_examples=150, deadline=None)
@given(contests())
def test_no_set_that_fits_is_worth_more(contest: Contest) -> None:
    free, field = contest
    best = max(
        (
            total(list(some))
            for n in range(len(field) + 1)
            for some in itertools.combinations(field, n)
            if packs(free, [c.block for c in some])
        ),
        default=0,
    )
    outcome = exactly(free, field)
    assert packs(free, [c.block for c in outcome.accepted])
    assert total(outcome.accepted) == best


def wins(free: dict[str, int], field: list[Contestant], one: Contestant, price: int) -> bool:
    tried = one._replace(price=price)
    return tried in exactly(free, [*(c for c in field if c.id != one.id), tried]).accepted


@settings(max_examples=150, deadline=None)
@given(contests())
def test_the_price_wins_and_one_less_loses(contest: Contest) -> None:
    free, field = contest
    outcome = exactly(free, field)
    for winner in outcome.accepted:
        price = outcome.critical_price(winner)
        assert winner.reserve <= price <= winner.price
        assert wins(free, field, winner, price)
        if price > winner.reserve:
            assert not wins(free, field, winner, price - 1)


@settings(max_examples=150, deadline=None)
@given(contests())
def test_a_loser_is_told_the_least_that_would_have_won(contest: Contest) -> None:
    free, field = contest
    outcome = exactly(free, field)
    for loser in outcome.losers:
        price = outcome.price_to_win(loser)
        if price is None:
            assert not packs(free, [loser.block])
            continue
        assert wins(free, field, loser, price)
        if price > loser.reserve:
            assert not wins(free, field, loser, price - 1)


@given(contests(), st.data())
def test_the_order_of_bids_does_not_matter(contest: Contest, data: st.DataObject) -> None:
    free, field = contest
    one, other = exactly(free, field), exactly(free, data.draw(st.permutations(field)))
    assert (one.accepted, one.losers) == (other.accepted, other.losers)


def small_fleet(seed: int) -> Contest:
    """A homelab: one to four machines of 8, and up to nine times as many GPUs wanted."""
    dice = random.Random(seed)
    free = {f"d{i}": 8 for i in range(dice.randint(1, 4))}
    field = [
        Contestant(
            f"b{i:02}",
            Block(dice.choices(CHAIN, (30, 20, 20, 30))[0]),
            int(1_000_000 * dice.lognormvariate(0.6, 0.7)) + 300_000,
            ONE,
            i,
            300_000,
        )
        for i in range(dice.randint(5, 30))
    ]
    return free, field


def test_small_fleets_reach_the_optimum() -> None:
    greedy, fell_back = [], 0
    for seed in range(150):
        free, field = small_fleet(seed)
        best = optimum(free, field)
        outcome = clear_exactly(Room(free), field)
        if outcome is None:
            fell_back += 1
            continue
        value = sum(c.price * c.block.size for c in outcome.accepted) / 1e6
        assert value == pytest.approx(best, rel=1e-6), f"seed {seed}"
        quick = sum(c.price * c.block.size for c in clear(Room(free), field).accepted) / 1e6
        greedy.append(quick / best)
    print(f"fell back {fell_back} of 150; greedy alone: mean {sum(greedy) / len(greedy):.3f},")
    print(f"worst {min(greedy):.3f} of the optimum")
    assert fell_back <= 3
    assert min(greedy) < 0.9, "greedy is as good here: this shows nothing"


def test_a_search_that_is_too_long_accepts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    free, field = small_fleet(1)
    monkeypatch.setattr(exact, "STEPS_MOST", 3)
    assert clear_exactly(Room(free), field) is None


def test_a_large_lot_is_not_even_tried() -> None:
    assert clear_exactly(Room({f"d{i}": 8 for i in range(9)}), []) is None
    many = [Contestant(f"b{i}", Block(1), 5, ONE, 0, 1) for i in range(exact.BIDS_MOST + 1)]
    assert clear_exactly(Room({"d": 8}), many) is None


def test_equal_bids_do_not_make_the_search_long() -> None:
    field = [Contestant(f"b{i:02}", Block(4), 500, ONE, i, 100) for i in range(64)]
    outcome = exactly({f"d{i}": 8 for i in range(8)}, field)
    assert [c.id for c in outcome.accepted] == [f"b{i:02}" for i in range(16)]
    assert {outcome.critical_price(c) for c in outcome.accepted} == {500}
