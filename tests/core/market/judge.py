"""
A judge of rounds that tries everything: every set of leases, every packing. It imports nothing of
the product, and so nothing of the market that it judges.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bidplane.core.market import Ask, Incumbent, RoundInput, RoundResult

GPU = 2400  # units
UNITS_OF = {"0.5": 1200, "0.25": 600, "0.125": 300}
SIZES = (1, 2, 4, 8)  # of blocks


def worth(party: Ask | Incumbent, units: int) -> int:
    """Price × weight × units of a GPU."""
    return party.price * party.weight * units


def lease_worth(lease: Incumbent) -> int:
    return worth(lease, len(lease.devices) * UNITS_OF.get(lease.share, GPU))


def worth_before(given: RoundInput) -> int:
    return sum(map(lease_worth, given.incumbents))


def worth_after(given: RoundInput, result: RoundResult) -> int:
    asks = {ask.id: ask for ask in given.asks}
    gone = {displaced.lease for displaced in result.displaced}
    stay = sum(lease_worth(lease) for lease in given.incumbents if lease.id not in gone)
    return stay + sum(
        worth(asks[won.ask], len(won.devices) * UNITS_OF.get(asks[won.ask].share, GPU))
        for won in result.won
    )


@lru_cache(maxsize=500_000)
def packs(whole: tuple[int, ...], cut: tuple[int, ...], blocks: tuple[int, ...]) -> bool:
    """
    Return whether blocks can be placed, by trying every place for each. `whole`: GPUs that nobody
    has a part of, by domain; `cut`: the free units of each other GPU, which is a block of one when
    nobody has a part of it any more. `blocks`: units, the largest first.
    """
    if not blocks:
        return True
    size, rest = blocks[0], blocks[1:]
    gpus, parts = max(1, size // GPU), cut if size <= GPU else ()
    in_whole = (
        packs(_less(whole, i, gpus), _opened(cut, size), rest)
        for i, room in enumerate(whole)
        if room >= gpus
    )
    in_cut = (packs(whole, _less(cut, i, size), rest) for i, n in enumerate(parts) if n >= size)
    return any(in_cut) or any(in_whole)


def _less(amounts: tuple[int, ...], i: int, taken: int) -> tuple[int, ...]:
    return tuple(sorted((*amounts[:i], amounts[i] - taken, *amounts[i + 1 :])))


def _opened(cut: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The GPUs that are cut, with one of which a part was just taken."""
    return tuple(sorted((*cut, GPU - size))) if size < GPU else cut


def locked_out(given: RoundInput, result: RoundResult) -> Iterator[tuple[str, tuple[str, ...]]]:
    """
    Yield losing bids that outrank leases that are worth less than they, with those leases, whose
    leaving would let them in beside everybody who won. In one lot or several.
    """
    asks = {ask.id: ask for ask in given.asks}
    gone = {displaced.lease for displaced in result.displaced}
    staying = [lease for lease in given.incumbents if lease.id not in gone]
    won = [block for w in result.won for block in _blocks(asks[w.ask])]
    # What a displaced lease left over is sold in that round only to bids that outrank it.
    closed = max((i.price * i.weight for i in given.incumbents if i.id in gone), default=0)
    base = max(lot.base for lot in given.lots)
    for loss in result.lost:
        ask = asks[loss.ask]
        key = ask.price * ask.weight
        if key <= closed or ask.price < base:
            continue
        able = [i for i in staying if i.price * i.weight < key and i.agent != ask.agent]
        mine = worth(ask, sum(size for _, size in _blocks(ask)))
        for leaving in _subsets(able):
            if sum(map(lease_worth, leaving)) >= mine:
                continue
            left = [lease for lease in staying if lease not in leaving]
            if _room_for(given, left, (*won, *_blocks(ask))):
                yield ask.id, tuple(lease.id for lease in leaving)


def _blocks(ask: Ask) -> tuple[tuple[str, int], ...]:
    """The lot and units of each block of a bid, rounded up as it is sold."""
    return tuple(
        (need.lot, UNITS_OF.get(need.share) or GPU * next(n for n in SIZES if n >= need.gpus))
        for need in (ask, *ask.also)
        for _ in range(need.blocks)
    )


def _subsets(leases: list[Incumbent]) -> Iterator[tuple[Incumbent, ...]]:
    for n in range(len(leases) + 1):
        yield from itertools.combinations(leases, n)


def _room_for(
    given: RoundInput, staying: list[Incumbent], blocks: Iterable[tuple[str, int]]
) -> bool:
    blocks = list(blocks)
    for lot in given.lots:
        whole = {domain.name: len(domain.free) for domain in lot.domains}
        cut = {device: GPU for domain in lot.domains for device in domain.cut}
        for lease in given.incumbents:
            stays = lease in staying
            if lease.lot == lot.name and lease.share and stays:
                cut[lease.devices[0]] -= UNITS_OF[lease.share]
            elif lease.lot == lot.name and not lease.share and not stays:
                whole[lease.domain] += len(lease.devices)
        units = sorted((size for name, size in blocks if name == lot.name), reverse=True)
        if not packs(tuple(sorted(whole.values())), tuple(sorted(cut.values())), tuple(units)):
            return False
    return True
