"""Odd sizes: the next block up in one domain, as few blocks as there are anywhere."""

from __future__ import annotations

from itertools import combinations_with_replacement

from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.devices.chain import CHAIN, Block, Chain, anywhere, block_size, blocks_in
from bidplane.core.devices.placement import sizes_of
from bidplane.core.market.clearing.capacity import Room

from .contests import chains, fleets, packs


@given(chains, st.integers(1, 20))
def test_an_ask_in_one_domain_is_the_next_size_up(chain: Chain, gpus: int) -> None:
    size = block_size(gpus, chain)
    if size is None:
        assert gpus > chain[0]
    else:
        assert size in chain
        assert size >= gpus
        assert not [other for other in chain if gpus <= other < size]


@given(chains, fleets(), st.integers(1, 20))
def test_anywhere_is_what_was_asked_for_and_fits_an_empty_lot(
    chain: Chain, free: dict[str, int], gpus: int
) -> None:
    block = anywhere(gpus, blocks_in(free.values(), chain))
    assert (block is None) == (gpus > sum(free.values()))
    if block is not None:
        sizes = list(sizes_of(block))
        assert sum(sizes) == gpus
        assert set(sizes) <= set(chain)
        assert Room(free, chain=chain).fits(block)
        fewer = (
            some
            for n in range(1, len(sizes))
            for some in combinations_with_replacement(chain, n)
            if sum(some) == gpus
        )
        assert not any(packs(free, [Block(size) for size in some]) for some in fewer)


def test_thirteen_are_eight_and_four_and_one() -> None:
    assert anywhere(13, blocks_in([8, 8], CHAIN)) == Block(8, rest=(4, 1))
    assert anywhere(16, blocks_in([8, 8], CHAIN)) == Block(8, count=2)
    assert anywhere(6, blocks_in([8], CHAIN)) == Block(4, rest=(2,))
    assert anywhere(5, blocks_in([3, 3], (3, 1))) == Block(3, rest=(1, 1))


def test_eight_anywhere_are_two_fours_where_no_machine_has_eight() -> None:
    assert anywhere(8, blocks_in([4, 4], CHAIN)) == Block(4, count=2)
    assert anywhere(16, blocks_in([8, 4, 4], CHAIN)) == Block(8, rest=(4, 4))
    assert anywhere(3, blocks_in([2, 2], (3, 1))) == Block(1, count=3)
    assert anywhere(9, blocks_in([4, 4], CHAIN)) is None
