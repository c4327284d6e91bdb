"""
The inventory of a round, from devices and leases: lots, their domains, and the devices of each
lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from bidplane.api import labels
from bidplane.api.bid import BidReason
from bidplane.api.lease import DeviceRef
from bidplane.api.pool import Divides
from bidplane.api.shape import Need
from bidplane.core.devices import mig
from bidplane.core.devices.chain import FRACTIONS, PARTS, Leaf, leaf_of, uncut
from bidplane.core.devices.ranges import WHOLE, minus, occupied, union
from bidplane.core.market import Domain
from bidplane.core.market.lots import DeviceKind, Selects, partition, selects, value_of
from bidplane.core.market.model import Moved, Won
from bidplane.core.market.shapes import Extent, constraint_problem
from bidplane.exchange.round.devices import DeviceView
from bidplane.exchange.snapshot import BidView, PoolView
from bidplane.ledger.records import Lease
from bidplane.wire.quantity import parse as parse_quantity


class LotDevices(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The devices of one lot."""

    lot: str
    pool: PoolView
    domains: Mapping[str, tuple[DeviceRef, ...]]
    leaves: tuple[Leaf, ...] = ()  # the parts of one GPU that are sold
    closed: Mapping[DeviceRef, str] = {}  # nobody new gets these: where they are, and why not
    views: tuple[DeviceView, ...] = ()
    problem: str = ""  # why it sells no parts, though its pool would

    @property
    def devices(self) -> int:
        return sum(len(devices) for devices in self.domains.values())

    @cached_property
    def extent(self) -> Extent:
        sizes = map(len, self.domains.values())
        return Extent.of(sizes, self.pool.chain, self.leaves, self.memory)

    @cached_property
    def memory(self) -> int:
        """Bytes of each GPU, of the smallest if they differ; 0 if that is not known."""
        sizes = [view.traits.get("memory", "") for view in self.views]
        try:
            return min((int(parse_quantity(size)) for size in sizes), default=0)
        except ValueError:
            return 0

    @cached_property
    def where(self) -> dict[DeviceRef, str]:
        return {device: name for name, members in self.domains.items() for device in members}

    @cached_property
    def by_key(self) -> dict[str, DeviceRef]:
        return {device_key(device): device for device in self.where}

    @cached_property
    def _traits(self) -> dict[DeviceRef, dict[str, str]]:
        return {view.device: view.traits for view in self.views}

    def numa_of(self, domain: str) -> str:
        """Return the NUMA node that all devices of a domain are on; "" if they differ."""
        nodes = {self._trait(device, labels.NUMA_ATTRIBUTE) for device in self.domains[domain]}
        return min(nodes) if len(nodes) == 1 else ""

    def speed_of(self, domain: str) -> int:
        """Return a number that is larger where links are faster: NVLinks, then PCIe lanes."""
        device = self.domains[domain][0]
        names = (labels.NVLINKS_ATTRIBUTE, labels.WIDTH_ATTRIBUTE)
        links, lanes = (self._trait(device, name) for name in names)
        return _NVLINK_SPEED * _number(links) + _number(lanes)

    def _trait(self, device: DeviceRef, name: str) -> str:
        return self._traits.get(device, {}).get(name, "")

    def leaf(self, share: str) -> Leaf | None:
        return leaf_of(share, self.leaves)

    @cached_property
    def withheld(self) -> str:
        """
        A sentence on the devices that are closed to new leases, and why; "" if all are for sale.
        """
        counts = Counter(self.closed.values())
        remarks = [
            f"{count} of {self.devices} {self.pool.product}"
            f" {'is' if count == 1 else 'are'} {reason}"
            for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ]
        more = len(remarks) - _TOLD_MOST
        omitted = [f"and so on for {more} more nodes"] if more > 0 else []
        return "; ".join([*remarks[:_TOLD_MOST], *omitted])


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


_NVLINK_SPEED = 1000  # beside which the lanes of a PCIe link count for little
_TOLD_MOST = 3  # nodes that are named


class MarketInventory(NamedTuple):
    """All lots that are for sale, and the lots that each selector is true of."""

    stocks: tuple[LotDevices, ...]
    true_of: Mapping[tuple[str, str], frozenset[str]]  # by pool and selector: lots
    refused: Mapping[tuple[str, str], tuple[BidReason, str]]

    def lots_for(self, need: Need) -> tuple[str, ...] | tuple[BidReason, str]:
        """
        The lots that serve a need; or the reason that none does. Without a pool by that name the
        answer is () and the round says so.
        """
        if need.distinct_attribute:
            return BidReason.CONSTRAINT_NOT_SOLD, (
                f"distinctAttribute {need.distinct_attribute!r}: a block's devices are chosen for"
                " being alike; bid for each device by itself"
            )
        lots: list[str] = []
        reasons: list[tuple[BidReason, str]] = []
        for item in self.stocks:
            if need.pool and item.pool.name != need.pool:
                continue
            key = item.pool.name, need.selector
            if key in self.refused:
                reasons.append(self.refused[key])
            elif need.selector and item.lot not in self.true_of.get(key, ()):
                reasons.append((BidReason.SELECTS_NOTHING, _NOTHING))
            elif (unmet := constraint_problem(need, item.extent)) is not None or (
                unmet := _unmet_constraint(item, need)
            ) is not None:
                reasons.append((BidReason.CONSTRAINT_NOT_SOLD, unmet))
            else:
                lots.append(item.lot)
        return (
            tuple(lots) if lots or not reasons else min(reasons, key=lambda w: _ORDER.index(w[0]))
        )


_NOTHING = "no device that is sold there is as its selector says; ask for another, or change it"
# Of several lots' reasons, the one the bidder can do most about.
_ORDER = (
    BidReason.BAD_BID,
    BidReason.SELECTOR_TOO_FINE,
    BidReason.CONSTRAINT_NOT_SOLD,
    BidReason.SELECTS_NOTHING,
)


def _unmet_constraint(item: LotDevices, need: Need) -> str | None:
    """
    The sentence for an attribute that devices of a block of this lot lack, or may differ in; None
    if none.
    """
    if not need.match_attribute:
        return None
    containers = list(item.domains.values())
    if need.blocks > 1 or need.spread:
        containers = [tuple(device for members in containers for device in members)]
    views = {view.device: view for view in item.views}
    for name in need.match_attribute:
        for members in containers:
            values = {value_of(name, views[device].facts) for device in members}
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


def build_inventory(
    pools: Iterable[PoolView],
    devices: Iterable[DeviceView],
    bids: Iterable[BidView] = (),
    cards: Mapping[str, Mapping[str, mig.Profile]] | None = None,
    selects: Selects = selects,
) -> MarketInventory:
    """
    The inventory of the pools. Each device is in one pool: of two that want its product, the first
    by name. `cards`: by UUID, how GPUs can be cut of which no table knows. `selects` answers for
    the bids' selectors.
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
    stocks: list[LotDevices] = []
    true_of: dict[tuple[str, str], frozenset[str]] = {}
    refused: dict[tuple[str, str], tuple[BidReason, str]] = {}
    for pool in ordered:
        selectors = [c.selector for c in selecting if c.pool in ("", pool.name)]
        kinds = {view.device: _kind(pool, view, bool(selectors)) for view in views[pool.name]}
        cut = partition(pool.name, kinds.values(), selectors, most=pool.max_lots, selects=selects)
        members: dict[str, list[DeviceView]] = {} if kinds else {pool.name: []}
        for view in views[pool.name]:
            members.setdefault(cut.names[kinds[view.device]], []).append(view)
        stocks += [
            _stock(lot, pool, lot_views, cards or {}) for lot, lot_views in sorted(members.items())
        ]
        true_of |= {(pool.name, s): lots for s, lots in cut.true_of.items()}
        too_fine = f"its selector would split {pool.name} into more than {pool.max_lots} lots"
        for selector in cut.too_fine:
            refused[pool.name, selector] = BidReason.SELECTOR_TOO_FINE, too_fine
        for selector, problem in cut.broken.items():
            refused[pool.name, selector] = BidReason.BAD_BID, f"selector: {problem}"
    return MarketInventory(tuple(stocks), true_of, refused)


class InventoryCache:
    """The inventory of the last round, kept for as long as the same devices are for sale."""

    def __init__(self, selects: Selects = selects) -> None:
        self._selects = selects
        self._sold: tuple[object, ...] = ()
        self._inventory = MarketInventory((), {}, {})

    def get(
        self,
        pools: Sequence[PoolView],
        devices: Sequence[DeviceView],
        bids: Iterable[BidView],
        cards: Mapping[str, Mapping[str, mig.Profile]],
    ) -> MarketInventory:
        # Of the bids, only what they select matters.
        bids = [bid for bid in bids if _has_selector(bid)]
        # Snapshots repeat the very objects that have not changed: comparing them takes no time.
        sold = (pools, devices, bids, cards)
        if sold != self._sold:
            self._sold = sold
            self._inventory = build_inventory(pools, devices, bids, cards, self._selects)
        return self._inventory


def _has_selector(bid: BidView) -> bool:
    if not (bid.otherwise or bid.also):
        return bool(bid.selector)  # nearly all of many bids
    return any(need.selector for need in bid.every_need)


def _age(bid: BidView) -> tuple[int, str]:
    return bid.created, bid.uid


def _kind(pool: PoolView, view: DeviceView, selected: bool) -> DeviceKind:
    """
    The kind of a device. Where nobody selects, only the attributes that the pool sells by count.
    """
    sold_by = tuple(view.traits.get(name, "") for name in pool.sell_by)
    return DeviceKind(sold_by, view.facts if selected else b"")


def _stock(
    lot: str,
    pool: PoolView,
    views: Sequence[DeviceView],
    cards: Mapping[str, Mapping[str, mig.Profile]],
) -> LotDevices:
    # Link domains are cut at the border of the lot: what is not in it is not in the domain.
    domains: dict[str, list[DeviceRef]] = {}
    for view in views:
        domains.setdefault(view.domain, []).append(view.device)
    leaves, problem = _leaves(pool, views, cards)
    return LotDevices(
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
        case Divides.PARTS | Divides.EIGHTHS:
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
        published = cards.get(views[0].traits.get("uuid", ""))
        gigabytes = mig.gigabytes(int(parse_quantity(min(sizes))))
        return mig.leaves(pool.geometry, published or gigabytes), ""
    except ValueError as error:  # BadGeometry, or a memory that is no quantity
        return (), f"geometry: {error}"


def _can_be_cut(view: DeviceView) -> bool:
    """
    Return False if our own driver publishes that MIG cannot cut the GPU; other drivers' GPUs may be
    cut.
    """
    ours = view.device.driver == labels.DEVICE_CLASS
    return not ours or view.traits.get(labels.MIG_CAPABLE_ATTRIBUTE) == "True"


def domains_for_sale(stock: LotDevices, leases: Iterable[Lease]) -> tuple[Domain, ...]:
    """
    The domains of a lot as the market sees them: their size, and the devices that nobody leases.
    """
    whole_leased: set[DeviceRef] = set()
    parts: dict[DeviceRef, list[DeviceRef]] = {}
    for lease in leases:
        for device in lease.devices:
            if device.share:
                parts.setdefault(device.whole, []).append(device)
            else:
                whole_leased.add(device)
    leased = whole_leased | parts.keys()
    in_service = {
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
                device_key(device): _free_places(stock, device, parts[device])
                for device in members
                if device in parts and device not in whole_leased
            },
            closed=len(stock.domains[name]) - len(members),
            numa=stock.numa_of(name),
            speed=stock.speed_of(name),
        )
        for name, members in in_service.items()
    )


def machine(device: DeviceRef) -> str:
    """
    The key of the machine that a device is in: a node's devices that one driver publishes in one
    pool, which one pod can have all of.
    """
    return device_key(device).removesuffix(f"/{device.name}")


def _free_places(
    stock: LotDevices, device: DeviceRef, leased_parts: Iterable[DeviceRef]
) -> dict[str, tuple[int, ...]]:
    """
    The free places of a cut GPU, by kind. One whose leases are not as it is cut now sells nothing
    until they have ended: a geometry changes only where nobody has a share.
    """
    all_places = uncut(stock.leaves)
    leased_parts = list(leased_parts)
    if device in stock.closed or not all(fits_geometry(stock, part) for part in leased_parts):
        return dict.fromkeys(all_places, ())
    if PARTS in all_places:
        return {PARTS: minus(WHOLE, union(map(occupied, leased_parts)))}
    used_slots = {slot for part in leased_parts for slot in part.slots}
    return {
        leaf.kind: tuple(p for p in leaf.starts if used_slots.isdisjoint(leaf.slots((p,))))
        for leaf in stock.leaves
    }


def fits_geometry(stock: LotDevices, part: DeviceRef) -> bool:
    """Return True if the lot sells such a share of a device."""
    leaf = stock.leaf(part.share)
    if leaf is None:
        return False
    return leaf.in_chain or part.slots in [leaf.slots((start,)) for start in leaf.starts]


def seat(stock: LotDevices, won: Won | Moved) -> tuple[DeviceRef, ...]:
    """
    The devices, or shares of devices, that a winner gets, or that are reserved for an agent that
    moves.
    """
    gpus = [stock.by_key[key] for key in won.devices]
    leaf = stock.leaf(won.share)
    if leaf is None:
        return tuple(gpus)
    return tuple(
        part_ref(device, leaf, places) for device, places in zip(gpus, won.places, strict=True)
    )


def part_ref(device: DeviceRef, leaf: Leaf, places: tuple[int, ...]) -> DeviceRef:
    """Return the part of a device that a leaf is, at places as the market names them."""
    if leaf.in_chain:
        return msgspec.structs.replace(device, share=leaf.name, units=places)
    return msgspec.structs.replace(device, share=leaf.name, slots=leaf.slots(places))


def device_key(device: DeviceRef) -> str:
    return "/".join((device.node, device.driver, device.pool, device.name))
