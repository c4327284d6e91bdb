"""
From devices and leases to what a round sells: lots, their domains, and who sits where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from bidplane.api import labels
from bidplane.api.bid import BidReason
from bidplane.api.lease import Device
from bidplane.api.pool import Divides
from bidplane.core import mig
from bidplane.core.chain import FRACTIONS, Leaf, uncut, whole_domain
from bidplane.core.market import Domain
from bidplane.core.market.explain import NO_WHOLE_DOMAIN
from bidplane.core.market.lots import Kind, partition
from bidplane.core.market.model import Moved, Won
from bidplane.exchange.devices import DeviceView
from bidplane.exchange.snapshot import BidView, PoolView
from bidplane.ledger.records import Lease
from bidplane.wire.quantity import parse as parse_quantity


class Stock(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The devices of one lot."""

    lot: str
    pool: PoolView
    domains: Mapping[str, tuple[Device, ...]]
    leaves: tuple[Leaf, ...] = ()  # the parts of one GPU that are sold
    closed: Mapping[Device, str] = {}  # nobody new gets these: where they are, and why not
    views: tuple[DeviceView, ...] = ()
    problem: str = ""  # why it sells no parts, though its pool would

    @property
    def devices(self) -> int:
        return sum(len(devices) for devices in self.domains.values())

    @cached_property
    def domain(self) -> int:
        """How many GPUs a whole domain is, where each is one block; else 0."""
        return whole_domain(map(len, self.domains.values()), self.pool.chain)

    @cached_property
    def where(self) -> dict[Device, str]:
        return {device: name for name, members in self.domains.items() for device in members}

    @cached_property
    def by_key(self) -> dict[str, Device]:
        return {device_key(device): device for device in self.where}

    def leaf(self, share: str) -> Leaf | None:
        return next((leaf for leaf in self.leaves if leaf.name == share), None)

    @cached_property
    def withheld(self) -> str:
        """What of it nobody new gets now, and why, in words; "" if all is for sale."""
        counts = Counter(self.closed.values())
        told = [
            f"{count} of {self.devices} {self.pool.product} {'is' if count == 1 else 'are'} {why}"
            for why, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ]
        more = len(told) - _TOLD_MOST
        rest = [f"and so on for {more} more nodes"] if more > 0 else []
        return "; ".join([*told[:_TOLD_MOST], *rest])


_TOLD_MOST = 3  # nodes that are named


class Shop(NamedTuple):
    """Everything that is for sale, and what of it each selector means."""

    stocks: tuple[Stock, ...]
    true_of: Mapping[tuple[str, str], frozenset[str]]  # by pool and selector: lots
    refused: Mapping[tuple[str, str], tuple[BidReason, str]]

    def lots_for(self, bid: BidView) -> tuple[str, ...] | tuple[BidReason, str]:
        """
        The lots that will do for a bid; or why none does. Without a pool by that name the
        answer is () and the round says so.
        """
        if bid.distinct:
            return BidReason.CONSTRAINT_NOT_SOLD, (
                f"distinctAttribute {bid.distinct!r}: a block's devices are chosen for being"
                " alike; bid for each device by itself"
            )
        found: list[str] = []
        why: list[tuple[BidReason, str]] = []
        for item in self.stocks:
            if bid.pool and item.pool.name != bid.pool:
                continue
            key = item.pool.name, bid.selector
            if key in self.refused:
                why.append(self.refused[key])
            elif bid.selector and item.lot not in self.true_of.get(key, ()):
                why.append((BidReason.SELECTS_NOTHING, _NOTHING))
            elif bid.whole_domain and not item.domain:
                why.append((BidReason.CONSTRAINT_NOT_SOLD, NO_WHOLE_DOMAIN))
            elif (unkept := _unkept(item, bid)) is not None:
                why.append((BidReason.CONSTRAINT_NOT_SOLD, unkept))
            else:
                found.append(item.lot)
        return tuple(found) if found or not why else min(why, key=lambda w: _ORDER.index(w[0]))


_NOTHING = "no device that is sold there is as its selector says; ask for another, or change it"
# Of several lots' reasons, the one the bidder can do most about.
_ORDER = (
    BidReason.BAD_BID,
    BidReason.SELECTOR_TOO_FINE,
    BidReason.CONSTRAINT_NOT_SOLD,
    BidReason.SELECTS_NOTHING,
)


def _unkept(item: Stock, bid: BidView) -> str | None:
    """An attribute that devices of a block of this lot lack, or may differ in."""
    if not bid.match:
        return None
    containers = list(item.domains.values())
    if bid.blocks > 1 or bid.spread:
        containers = [tuple(device for members in containers for device in members)]
    views = {view.device: view for view in item.views}
    for name in bid.match:
        for members in containers:
            values = {views[device].traits.get(name) for device in members}
            if None in values:
                return (
                    f"matchAttribute {name!r}: devices of {item.lot} do not have that attribute;"
                    " name one of theirs, or leave the constraint out"
                )
            if len(values) > 1:
                return (
                    f"matchAttribute {name!r}: devices of one block of {item.lot} may differ in"
                    " it; ask the pool's owner to add it to sellBy"
                )
    return None


def shop(
    pools: Iterable[PoolView],
    devices: Iterable[DeviceView],
    bids: Iterable[BidView] = (),
    cards: Mapping[str, Mapping[str, mig.Profile]] | None = None,
) -> Shop:
    """
    Each device in one pool: of two that want its product, the first by name. `cards`: by UUID,
    how GPUs can be cut of which no table knows.
    """
    claimed: dict[str, PoolView] = {}
    ordered = sorted(pools, key=lambda pool: pool.name)
    for pool in ordered:
        claimed.setdefault(pool.product, pool)
    views: dict[str, list[DeviceView]] = {pool.name: [] for pool in ordered}
    for view in sorted(devices, key=lambda view: view.device):
        seller = claimed.get(view.product)
        if seller is not None:
            views[seller.name].append(view)
    choices = [need for bid in sorted(bids, key=_age) for need in bid.every_need]
    selecting = [choice for choice in choices if choice.selector]
    stocks: list[Stock] = []
    true_of: dict[tuple[str, str], frozenset[str]] = {}
    refused: dict[tuple[str, str], tuple[BidReason, str]] = {}
    for pool in ordered:
        selectors = [c.selector for c in selecting if c.pool in ("", pool.name)]
        kinds = {view.device: _kind(pool, view, bool(selectors)) for view in views[pool.name]}
        cut = partition(pool.name, kinds.values(), selectors, most=pool.max_lots)
        members: dict[str, list[DeviceView]] = {} if kinds else {pool.name: []}
        for view in views[pool.name]:
            members.setdefault(cut.names[kinds[view.device]], []).append(view)
        stocks += [_stock(lot, pool, found, cards or {}) for lot, found in sorted(members.items())]
        true_of |= {(pool.name, s): lots for s, lots in cut.true_of.items()}
        too_fine = f"its selector would split {pool.name} into more than {pool.max_lots} lots"
        for selector in cut.too_fine:
            refused[pool.name, selector] = BidReason.SELECTOR_TOO_FINE, too_fine
        for selector, problem in cut.broken.items():
            refused[pool.name, selector] = BidReason.BAD_BID, f"selector: {problem}"
    return Shop(tuple(stocks), true_of, refused)


class Shelves:
    """The shop of the last round, kept for as long as the same things are for sale."""

    def __init__(self) -> None:
        self._sold: tuple[object, ...] = ()
        self._shop = Shop((), {}, {})

    def shop(
        self,
        pools: Sequence[PoolView],
        devices: Sequence[DeviceView],
        bids: Iterable[BidView],
        cards: Mapping[str, Mapping[str, mig.Profile]],
    ) -> Shop:
        # Of the bids, only what they select matters.
        bids = [bid for bid in bids if any(need.selector for need in bid.every_need)]
        # Snapshots repeat the very objects that have not changed: comparing them takes no time.
        sold = (pools, devices, bids, cards)
        if sold != self._sold:
            self._sold, self._shop = sold, shop(pools, devices, bids, cards)
        return self._shop


def _age(bid: BidView) -> tuple[int, str]:
    return bid.created, bid.uid


def _kind(pool: PoolView, view: DeviceView, selected: bool) -> Kind:
    """Where nobody selects, nothing but what the pool sells by tells devices apart."""
    alike = tuple(view.traits.get(name, "") for name in pool.sell_by)
    return Kind(alike, view.facts if selected else b"")


def _stock(
    lot: str,
    pool: PoolView,
    views: Sequence[DeviceView],
    cards: Mapping[str, Mapping[str, mig.Profile]],
) -> Stock:
    # Link domains are cut at the border of the lot: what is not in it is not in the domain.
    domains: dict[str, list[Device]] = {}
    for view in views:
        domains.setdefault(view.domain, []).append(view.device)
    leaves, problem = _leaves(pool, views, cards)
    return Stock(
        lot=lot,
        pool=pool,
        domains={name: tuple(members) for name, members in sorted(domains.items())},
        leaves=leaves,
        closed={view.device: view.closed for view in views if view.closed},
        views=tuple(views),
        problem=problem,
    )


def _leaves(
    pool: PoolView,
    views: Sequence[DeviceView],
    cards: Mapping[str, Mapping[str, mig.Profile]],
) -> tuple[tuple[Leaf, ...], str]:
    match pool.divides:
        case Divides.WHOLE:
            return (), ""
        case Divides.EIGHTHS:
            return FRACTIONS, ""
    sizes = {view.traits.get("memory", "") for view in views}
    if not sizes:
        return (), ""
    uncut = [view.device.name for view in views if not _can_be_cut(view)]
    if uncut:
        return (), (
            f"{len(uncut)} of {len(views)} GPUs cannot be cut by MIG: in a fleet file say"
            " `mig: true` of their nodes; where only some can be, add"
            f" {labels.MIG_CAPABLE_ATTRIBUTE} to sellBy"
        )
    if len(sizes) > 1:
        return (), "MIG needs `memory` in sellBy: a geometry is one for each size of memory"
    try:
        said = cards.get(views[0].traits.get("uuid", ""))
        gigabytes = mig.gigabytes(int(parse_quantity(min(sizes))))
        return mig.leaves(pool.geometry, said or gigabytes), ""
    except ValueError as error:  # BadGeometry, or a memory that is no quantity
        return (), f"geometry: {error}"


def _can_be_cut(view: DeviceView) -> bool:
    """Our own nodes say it; of others' it is their driver that knows."""
    ours = view.device.driver == labels.DEVICE_CLASS
    return not ours or view.traits.get(labels.MIG_CAPABLE_ATTRIBUTE) == "True"


def domains(stock: Stock, leases: Iterable[Lease]) -> tuple[Domain, ...]:
    """What the market sees of a stock: how large each domain is, and what nobody holds."""
    held: set[Device] = set()  # whole
    parts: dict[Device, list[Device]] = {}
    for lease in leases:
        for device in lease.devices:
            if device.share:
                parts.setdefault(device.whole, []).append(device)
            else:
                held.add(device)
    leased = held | parts.keys()
    here = {
        name: [d for d in members if d in leased or d not in stock.closed]
        for name, members in stock.domains.items()
    }
    return tuple(
        Domain(
            name=name,
            node=machine(stock.domains[name][0]),
            size=len(members),
            free=tuple(device_key(device) for device in members if device not in leased),
            cut={
                device_key(device): _left(stock, device, parts[device])
                for device in members
                if device in parts and device not in held
            },
            closed=len(stock.domains[name]) - len(members),
        )
        for name, members in here.items()
    )


def machine(device: Device) -> str:
    """What a pod can have all of: a node's devices that one driver publishes in one pool."""
    return device_key(device).removesuffix(f"/{device.name}")


def _left(stock: Stock, device: Device, held: Iterable[Device]) -> dict[str, tuple[int, ...]]:
    """
    What is free of a cut GPU, by kind. One whose leases are not as it is cut now sells
    nothing until they have ended: a geometry changes only where nobody has a part.
    """
    whole = uncut(stock.leaves)
    if device in stock.closed or not all(fits_geometry(stock, part) for part in held):
        return dict.fromkeys(whole, ())
    taken = {slot for part in held for slot in part.slots}
    by_kind = {leaf.kind: leaf for leaf in stock.leaves}
    return {
        kind: tuple(p for p in places if taken.isdisjoint(by_kind[kind].slots((p,))))
        for kind, places in whole.items()
    }


def fits_geometry(stock: Stock, part: Device) -> bool:
    """Whether a part of a device is one that the lot sells."""
    leaf = stock.leaf(part.share)
    if leaf is None:
        return False
    return leaf.in_chain or part.slots in [leaf.slots((start,)) for start in leaf.starts]


def seat(stock: Stock, won: Won | Moved) -> tuple[Device, ...]:
    """The devices, or parts of devices, that a winner gets, or that are kept for who moves."""
    whole = [stock.by_key[key] for key in won.devices]
    leaf = stock.leaf(won.share)
    if leaf is None:
        return tuple(whole)
    return tuple(
        msgspec.structs.replace(device, share=leaf.name, slots=leaf.slots(places))
        for device, places in zip(whole, won.places, strict=True)
    )


def device_key(device: Device) -> str:
    return "/".join((device.node, device.driver, device.pool, device.name))
