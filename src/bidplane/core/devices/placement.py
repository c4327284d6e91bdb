"""
Placement: the devices that each winner gets.

Clearing guarantees that the winners fit, so placement cannot fail: blocks go largest first, and
while blocks of one size are placed any domain with room will do (each takes exactly one block of
that size from the count). That freedom keeps the wait short: devices that are free now come before
devices that a displaced lease must leave first; then comes the tightest domain, so that large
blocks stay whole. Shares of a GPU come last: on the fullest GPU that is cut already, and only if
none has room is another one cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.chain import Block, Leaf, uncut


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
    # By cut device and kind, its free places: eighths, or starts of a profile.
    cut: Mapping[str, Mapping[str, tuple[int, ...]]] = {}
    parted: Mapping[str, Sequence[Parting]] = {}  # by cut device


class Seat(msgspec.Struct, frozen=True):
    """The devices that a winner gets, and the displaced leases that it waits for."""

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
    for winner, block in sorted(shared, key=lambda item: rank[item[1].share]):
        leaf = leaves[rank[block.share]]
        for _ in range(block.count):
            parts.setdefault(winner, []).append(_place_share(stock.values(), leaf, leaves, winner))
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
    """Return the domain that should give `size` devices, by `Stock.rank`."""
    candidates = [s for s in stocks if s.total >= size]
    if not candidates:
        raise PlacementError(f"no domain has {size} devices left for {winner}")
    return min(candidates, key=lambda s: s.rank(size))


def _place_share(
    stocks: Iterable[FreeDevices], leaf: Leaf, leaves: tuple[Leaf, ...], winner: str
) -> Seat:
    """
    Return the seat of one share: free places first, on the fullest cut GPU; else cut another GPU.
    """
    stocks = list(stocks)
    cut_candidates = [
        (max(0, leaf.units - parts.count_free), len(parts.places), device, stock)
        for stock in stocks
        for (device, kind), parts in stock.cut.items()
        if kind == leaf.kind and len(parts.places) >= leaf.units
    ]
    if cut_candidates:
        _, _, device, stock = min(cut_candidates, key=lambda item: item[:3])
    else:
        stock = _best_domain(stocks, 1, winner)
        seat = stock.take(1)
        (device,) = seat.devices
        lease = next(iter(seat.taken_from), "")
        for kind, places in uncut(leaves).items():
            stock.cut[device, kind] = Parts([(place, lease) for place in places])
    taken_places = stock.cut[device, leaf.kind].take(leaf.units)
    taken_from: dict[str, int] = {}
    for _, lease in taken_places:
        if lease:
            taken_from[lease] = taken_from.get(lease, 0) + leaf.weight // leaf.units
    return Seat(stock.domain, (device,), taken_from, places=(tuple(p for p, _ in taken_places),))


class Parts:
    """The places of one kind on a cut device, each with the lease that must leave it first."""

    def __init__(self, places: Iterable[tuple[int, str]]) -> None:
        # Free places come first, then those of the lease that leaves most.
        places = list(places)
        counts = Counter(lease for _, lease in places if lease)
        self.places = sorted(places, key=lambda p: (bool(p[1]), -counts[p[1]], p[1], p[0]))

    @property
    def count_free(self) -> int:
        """The number of places that no lease must leave first."""
        return sum(not lease for _, lease in self.places)

    def take(self, units: int) -> list[tuple[int, str]]:
        """Remove and return the next `units` places."""
        first_places, self.places = self.places[:units], self.places[units:]
        return sorted(first_places)


class FreeDevices:
    """The devices of a shelf that are not placed yet."""

    def __init__(self, shelf: Shelf) -> None:
        self.domain = shelf.domain
        self.free = sorted(shelf.free)
        self.cut: dict[tuple[str, str], Parts] = {}  # by device and kind
        for device, kinds in shelf.cut.items():
            for kind, free in kinds.items():
                places = [(place, "") for place in free]
                for parting in shelf.parted.get(device, ()):
                    if parting.kind == kind:
                        places += [(place, parting.lease) for place in parting.places]
                self.cut[device, kind] = Parts(places)
        # The lease that gives up most comes first, so that a winner waits for few.
        self.leaving = sorted(
            ((lease, sorted(devices)) for lease, devices in shelf.leaving.items()),
            key=lambda item: (-len(item[1]), item[0]),
        )
        self.total = len(self.free) + sum(len(devices) for _, devices in self.leaving)

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
        devices = [self.free.pop(0) for _ in range(min(size, len(self.free)))]
        taken_from: dict[str, int] = {}
        for lease, stack in self.leaving:
            while stack and len(devices) < size:
                devices.append(stack.pop(0))
                taken_from[lease] = taken_from.get(lease, 0) + GPU_WEIGHT
        self.total -= size
        return Seat(self.domain, tuple(sorted(devices)), taken_from)
