"""Gangs, shares and MIG leaves: counters say what trying every place says, and placement agrees."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.chain import FRACTIONS, PARTS, Block, Chain, Leaf
from bidplane.core.devices.placement import Parting, Shelf, place
from bidplane.core.market.clearing.capacity import Room

from .contests import chains

# Two of a half GPU's memory and one small one beside them: not a chain.
GEOMETRY = (
    Leaf("3g.40gb", 2, 28, in_chain=False, starts=(0, 4), span=4),
    Leaf("1g.10gb", 1, 8, in_chain=False, starts=(6,), span=1),
)


class Fleet(msgspec.Struct, frozen=True):
    whole: tuple[int, ...]  # free GPUs by domain
    cut: tuple[dict[str, int], ...]  # what is left of GPUs that are cut
    leaves: tuple[Leaf, ...]
    chain: Chain

    @property
    def room(self) -> Room:
        free = {f"d{i}": n for i, n in enumerate(self.whole)}
        cut = {}
        for i, parts in enumerate(self.cut):
            for kind, n in parts.items():
                free[f"c{i}/{kind}"] = n
                cut[f"c{i}/{kind}"] = kind
        return Room(free, leaves=self.leaves, cut=cut, chain=self.chain)

    @property
    def shelves(self) -> list[Shelf]:
        shelves = [
            Shelf(f"d{i}", tuple(f"d{i}/{n}" for n in range(free)))
            for i, free in enumerate(self.whole)
        ]
        cut = {f"c{i}": places(parts) for i, parts in enumerate(self.cut)}
        return [*shelves, Shelf("cut", (), {}, cut)]


def places(parts: dict[str, int]) -> dict[str, tuple[int, ...]]:
    return {kind: (0, n) if kind == PARTS else tuple(range(n)) for kind, n in parts.items()}


def units(leaf: Leaf) -> tuple[str, int]:
    return (PARTS, 2400 // leaf.per_gpu) if leaf.in_chain else (leaf.name, 1)


def fresh(leaves: tuple[Leaf, ...]) -> dict[str, int]:
    return {PARTS: 2400} if leaves[0].in_chain else {leaf.name: leaf.per_gpu for leaf in leaves}


def packs(fleet: Fleet, blocks: list[Block]) -> bool:
    """Whether the blocks fit, by trying every domain and every GPU for every part."""
    parts: list[int | Leaf] = []
    for block in blocks:
        if block.share:
            leaf = next(leaf for leaf in fleet.leaves if leaf.name == block.share)
            parts += [leaf] * block.count
        else:
            parts += [block.size] * block.count + list(block.rest)
    parts.sort(key=lambda p: -p if isinstance(p, int) else p.per_gpu)
    seen: set[object] = set()

    def fits(whole: tuple[int, ...], cut: tuple[tuple[tuple[str, int], ...], ...], n: int) -> bool:
        if n == len(parts):
            return True
        state = (whole, cut, n)
        if state in seen:
            return False
        seen.add(state)
        part = parts[n]
        if isinstance(part, int):
            for i, free in enumerate(whole):
                left = tuple(sorted((*whole[:i], free - part, *whole[i + 1 :])))
                if free >= part and fits(left, cut, n + 1):
                    return True
            return False
        kind, need = units(part)
        for i, held in enumerate(cut):
            have = dict(held)
            if have.get(kind, 0) >= need:
                have[kind] -= need
                after = tuple(sorted((*cut[:i], tuple(sorted(have.items())), *cut[i + 1 :])))
                if fits(whole, after, n + 1):
                    return True
        for i, free in enumerate(whole):
            if free:
                have = fresh(fleet.leaves)
                have[kind] -= need
                left = tuple(sorted((*whole[:i], free - 1, *whole[i + 1 :])))
                if fits(left, tuple(sorted((*cut, tuple(sorted(have.items()))))), n + 1):
                    return True
        return False

    start = tuple(sorted(tuple(sorted(parts.items())) for parts in fleet.cut))
    return fits(tuple(sorted(fleet.whole)), start, 0)


@st.composite
def loads(draw: st.DrawFn) -> tuple[Fleet, list[Block]]:
    leaves, chain = draw(st.sampled_from([FRACTIONS, GEOMETRY])), draw(chains)
    sizes = [size for size in chain if size <= 5]
    whole = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)))
    if leaves is FRACTIONS:
        cut = tuple({PARTS: n} for n in draw(st.lists(st.integers(0, 2399), max_size=2)))
    else:
        have = st.fixed_dictionaries({"3g.40gb": st.integers(0, 2), "1g.10gb": st.integers(0, 1)})
        cut = tuple(draw(st.lists(have, max_size=2)))
    blocks = st.one_of(
        st.builds(Block, st.sampled_from(sizes), count=st.integers(1, 2)),
        st.just(Block(sizes[0], rest=(1,))),
        st.builds(
            Block,
            st.just(0),
            share=st.sampled_from([leaf.name for leaf in leaves]),
            count=st.integers(1, 3),
        ),
    )
    return Fleet(whole, cut, leaves, chain), draw(st.lists(blocks, max_size=5))


def fill(room: Room, blocks: list[Block]) -> bool:
    for block in blocks:
        if not room.fits(block):
            return False
        room = room.take(block)
    return True


@settings(max_examples=400, deadline=None)
@given(loads())
def test_counters_say_what_trying_everything_says(load: tuple[Fleet, list[Block]]) -> None:
    fleet, blocks = load
    assert fill(fleet.room, blocks) == packs(fleet, blocks)


@settings(max_examples=400, deadline=None)
@given(loads())
def test_what_fits_is_placed_and_no_gpu_holds_too_much(load: tuple[Fleet, list[Block]]) -> None:
    fleet, blocks = load
    winners: list[tuple[str, Block]] = []
    room = fleet.room
    for i, block in enumerate(blocks):
        if room.fits(block):
            room = room.take(block)
            winners.append((f"w{i}", block))
    seats = place(fleet.shelves, winners, fleet.leaves)
    whole = [d for id, b in winners if not b.share for d in seats[id].devices]
    assert len(whole) == len(set(whole))
    left = {f"c{i}": dict(parts) for i, parts in enumerate(fleet.cut)}
    for id, block in winners:
        devices = seats[id].devices
        if not block.share:
            assert len(devices) == block.gpus
            by_domain = sorted(d.split("/")[0] for d in devices)
            blocks_in = seats[id].domains or (seats[id].domain,)
            sizes = [block.size] * block.count + list(block.rest)
            assert len(blocks_in) == len(sizes)
            assert by_domain == sorted(
                d
                for d, size in zip(blocks_in, sorted(sizes, reverse=True), strict=True)
                for _ in range(size)
            )
            continue
        assert len(devices) == block.count
        for device in devices:
            assert device not in whole
            kind, need = units(next(x for x in fleet.leaves if x.name == block.share))
            left.setdefault(device, fresh(fleet.leaves))[kind] -= need
    assert all(n >= 0 for parts in left.values() for n in parts.values())


@settings(max_examples=200, deadline=None)
@given(loads(), st.data())
def test_every_subset_of_what_fits_fits(
    load: tuple[Fleet, list[Block]], data: st.DataObject
) -> None:
    fleet, blocks = load
    if blocks and fill(fleet.room, blocks):
        kept = data.draw(st.lists(st.sampled_from(range(len(blocks))), unique=True))
        assert fill(fleet.room, [blocks[i] for i in kept])


def places_of(**eighths: int) -> dict[str, dict[str, tuple[int, ...]]]:
    return {device: places({PARTS: 300 * n}) for device, n in eighths.items()}


def test_a_share_waits_for_nobody_while_something_is_free() -> None:
    parted = {"x": [Parting("gone", PARTS, (1200, 2400))]}
    shelf = Shelf("d0", (), {}, places_of(x=2, y=3), parted)
    asks = [("a", Block(0, share="1/2")), ("b", Block(0, share="1/4"))]
    seats = place([shelf], asks, FRACTIONS)
    # The half must wait for two of the four eighths; the quarter need not.
    assert (seats["a"].devices, seats["a"].places) == (("x",), ((0, 600, 1200, 1800),))
    assert seats["a"].taken_from == {"gone": GPU_WEIGHT // 4}
    assert (seats["b"].devices, seats["b"].taken_from) == (("y",), {})


def test_a_share_goes_where_least_is_left() -> None:
    shelf = Shelf("d0", ("a", "b"), {}, places_of(x=6, y=4))
    seats = place([shelf], [("half", Block(0, share="1/2"))], FRACTIONS)
    assert seats["half"].devices == ("y",)


def test_a_gang_may_lie_in_several_domains() -> None:
    shelves = [Shelf("d0", ("0/0", "0/1")), Shelf("d1", ("1/0", "1/1"))]
    seat = place(shelves, [("gang", Block(2, count=2))])["gang"]
    assert seat.domains == ("d0", "d1")
    assert len(seat.devices) == 4
