"""`Room` answers exactly, and so every subset of what fits, fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.chain import Block
from bidplane.core.market.room import Room

from .market import fleets, packs, sizes


def fill(free: dict[str, int], blocks: list[Block]) -> Room | None:
    room = Room(free)
    for block in blocks:
        if not room.fits(block):
            return None
        room = room.take(block)
    return room


@st.composite
def loads(draw: st.DrawFn) -> tuple[dict[str, int], list[Block]]:
    free = draw(fleets())
    domains = st.sampled_from(["", "", *sorted(free)])
    return free, draw(st.lists(st.builds(Block, sizes, domains), max_size=7))


@given(loads())
def test_fits_is_what_trying_everything_finds(load: tuple[dict[str, int], list[Block]]) -> None:
    free, blocks = load
    assert (fill(free, blocks) is not None) == packs(free, blocks)


@given(loads(), st.data())
def test_every_subset_of_what_fits_fits(
    load: tuple[dict[str, int], list[Block]], data: st.DataObject
) -> None:
    free, blocks = load
    if fill(free, blocks) is not None and blocks:
        subset = data.draw(st.lists(st.sampled_from(range(len(blocks))), unique=True))
        assert fill(free, [blocks[i] for i in subset]) is not None


@given(loads(), st.data())
def test_giving_back_undoes_taking_in_any_order(
    load: tuple[dict[str, int], list[Block]], data: st.DataObject
) -> None:
    free, blocks = load
    room = fill(free, blocks)
    if room is not None:
        for block in data.draw(st.permutations(blocks)):
            room = room.give(block)
        assert room.spare == Room(free).spare
        assert dict(room.free) == free


def test_a_running_lease_breaks_the_block_it_sits_in() -> None:
    room = Room({"d0": 8, "d1": 8}).take(Block(1, "d0"))
    assert repr(room) == "<Room 1×8 3×4 7×2 15×1>"
    assert not room.take(Block(8)).fits(Block(8))
