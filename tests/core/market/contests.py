"""Words for tests of the market: small fleets, bids, and an oracle that tries everything."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
from hypothesis import strategies as st

from bidplane.core.devices import ranges
from bidplane.core.devices.chain import CHAIN, FRACTIONS, PARTS, Block, Chain, Leaf
from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.model import ONE, Ask, Domain, Incumbent, Lot, RoundInput

FLOOR = 100


def packs(free: Mapping[str, int], blocks: list[Block]) -> bool:
    """Whether the blocks fit, by trying every domain for every movable block."""
    left = dict(free)
    for block in blocks:
        if block.domain:
            left[block.domain] = left.get(block.domain, 0) - block.size
    if min(left.values(), default=0) < 0:
        return False
    return _packs(
        tuple(sorted(left.values())), tuple(sorted(b.size for b in blocks if not b.domain))
    )


@lru_cache(maxsize=100_000)
def _packs(free: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    if not sizes:
        return True
    size, rest = sizes[-1], sizes[:-1]
    return any(
        room >= size and _packs(tuple(sorted((*free[:i], room - size, *free[i + 1 :]))), rest)
        for i, room in enumerate(free)
    )


# What a pool may sell: the usual, threes, sizes beyond any domain here, single GPUs only.
CHAINS = (CHAIN, (3, 1), (6, 3, 1), (12, 4, 1), (16, 8, 4, 2, 1), (5, 1), (1,))
chains = st.sampled_from([CHAIN, *CHAINS])
# Of a running lease: of any chain, its pool may have changed it since.
held = st.sampled_from(sorted({size for chain in CHAINS for size in chain if size < 9}))
# Few distinct prices, so that ties and equal keys happen often.
prices = st.integers(1, 12).map(lambda n: n * FLOOR)
weights = st.sampled_from([ONE, ONE, 1075, 1280, 3 * ONE])


@st.composite
def fleets(draw: st.DrawFn, most: int = 3) -> dict[str, int]:
    """Domains of 1 to 9 GPUs: unhealthy holes and odd machines included."""
    free = draw(st.lists(st.integers(1, 9), min_size=1, max_size=most))
    return {f"d{i}": n for i, n in enumerate(free)}


@st.composite
def contests(
    draw: st.DrawFn, *, leaves: tuple[Leaf, ...] = (), agents: tuple[str, ...] = ("",)
) -> tuple[Room, list[Contestant]]:
    """
    A fleet, and bids with running leases that compete for it; the leases fit. `agents`: whose
    they are, "" for strangers.
    """
    free, chain = draw(fleets()), draw(chains)
    left = dict(free)
    field: list[Contestant] = []
    for i in range(draw(st.integers(0, 10))):
        weight, price = draw(weights), draw(prices)
        domain = draw(st.sampled_from(["", "", *sorted(free)]))
        size = draw(held if domain else st.sampled_from(chain))
        if domain:
            if left[domain] < size:
                continue
            left[domain] -= size
        tie = draw(st.integers(0, 2))
        reserve = FLOOR
        bidder, urgent = draw(st.sampled_from(agents)), draw(st.integers(0, 5)) == 0
        field.append(
            Contestant(
                f"c{i}",
                Block(size, domain),
                price,
                weight,
                tie,
                reserve,
                bidder,
                bool(domain),
                bool(bidder) and urgent,
            )
        )
    return Room(free, leaves=leaves, chain=chain), field


_SHARES = [(1200, "0.5"), (720, "0.3"), (300, "0.125")]


@st.composite
def rounds(draw: st.DrawFn) -> RoundInput:
    """One or two lots, with leases that run in them and bids from a few agents."""
    lots: list[Lot] = []
    incumbents: list[Incumbent] = []
    for lot in ("a", "b")[: draw(st.integers(1, 2))]:
        domains = []
        shared = draw(st.booleans())
        chain = draw(chains)
        for name, size in draw(fleets()).items():
            free = [f"{lot}/{name}/{i}" for i in range(size)]
            for _ in range(draw(st.integers(0, 3))):
                block = draw(held)
                if block > len(free):
                    continue
                price = draw(prices)
                incumbents.append(
                    Incumbent(
                        id=f"lease-{len(incumbents)}",
                        agent=draw(st.sampled_from("xyz")),
                        owner=draw(st.sampled_from("pq")),
                        lot=lot,
                        domain=f"{lot}-{name}",
                        devices=tuple(free[:block]),
                        price=price,
                        weight=draw(weights),
                        reserve=draw(st.integers(1, price)),
                        compensation=draw(st.integers(0, 40)),
                    )
                )
                free = free[block:]
            kept = free[draw(st.integers(0, 1)) :]  # one may be held by a lease that drains
            cut = {}
            if shared and kept and draw(st.booleans()):
                device, kept = kept[0], kept[1:]
                left = ranges.WHOLE
                for units, share in draw(st.lists(st.sampled_from(_SHARES), max_size=3)):
                    if units > ranges.size_of(left):
                        continue
                    taken, left = ranges.take(left, units)
                    price = draw(prices)
                    incumbents.append(
                        Incumbent(
                            id=f"lease-{len(incumbents)}",
                            agent=draw(st.sampled_from("xyz")),
                            owner=draw(st.sampled_from("pq")),
                            lot=lot,
                            domain=f"{lot}-{name}",
                            devices=(device,),
                            price=price,
                            weight=draw(weights),
                            reserve=draw(st.integers(1, price)),
                            compensation=draw(st.integers(0, 40)),
                            share=share,
                            places=(taken,),
                        )
                    )
                # Some of it may be held by a lease that drains.
                drains = min(ranges.size_of(left), draw(st.sampled_from([0, 0, 300, 450])))
                cut[device] = {PARTS: ranges.take(left, drains)[1]}
            domains.append(Domain(name=f"{lot}-{name}", size=size, free=tuple(kept), cut=cut))
        base = draw(st.integers(1, 4)) * FLOOR
        lots.append(
            Lot(
                name=lot,
                base=base,
                posted=base + draw(st.integers(0, 5)) * FLOOR,
                domains=tuple(domains),
                leaves=FRACTIONS if shared else (),
                exact=draw(st.booleans()),
                chain=chain,
            )
        )
    names = [lot.name for lot in lots]
    asks = [
        Ask(
            id=f"bid-{i}",
            agent=draw(st.sampled_from("xyz")),
            owner=draw(st.sampled_from("pq")),
            gpus=draw(st.integers(1, 9)),
            price=draw(prices),
            lot=draw(st.sampled_from(["", *names, "nowhere"])),
            tie=draw(st.integers(10, 12)),
            hold={name: draw(st.integers(1, 60)) for name in names},
            blocks=draw(st.sampled_from([1, 1, 2])),
            spread=draw(st.sampled_from([False, False, True])),
            share=draw(st.sampled_from(["", "", "", "1/2", "0.5", "0.4", "0.3", "1/8"])),
            whole_domain=draw(st.sampled_from([False, False, True])),
        )
        for i in range(draw(st.integers(0, 8)))
    ]
    asks = [
        msgspec.structs.replace(ask, whole_domain=False) if ask.share or ask.spread else ask
        for ask in asks
    ]
    if len(asks) > 1 and draw(st.booleans()):
        last = asks.pop()
        instead = msgspec.structs.replace(
            last, id=asks[0].id, agent=asks[0].agent, owner=asks[0].owner
        )
        asks[0] = msgspec.structs.replace(asks[0], otherwise=(instead,))
    return RoundInput(
        at=0,
        lots=tuple(lots),
        asks=tuple(asks),
        incumbents=tuple(incumbents),
        available={agent: draw(st.integers(0, 300)) for agent in "xyz"},
    )


# Parts of GPUs, packed by trying everything

MIG = (
    Leaf("3g", 1, 8400, in_chain=False, starts=(4,), span=4),
    Leaf("1g", 2, 2400, False, (0, 2), 1),
)
_UNITS = {"0.5": 1200, "0.25": 600, "0.125": 300, "0.0625": 150, "0.031": 75, "0.0104": 25}


class Parted(NamedTuple):
    """A small lot that sells parts: whole GPUs by domain, and GPUs that are cut already."""

    leaves: tuple[Leaf, ...]
    whole: dict[str, int]
    cut: dict[str, dict[str, int]]  # by device and kind: how much nobody has, leases aside
    chain: Chain = CHAIN

    def room(self, field: list[Contestant]) -> Room:
        """With what the running ones among the contestants have."""
        free = {
            **self.whole,
            **{f"{d}#{k}": n for d, ks in self.cut.items() for k, n in ks.items()},
        }
        for one in field:
            for container, n in one.block.seats:
                free[container] += n
        kinds = {f"{d}#{k}": k for d, kinds in self.cut.items() for k in kinds}
        return Room(free, leaves=self.leaves, cut=kinds, chain=self.chain)

    def packs(self, field: list[Contestant], all_of: list[Contestant]) -> bool:
        cut = {d: dict(kinds) for d, kinds in self.cut.items()}
        for one in all_of:  # what a running one gives up is there for others
            for container, n in one.block.seats:
                device, _, kind = container.partition("#")
                cut[device][kind] += n
        asked: list[tuple[str, int]] = []
        for one in field:
            for container, n in one.block.seats:
                device, _, kind = container.partition("#")
                cut[device][kind] -= n
            if not one.block.seats:
                asked += [(one.block.share, one.block.size)] * one.block.count
        if any(n < 0 for kinds in cut.values() for n in kinds.values()):
            return False
        gpus = tuple(sorted(tuple(sorted(kinds.items())) for kinds in cut.values()))
        # The larger first: what can be placed at all can be placed in that order, too.
        asked.sort(key=lambda a: (-a[1], -_UNITS.get(a[0], 0), a[0]))
        return _packs_parts(tuple(sorted(self.whole.values())), gpus, tuple(asked), self.leaves)


Gpu = tuple[tuple[str, int], ...]


@lru_cache(maxsize=100_000)
def _packs_parts(
    whole: tuple[int, ...],
    cut: tuple[Gpu, ...],
    asked: tuple[tuple[str, int], ...],
    leaves: tuple[Leaf, ...],
) -> bool:
    if not asked:
        return True
    (share, size), rest = asked[0], asked[1:]
    for i, n in enumerate(whole):
        need = size or 1
        if n < need:
            continue
        left = tuple(sorted((*whole[:i], n - need, *whole[i + 1 :])))
        fresh = {leaf.kind: 2400 if leaf.in_chain else leaf.per_gpu for leaf in leaves}
        opened = (*cut, tuple(sorted(fresh.items()))) if share else cut
        if share:  # a GPU is opened, and the part is then cut from it
            if _packs_parts(left, tuple(sorted(opened)), asked, leaves):
                return True
        elif _packs_parts(left, cut, rest, leaves):
            return True
    if size == 1:  # a GPU that has lost all of its parts
        for i, gpu in enumerate(cut):
            if dict(gpu).get(PARTS) == 2400 and _packs_parts(
                whole, (*cut[:i], *cut[i + 1 :]), rest, leaves
            ):
                return True
    if share:
        kind, units = (PARTS, _UNITS[share]) if share in _UNITS else (share, 1)
        for i, gpu in enumerate(cut):
            have = dict(gpu)
            if have.get(kind, 0) >= units:
                have[kind] -= units
                changed = (*cut[:i], tuple(sorted(have.items())), *cut[i + 1 :])
                if _packs_parts(whole, tuple(sorted(changed)), rest, leaves):
                    return True
    return False


@st.composite
def parted(draw: st.DrawFn) -> tuple[Parted, list[Contestant]]:
    """Whole blocks and parts, for a few GPUs of which some are cut and in part leased."""
    leaves, chain = draw(st.sampled_from([FRACTIONS, MIG])), draw(chains)
    whole = {f"d{i}": n for i, n in enumerate(draw(st.lists(st.integers(0, 4), max_size=2)))}
    field: list[Contestant] = []
    cut: dict[str, dict[str, int]] = {}

    def enters(block: Block) -> None:
        price, weight, tie = draw(prices), draw(weights), draw(st.integers(0, 2))
        field.append(
            Contestant(f"c{len(field)}", block, price, weight, tie, FLOOR, is_lease=block.is_pinned)
        )

    for g in range(draw(st.integers(0, 2))):
        left = {leaf.kind: 2400 if leaf.in_chain else leaf.per_gpu for leaf in leaves}
        for leaf in draw(st.lists(st.sampled_from(leaves), max_size=2)):
            units = leaf.units
            if left[leaf.kind] >= units:
                left[leaf.kind] -= units
                enters(Block(0, seats=((f"g{g}#{leaf.kind}", units),)))
        cut[f"g{g}"] = left
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            enters(Block(draw(st.sampled_from([size for size in chain if size < 5]))))
        else:
            count = draw(st.sampled_from([1, 1, 2]))
            enters(Block(0, share=draw(st.sampled_from(leaves)).name, count=count))
    return Parted(leaves, whole, cut, chain), field
