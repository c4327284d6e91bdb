"""`Room` answers exactly, and so every subset of what fits, fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.capacity import Room

from .contests import chains, fleets, held, packs

Load = tuple[Room, list[Block]]


def fill(room: Room, blocks: list[Block]) -> Room | None:
    for block in blocks:
        if not room.fits(block):
            return None
        room = room.take(block)
    return room


@st.composite
def loads(draw: st.DrawFn) -> Load:
    free, chain = draw(fleets()), draw(chains)
    new = st.builds(Block, st.sampled_from(chain))
    running = st.builds(Block, held, st.sampled_from(sorted(free)))
    return Room(free, chain=chain), draw(st.lists(st.one_of(new, new, running), max_size=7))


@given(loads())
def test_fits_is_what_trying_everything_finds(load: Load) -> None:
    room, blocks = load
    assert (fill(room, blocks) is not None) == packs(room.free, blocks)


@given(loads(), st.data())
def test_every_subset_of_what_fits_fits(load: Load, data: st.DataObject) -> None:
    room, blocks = load
    if fill(room, blocks) is not None and blocks:
        subset = data.draw(st.lists(st.sampled_from(range(len(blocks))), unique=True))
        assert fill(room, [blocks[i] for i in subset]) is not None


@given(loads(), st.data())
def test_giving_back_undoes_taking_in_any_order(load: Load, data: st.DataObject) -> None:
    start, blocks = load
    room = fill(start, blocks)
    if room is not None:
        for block in data.draw(st.permutations(blocks)):
            room = room.give(block)
        assert (room.spare, dict(room.free)) == (start.spare, start.free)


def test_a_running_lease_breaks_the_block_it_sits_in() -> None:
    room = Room({"d0": 8, "d1": 8}).take(Block(1, "d0"))
    assert repr(room) == "<Room 1×8 3×4 7×2 15×1>"
    assert not room.take(Block(8)).fits(Block(8))


def test_three_cards_on_one_link_are_one_block_of_three() -> None:
    room = Room({"box": 3, "other": 2}, chain=(3, 1))
    assert repr(room) == "<Room 1×3 5×1>"
    assert repr(room.take(Block(3))) == "<Room 0×3 2×1>"
    assert not room.take(Block(1, "box")).fits(Block(3))
    assert not room.fits(Block(1, count=6))


def test_a_lease_of_a_size_that_is_sold_no_more_counts_where_it_is() -> None:
    """Four of eight were leased when the pool sold fours; now it sells threes."""
    room = Room({"a": 8, "b": 8}, chain=(3, 1)).take(Block(4, "a"))
    assert repr(room) == "<Room 3×3 12×1>"
