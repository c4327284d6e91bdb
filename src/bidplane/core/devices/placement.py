"""
Placement: the devices that each winner gets.

Clearing guarantees that the winners fit, so placement cannot fail: blocks go largest first, and
while blocks of one size are placed any domain with room will do (each takes exactly one block of
that size from the count). That freedom keeps the wait short: devices that are free now come before
devices that a displaced lease must leave first; then comes the tightest domain, so that large
blocks stay whole. Shares of a GPU come last, the larger first: on the fullest GPU that is cut
already, and only if none has room is another one cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from bidplane.api.money import GPU_WEIGHT
from bidplane.api.shape import PART_UNITS
from bidplane.core.devices.chain import PARTS, UNIT_WEIGHT, Block, Leaf, leaf_of, uncut
from bidplane.core.devices.ranges import Ranges, pairs, union


class PlacementError(Exception):
    """A lack of devices that clearing promised: a bug in clearing or in placement."""


class Parting(msgspec.Struct, frozen=True):
    """The places that a displaced lease leaves on one cut device."""

    lease: str
    kind: str
    places: tuple[int, ...]


class Shelf(msgspec.Struct, frozen=True):
    """The devices of a domain that winners may get."""

    domain: str
    free: tuple[str, ...]
    leaving: Mapping[str, tuple[str, ...]] = {}  # by displaced lease
    # By cut device and kind, its free places: units (`ranges`), or starts of a profile.
    cut: Mapping[str, Mapping[str, tuple[int, ...]]] = {}
    parted: Mapping[str, Sequence[Parting]] = {}  # by cut device


class Seat(msgspec.Struct, frozen=True):
    """The devices that a winner gets, and the displaced leases that it waits for."""

    domain: str  # the first, if it is a gang's
    devices: tuple[str, ...]  # of a gang, block after block
    taken_from: dict[str, int] = {}  # by displaced lease: how much of it, by weight
    domains: tuple[str, ...] = ()  # all of a gang's, one per block; () when it is one
    places: tuple[tuple[int, ...], ...] = ()  # of shares, by device: units, or a start
    parts: tuple[int, ...] = ()  # of a gang, how many devices each block has


def place(
    shelves: Iterable[Shelf],
    winners: Sequence[tuple[str, Block]],
    leaves: tuple[Leaf, ...] = (),
) -> dict[str, Seat]:
    """
    Return a seat for each winner, given in rank order.

    Of two blocks of one size the higher ranked chooses first. A share's devices are named once per
    share there.
    """
    stock = {shelf.domain: FreeDevices(shelf) for shelf in shelves}
    parts: dict[str, list[Seat]] = {}
    block_sizes = [(size, id) for id, block in winners for size in sizes_of(block)]
    for size, winner in sorted(block_sizes, key=lambda part: -part[0]):
        best = _best_domain(stock.values(), size, winner)
        parts.setdefault(winner, []).append(best.take(size))
    rank = {leaf.name: n for n, leaf in enumerate(leaves)}
    shared = [(id, block) for id, block in winners if block.share]
    # What is sent to a certain GPU has its place there before others choose.
    shared.sort(key=lambda item: (not item[1].seats, -item[1].units, rank.get(item[1].share, 0)))
    for winner, block in shared:
        leaf = leaf_of(block.share, leaves)
        if leaf is None:
            raise PlacementError(f"{winner} has won {block.share}, which is not sold there")
        containers = [container for container, _ in block.seats] or [""] * block.count
        for container in containers:
            seat = _place_share(stock.values(), leaf, leaves, winner, container)
            parts.setdefault(winner, []).append(seat)
    return {winner: joined(seats) for winner, seats in parts.items()}


def take_pinned(
    shelves: Iterable[Shelf], winners: Sequence[tuple[str, Block]]
) -> tuple[list[Shelf], dict[str, Seat]]:
    """Return the shelves without the GPUs that winners need of named domains, and their seats."""
    shelves = list(shelves)
    domains = {domain for _, block in winners for domain, _ in block.seats}
    stocks = {shelf.domain: FreeDevices(shelf) for shelf in shelves if shelf.domain in domains}
    seats = {
        winner: joined([stocks[domain].take(gpus) for domain, gpus in block.seats])
        for winner, block in winners
    }
    return [stocks[s.domain].rest(s) if s.domain in stocks else s for s in shelves], seats


def part_of(device: str, kind: str) -> str:
    """The container that a cut device is, for one kind of part."""
    return f"{device}#{kind}"


def sizes_of(block: Block) -> Iterator[int]:
    """Yield the sizes of a block's parts in whole GPUs; none for a share."""
    if not block.share:
        yield from (block.size for _ in range(block.count))
        yield from block.rest


def joined(parts: Sequence[Seat]) -> Seat:
    """Join the seats of a gang's blocks into one."""
    if len(parts) == 1:
        return parts[0]
    taken_from: dict[str, int] = {}
    for part in parts:
        for lease, count in part.taken_from.items():
            taken_from[lease] = taken_from.get(lease, 0) + count
    return Seat(
        parts[0].domain,
        tuple(device for part in parts for device in part.devices),
        taken_from,
        tuple(part.domain for part in parts),
        tuple(place for part in parts for place in part.places),
        tuple(len(part.devices) for part in parts),
    )


def _best_domain(stocks: Iterable[FreeDevices], size: int, winner: str) -> FreeDevices:
    """Return the domain that should give `size` devices, by `FreeDevices.rank`."""
    candidates = [s for s in stocks if s.can_give(size)]
    if not candidates:
        raise PlacementError(f"no domain has {size} devices left for {winner}")
    return min(candidates, key=lambda s: s.rank(size))


def _place_share(
    stocks: Iterable[FreeDevices],
    leaf: Leaf,
    leaves: tuple[Leaf, ...],
    winner: str,
    container: str = "",
) -> Seat:
    """
    Return the seat of one share: free places first, on the fullest cut GPU; else cut another GPU.

    `container`: the cut GPU that it is sent to, if to a certain one.
    """
    stocks = list(stocks)
    cut_candidates = [
        (max(0, leaf.units - parts.count_free), parts.count, device, stock)
        for stock in stocks
        for (device, kind), parts in stock.cut.items()
        if kind == leaf.kind and parts.count >= leaf.units
        if not container or container == part_of(device, kind)
    ]
    if cut_candidates:
        _, _, device, stock = min(cut_candidates, key=lambda item: item[:3])
    elif container:
        raise PlacementError(f"{container} has no room left for {winner}")
    else:
        stock = _best_domain(stocks, 1, winner)
        seat = stock.take(1)
        (device,) = seat.devices
        lease = next(iter(seat.taken_from), "")
        for kind, places in uncut(leaves).items():
            stock.cut[device, kind] = Parts([Stretch(*s, lease) for s in stretches(kind, places)])
    stretches_sold = stock.cut[device, leaf.kind].take(leaf.units)
    taken_from: dict[str, int] = {}
    weight = UNIT_WEIGHT if leaf.in_chain else leaf.weight
    for start, end, lease in stretches_sold:
        if lease:
            taken_from[lease] = taken_from.get(lease, 0) + weight * (end - start)
    ranges = union((start, end) for start, end, _ in stretches_sold)
    places = ranges if leaf.in_chain else tuple(start for start, _ in pairs(ranges))
    return Seat(stock.domain, (device,), taken_from, places=(places,))


def stretches(kind: str, places: Ranges) -> Iterator[tuple[int, int]]:
    """Yield places of a cut device as ranges; an instance of a profile is one, from its start."""
    yield from pairs(places) if kind == PARTS else ((start, start + 1) for start in places)


class Stretch(NamedTuple):
    """Places of a cut device that are next to each other."""

    start: int
    end: int
    lease: str = ""  # which must leave them first


class Parts:
    """The places of one kind on a cut device, with the leases that must leave them first."""

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        # Free places come first, then those of the lease that leaves most.
        stretches = list(stretches)
        counts: Counter[str] = Counter()
        for start, end, lease in stretches:
            counts[lease] += (end - start) if lease else 0
        self._stretches = sorted(
            stretches, key=lambda s: (bool(s.lease), -counts[s.lease], s.lease, s.start)
        )

    @property
    def count(self) -> int:
        """The number of places."""
        return sum(end - start for start, end, _ in self._stretches)

    def is_all_of(self, kind: str) -> bool:
        """Return True if no part of the GPU is with anybody else; never of one cut by MIG."""
        return kind == PARTS and self.count == PART_UNITS

    @property
    def count_free(self) -> int:
        """The number of places that no lease must leave first."""
        return sum(end - start for start, end, lease in self._stretches if not lease)

    def take(self, units: int) -> list[Stretch]:
        """Remove and return the next `units` places."""
        chosen: list[Stretch] = []
        while units:
            first = self._stretches.pop(0)
            count = min(units, first.end - first.start)
            chosen.append(first._replace(end=first.start + count))
            if first.start + count < first.end:
                self._stretches.insert(0, first._replace(start=first.start + count))
            units -= count
        return sorted(chosen)


class FreeDevices:
    """The devices of a shelf that are not placed yet."""

    def __init__(self, shelf: Shelf) -> None:
        self.domain = shelf.domain
        self.free = sorted(shelf.free)
        self.cut: dict[tuple[str, str], Parts] = {}  # by device and kind
        for device, kinds in shelf.cut.items():
            for kind, free in kinds.items():
                places = [Stretch(*stretch) for stretch in stretches(kind, free)]
                for parting in shelf.parted.get(device, ()):
                    if parting.kind == kind:
                        leaving = stretches(kind, parting.places)
                        places += [Stretch(*stretch, parting.lease) for stretch in leaving]
                self.cut[device, kind] = Parts(places)
        # The lease that gives up most comes first, so that a winner waits for few.
        self.leaving = sorted(
            ((lease, sorted(devices)) for lease, devices in shelf.leaving.items()),
            key=lambda item: (-len(item[1]), item[0]),
        )
        self.total = len(self.free) + sum(len(devices) for _, devices in self.leaving)

    def can_give(self, size: int) -> bool:
        """Return True if there are so many devices, or one is asked for and has lost its parts."""
        return self.total >= size or (size == 1 and self._vacated is not None)

    @property
    def _vacated(self) -> str | None:
        """A GPU that was cut, and of which nobody has a part any more; None if there is none."""
        whole = (device for (device, kind), parts in self.cut.items() if parts.is_all_of(kind))
        return min(whole, default=None)

    def rank(self, size: int) -> tuple[int, int, str]:
        """
        Return a sort key, least chosen first: the devices to wait for, then those in the domain.
        """
        return max(0, size - len(self.free)), self.total, self.domain

    def rest(self, shelf: Shelf) -> Shelf:
        """Return the shelf without the devices that were taken."""
        leaving = {lease: tuple(devices) for lease, devices in self.leaving if devices}
        return msgspec.structs.replace(shelf, free=tuple(self.free), leaving=leaving)

    def take(self, size: int) -> Seat:
        """Remove `size` devices, free ones first, and return them as a seat."""
        if self.total < size:
            return self._take_vacated()
        devices = [self.free.pop(0) for _ in range(min(size, len(self.free)))]
        taken_from: dict[str, int] = {}
        for lease, stack in self.leaving:
            while stack and len(devices) < size:
                devices.append(stack.pop(0))
                taken_from[lease] = taken_from.get(lease, 0) + GPU_WEIGHT
        self.total -= size
        return Seat(self.domain, tuple(sorted(devices)), taken_from)

    def _take_vacated(self) -> Seat:
        device = self._vacated
        if device is None:
            raise PlacementError(f"{self.domain} has no device left")
        taken_from: dict[str, int] = {}
        for start, end, lease in self.cut.pop((device, PARTS)).take(PART_UNITS):
            if lease:
                taken_from[lease] = taken_from.get(lease, 0) + UNIT_WEIGHT * (end - start)
        return Seat(self.domain, (device,), taken_from)
