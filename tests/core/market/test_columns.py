"""The fast clearing and placement give what the readable ones give, to the bit."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.core.devices import bulkplacement
from bidplane.core.devices.chain import FRACTIONS, Block
from bidplane.core.devices.placement import Shelf, place
from bidplane.core.market.clearing import columns
from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.contested import clear
from bidplane.core.market.clearing.greedy import Greedy
from bidplane.core.market.clearing.supply import seated
from bidplane.core.market.model import ONE

from .contests import CHAINS, FLOOR, chains, contests, prices, weights


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the contest, the fast one is used."""
    monkeypatch.setattr(columns, "WORTH_IT", 0)
    monkeypatch.setattr(bulkplacement, "WORTH_IT", 0)


def check_same(start: Room, field: list[Contestant]) -> None:
    bids = [c for c in field if not c.block.is_pinned]
    room = seated(start, [c.block for c in field if c.block.is_pinned])
    slow, quick = clear(room, bids), columns.clear_fast(room, bids)
    assert isinstance(slow, Greedy)
    assert isinstance(quick, columns.FastClearing)
    assert quick.accepted == slow.accepted
    assert quick.losers == slow.losers
    assert [quick.critical_price(c) for c in slow.accepted] == [
        slow.critical_price(c) for c in slow.accepted
    ]
    assert [quick.price_to_win(c) for c in slow.losers] == [
        slow.price_to_win(c) for c in slow.losers
    ]
    assert quick.posted_price(FLOOR, last=0) == slow.posted_price(FLOOR, last=0)


@settings(max_examples=500, deadline=None)
@given(contests(agents=("", "x", "y")))
def test_bids_of_several_agents(contest: tuple[Room, list[Contestant]]) -> None:
    check_same(*contest)


@settings(max_examples=500, deadline=None)
@given(contests(agents=("", "x", "y")))
def test_leases_that_outrank_all_bids_change_no_bids_fate(
    contest: tuple[Room, list[Contestant]],
) -> None:
    """Where nobody can be displaced, the bids come to what they would beside them alone."""
    start, field = contest
    field = [c._replace(price=10**6) if c.is_lease else c for c in field]
    bids = [c for c in field if not c.is_lease]
    both = clear(start, field)
    alone = columns.clear_fast(seated(start, [c.block for c in field if c.is_lease]), bids)
    assert [c for c in both.accepted if not c.is_lease] == alone.accepted
    assert [both.critical_price(c) for c in alone.accepted] == [
        alone.critical_price(c) for c in alone.accepted
    ]


@st.composite
def odd_shapes(draw: st.DrawFn) -> tuple[Room, list[Contestant]]:
    room, field = draw(contests(leaves=FRACTIONS))
    shapes = st.one_of(
        st.builds(Block, st.sampled_from(room.chain), count=st.integers(1, 3)),
        st.just(Block(room.chain[0], rest=room.chain[1:])),
        st.builds(Block, st.just(0), share=st.sampled_from(["1/2", "1/4", "1/8"])),
    )
    field += [
        Contestant(f"s{i}", draw(shapes), draw(prices), draw(weights), i % 3, FLOOR)
        for i in range(draw(st.integers(0, 8)))
    ]
    return room, field


@settings(max_examples=500, deadline=None)
@given(odd_shapes())
def test_gangs_and_shares(contest: tuple[Room, list[Contestant]]) -> None:
    check_same(*contest)


@pytest.mark.parametrize("strikes", [0, 1, columns.STRIKES_MOST])
@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("own", [False, True])
def test_hundreds_at_once(
    seed: int, strikes: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large domains too, in which a kept lease changes what its neighbours break."""
    monkeypatch.setattr(columns, "STRIKES_MOST", strikes)
    dice = random.Random(seed)
    chain = CHAINS[seed % len(CHAINS)]
    free = {f"d{i}": dice.choice([3, 8, 8, 18, 72]) for i in range(20)}
    left, field = dict(free), []
    for i in range(400):
        size, domain = dice.choice(chain), ""
        if i % 3 == 0:
            domain, size = dice.choice(sorted(free)), dice.randint(1, 8)
            if left[domain] < size:
                continue
            left[domain] -= size
        price, weight = FLOOR * dice.randint(1, 40), dice.choice([ONE, 1280, 2048])
        field.append(
            Contestant(
                f"c{i}",
                Block(size, domain),
                price,
                weight,
                dice.randint(0, 3),
                FLOOR,
                f"agent-{dice.randint(0, 20)}" if own else "",
                bool(domain),
            )
        )
    check_same(Room(free, chain=chain), field)


def test_a_need_beyond_32_bits_raises_no_price() -> None:
    field = [
        Contestant("one", Block(1), 8 * FLOOR, ONE, 0, FLOOR),
        Contestant("many", Block(1, count=2), 7 * FLOOR, ONE, 0, FLOOR),
    ]
    book = columns.Book.of(field, (), (1,))
    book = msgspec.structs.replace(book, needs=np.array([[1], [2**33]]))
    outcome = columns.ColumnOutcome(np.array([1]), (), book, (1,))
    assert outcome.winners.tolist() == [0]
    assert outcome.prices().tolist() == [FLOOR]


def test_a_few_are_cleared_by_the_readable_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "WORTH_IT", 2)
    alone = [Contestant("a", Block(1), 5, ONE, 0, 1)]
    assert type(columns.clear_fast(Room({"d": 1}), alone)) is Greedy


@st.composite
def shelves(draw: st.DrawFn) -> tuple[list[Shelf], list[tuple[str, Block]]]:
    """Domains with free devices and some that leases must leave; winners that fit."""
    stock, free = [], {}
    for i in range(draw(st.integers(1, 6))):
        devices = [f"d{i}/{n}" for n in range(draw(st.integers(0, 9)))]
        kept = draw(st.integers(0, len(devices)))
        gone = devices[kept:]
        leaving: dict[str, tuple[str, ...]] = {}
        leave_soon = draw(st.booleans()) if gone else False
        if leave_soon:
            half = draw(st.integers(1, len(gone)))
            leaving = {f"l{i}a": tuple(gone[:half])}
            if gone[half:]:
                leaving[f"l{i}b"] = tuple(gone[half:])
        else:
            kept = len(devices)
        stock.append(Shelf(f"d{i}", tuple(devices[:kept]), leaving))
        free[f"d{i}"] = len(devices)
    room, winners = Room(free, chain=draw(chains)), []
    gang = st.just(Block(room.chain[-2:][0], count=2))
    blocks = st.one_of(st.builds(Block, st.sampled_from(room.chain)), gang)
    for i, block in enumerate(draw(st.lists(blocks, max_size=12))):
        if room.fits(block):
            room = room.take(block)
            winners.append((f"w{i}", block))
    return stock, winners


@settings(max_examples=500, deadline=None)
@given(shelves())
def test_placement(case: tuple[list[Shelf], list[tuple[str, Block]]]) -> None:
    assert bulkplacement.place_fast(*case) == place(*case)
