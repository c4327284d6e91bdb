"""
Which devices a winner gets.

Clearing has said that the winners fit, so placement cannot fail: blocks go largest
first, and while blocks of one size are being placed any domain with room will do (each
takes exactly one block of that size from the count). That freedom is used to keep the
wait short: devices that are free now before devices a displaced lease must first leave,
and then the tightest domain, so that large blocks stay whole. Shares of a GPU come last:
on the fullest GPU that is cut already, and only then is another one cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.chain import Block, Leaf, uncut


class PlacementError(Exception):
    """Clearing promised room that is not there: a bug in one of the two."""


class Parting(msgspec.Struct, frozen=True):
    """What a displaced lease leaves of one cut device."""

    lease: str
    kind: str
    places: tuple[int, ...]


class Shelf(msgspec.Struct, frozen=True):
    """A domain's devices that winners may have."""

    domain: str
    free: tuple[str, ...]
    leaving: Mapping[str, tuple[str, ...]] = {}  # by displaced lease
    # By device that is cut, what is free by kind: eighths, or starts of a profile.
    cut: Mapping[str, Mapping[str, tuple[int, ...]]] = {}
    parted: Mapping[str, Sequence[Parting]] = {}  # by device that is cut


class Seat(msgspec.Struct, frozen=True):
    domain: str  # the first, if it is a gang's
    devices: tuple[str, ...]  # of a gang, block after block
    taken_from: dict[str, int] = {}  # by displaced lease: how much of it, in 56ths of a GPU
    domains: tuple[str, ...] = ()  # all of a gang's, one per block; () when it is one
    places: tuple[tuple[int, ...], ...] = ()  # of shares, by device: eighths, or a start
    parts: tuple[int, ...] = ()  # of a gang, how many devices each block has


def place(
    shelves: Iterable[Shelf],
    winners: Sequence[tuple[str, Block]],
    leaves: tuple[Leaf, ...] = (),
) -> dict[str, Seat]:
    """
    A seat for each winner, given in rank order: of two blocks of one size, the one that
    ranks higher chooses first. A share's devices are named once per share it has there.
    """
    stock = {shelf.domain: Stock(shelf) for shelf in shelves}
    parts: dict[str, list[Seat]] = {}
    whole = [(size, id) for id, block in winners for size in sizes_of(block)]
    for size, winner in sorted(whole, key=lambda part: -part[0]):
        best = _best(stock.values(), size, winner)
        parts.setdefault(winner, []).append(best.take(size))
    rank = {leaf.name: n for n, leaf in enumerate(leaves)}
    shared = [(id, block) for id, block in winners if block.share]
    for winner, block in sorted(shared, key=lambda item: rank[item[1].share]):
        leaf = leaves[rank[block.share]]
        for _ in range(block.count):
            parts.setdefault(winner, []).append(_share(stock.values(), leaf, leaves, winner))
    return {winner: joined(found) for winner, found in parts.items()}


def take_pinned(
    shelves: Iterable[Shelf], winners: Sequence[tuple[str, Block]]
) -> tuple[list[Shelf], dict[str, Seat]]:
    """For winners that need so many GPUs of named domains: their seats, and what is left."""
    shelves = list(shelves)
    wanted = {domain for _, block in winners for domain, _ in block.seats}
    stocks = {shelf.domain: Stock(shelf) for shelf in shelves if shelf.domain in wanted}
    seats = {
        winner: joined([stocks[domain].take(gpus) for domain, gpus in block.seats])
        for winner, block in winners
    }
    return [stocks[s.domain].rest(s) if s.domain in stocks else s for s in shelves], seats


def sizes_of(block: Block) -> Iterator[int]:
    if not block.share:
        yield from (block.size for _ in range(block.count))
        yield from block.rest


def joined(parts: Sequence[Seat]) -> Seat:
    if len(parts) == 1:
        return parts[0]
    taken: dict[str, int] = {}
    for part in parts:
        for lease, count in part.taken_from.items():
            taken[lease] = taken.get(lease, 0) + count
    return Seat(
        parts[0].domain,
        tuple(device for part in parts for device in part.devices),
        taken,
        tuple(part.domain for part in parts),
        tuple(place for part in parts for place in part.places),
        tuple(len(part.devices) for part in parts),
    )


def _best(stocks: Iterable[Stock], size: int, winner: str) -> Stock:
    candidates = [s for s in stocks if s.total >= size]
    if not candidates:
        raise PlacementError(f"no domain has {size} devices left for {winner}")
    return min(candidates, key=lambda s: s.rank(size))


def _share(stocks: Iterable[Stock], leaf: Leaf, leaves: tuple[Leaf, ...], winner: str) -> Seat:
    """One share: free before waited for, where least is left beside it; else another GPU is cut."""
    stocks = list(stocks)
    open_ = [
        (max(0, leaf.units - parts.count_free), len(parts.places), device, stock)
        for stock in stocks
        for (device, kind), parts in stock.cut.items()
        if kind == leaf.kind and len(parts.places) >= leaf.units
    ]
    if open_:
        _, _, device, stock = min(open_, key=lambda item: item[:3])
    else:
        stock = _best(stocks, 1, winner)
        seat = stock.take(1)
        (device,) = seat.devices
        lease = next(iter(seat.taken_from), "")
        for kind, places in uncut(leaves).items():
            stock.cut[device, kind] = Parts([(place, lease) for place in places])
    taken = stock.cut[device, leaf.kind].take(leaf.units)
    taken_from: dict[str, int] = {}
    for _, lease in taken:
        if lease:
            taken_from[lease] = taken_from.get(lease, 0) + leaf.weight // leaf.units
    return Seat(stock.domain, (device,), taken_from, places=(tuple(p for p, _ in taken),))


class Parts:
    """The places of one kind on a cut device, each with the lease that must leave it first."""

    def __init__(self, places: Iterable[tuple[int, str]]) -> None:
        # What is free now comes first; the lease that leaves most, before others.
        places = list(places)
        most = Counter(lease for _, lease in places if lease)
        self.places = sorted(places, key=lambda p: (bool(p[1]), -most[p[1]], p[1], p[0]))

    @property
    def count_free(self) -> int:
        return sum(not lease for _, lease in self.places)

    def take(self, units: int) -> list[tuple[int, str]]:
        taken, self.places = self.places[:units], self.places[units:]
        return sorted(taken)


class Stock:
    """What is left of a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self.domain = shelf.domain
        self.free = sorted(shelf.free)
        self.cut: dict[tuple[str, str], Parts] = {}  # by device and kind
        for device, kinds in shelf.cut.items():
            for kind, free in kinds.items():
                places = [(place, "") for place in free]
                for gone in shelf.parted.get(device, ()):
                    if gone.kind == kind:
                        places += [(place, gone.lease) for place in gone.places]
                self.cut[device, kind] = Parts(places)
        # The lease that gives up most comes first, so that a winner waits for few.
        self.leaving = sorted(
            ((lease, sorted(devices)) for lease, devices in shelf.leaving.items()),
            key=lambda item: (-len(item[1]), item[0]),
        )
        self.total = len(self.free) + sum(len(devices) for _, devices in self.leaving)

    def rank(self, size: int) -> tuple[int, int, str]:
        """Smaller is chosen first: how many must be waited for, then what is left over."""
        return max(0, size - len(self.free)), self.total, self.domain

    def rest(self, shelf: Shelf) -> Shelf:
        """The shelf, without the devices that were taken."""
        leaving = {lease: tuple(devices) for lease, devices in self.leaving if devices}
        return msgspec.structs.replace(shelf, free=tuple(self.free), leaving=leaving)

    def take(self, size: int) -> Seat:
        devices = [self.free.pop(0) for _ in range(min(size, len(self.free)))]
        taken_from: dict[str, int] = {}
        for lease, stack in self.leaving:
            while stack and len(devices) < size:
                devices.append(stack.pop(0))
                taken_from[lease] = taken_from.get(lease, 0) + GPU_WEIGHT
        self.total -= size
        return Seat(self.domain, tuple(sorted(devices)), taken_from)
