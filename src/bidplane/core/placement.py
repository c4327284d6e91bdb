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

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from bidplane.core.chain import EIGHTHS, Block, Leaf


class PlacementError(Exception):
    """Clearing promised room that is not there: a bug in one of the two."""


class Shelf(msgspec.Struct, frozen=True):
    """A domain's devices that winners may have."""

    domain: str
    free: tuple[str, ...]
    leaving: Mapping[str, tuple[str, ...]] = {}  # by displaced lease
    cut: Mapping[str, Mapping[str, int]] = {}  # by device that is cut: free leaves, or eighths


class Seat(msgspec.Struct, frozen=True):
    domain: str  # the first, if it is a gang's
    devices: tuple[str, ...]
    taken_from: dict[str, int] = {}  # by displaced lease: how many of its devices
    domains: tuple[str, ...] = ()  # all of a gang's, one per block; () when it is one


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
        tuple(sorted(device for part in parts for device in part.devices)),
        taken,
        tuple(part.domain for part in parts),
    )


def _best(stocks: Iterable[Stock], size: int, winner: str) -> Stock:
    candidates = [s for s in stocks if s.total >= size]
    if not candidates:
        raise PlacementError(f"no domain has {size} devices left for {winner}")
    return min(candidates, key=lambda s: s.rank(size))


def _share(stocks: Iterable[Stock], leaf: Leaf, leaves: tuple[Leaf, ...], winner: str) -> Seat:
    """One share: where least is left beside it; else of a GPU that is cut for it."""
    stocks = list(stocks)
    key = EIGHTHS if leaf.in_chain else leaf.name
    units = 8 // leaf.per_gpu if leaf.in_chain else 1
    open_ = [
        (parts[key], device, stock)
        for stock in stocks
        for device, parts in stock.cut.items()
        if parts.get(key, 0) >= units
    ]
    if open_:
        _, device, stock = min(open_, key=lambda item: item[:2])
        stock.cut[device][key] -= units
        return Seat(stock.domain, (device,), stock.awaited.get(device, {}))
    stock = _best(stocks, 1, winner)
    seat = stock.take(1)
    (device,) = seat.devices
    parts = {EIGHTHS: 8} if leaf.in_chain else {other.name: other.per_gpu for other in leaves}
    parts[key] -= units
    stock.cut[device] = parts
    stock.awaited[device] = seat.taken_from
    return seat


class Stock:
    """What is left of a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self.domain = shelf.domain
        self.free = sorted(shelf.free)
        self.cut = {device: dict(parts) for device, parts in shelf.cut.items()}
        self.awaited: dict[str, dict[str, int]] = {}  # by device cut here: whom it waits for
        # The lease that gives up most comes first, so that a winner waits for few.
        self.leaving = sorted(
            ((lease, sorted(devices)) for lease, devices in shelf.leaving.items()),
            key=lambda item: (-len(item[1]), item[0]),
        )
        self.total = len(self.free) + sum(len(devices) for _, devices in self.leaving)

    def rank(self, size: int) -> tuple[int, int, str]:
        """Smaller is chosen first: how many must be waited for, then what is left over."""
        return max(0, size - len(self.free)), self.total, self.domain

    def take(self, size: int) -> Seat:
        devices = [self.free.pop(0) for _ in range(min(size, len(self.free)))]
        taken_from: dict[str, int] = {}
        for lease, stack in self.leaving:
            while stack and len(devices) < size:
                devices.append(stack.pop(0))
                taken_from[lease] = taken_from.get(lease, 0) + 1
        self.total -= size
        return Seat(self.domain, tuple(sorted(devices)), taken_from)
