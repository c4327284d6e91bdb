"""
The nouns of a round. All frozen, all plain data: a round's input can be saved as JSON
and cleared again, years later, to the same result.

Money is integer micro-credits; a price is micro-credits per GPU-hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import EARLIER_GPU_WEIGHT
from bidplane.api.shape import Shape, part_units
from bidplane.core.devices.chain import (
    CHAIN,
    PARTS,
    Block,
    Chain,
    Leaf,
)
from bidplane.core.devices.placement import part_of
from bidplane.core.devices.ranges import size_of
from bidplane.core.market.shapes import Extent

ONE = 1024  # a rank weight of 1.0


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs joined by one link (NVLink, or PCIe at full width). A block lives inside one."""

    name: str
    size: int  # every device in it, whoever holds them
    free: tuple[str, ...]  # devices nobody holds
    # By device of which a part is held, what is free by kind: units (`ranges`), or starts of a
    # profile.
    cut: dict[str, dict[str, tuple[int, ...]]] = {}
    closed: int = 0  # beside `size`: devices that nobody has, and that nobody can have now
    node: str = ""  # the machine it is in: of one machine, a pod may have devices of all domains
    numa: str = ""  # its NUMA node in that machine; "" is not known
    speed: int = 0  # of its links, to be compared with other domains of its machine


class Lot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Devices that are alike for a buyer: the devices of one product in one pool."""

    name: str
    base: int  # the reserve of new bids
    posted: int  # what one more GPU cost in the last round; stands while none can be had
    domains: tuple[Domain, ...]
    leaves: tuple[Leaf, ...] = ()  # the parts of one GPU that are sold, if any are
    floated: int = 0  # free devices that are kept out of the round, for the instant path
    exact: bool = False  # cleared to the optimum, while it is small enough
    chain: Chain = CHAIN  # the sizes of the blocks that are sold
    memory: int = 0  # bytes of each GPU; 0 is not known
    withheld: str = ""  # what of it nobody new gets now, and why, in words
    reserved: str = ""  # what of it is nobody's to displace now, and until when, in words

    @property
    def devices(self) -> int:
        return sum(domain.size for domain in self.domains)

    @cached_property
    def _parted(self) -> int:
        """The GPUs of which a part is leased; thousands of losers ask in one round."""
        return sum(len(domain.cut) for domain in self.domains)

    def in_the_way_of(self, share: str) -> str:
        """Devices that a bid cannot displace, in words; `share`: the part of a GPU it is for."""
        parted = 0 if share else self._parted
        gpus = "1 GPU is" if parted == 1 else f"{parted} GPUs are"
        in_parts = f"{gpus} leased in parts" if parted else ""
        return "; ".join(filter(None, (self.reserved, in_parts)))

    @property
    def extent(self) -> Extent:
        sizes = (domain.size + domain.closed for domain in self.domains)
        return Extent.of(sizes, self.chain, self.leaves, self.memory)


class Ask(Shape, frozen=True, kw_only=True):
    """A bid as the market sees it: a shape, a price, and the lots that will do."""

    id: str
    agent: str
    owner: str
    price: int  # the most it will pay per GPU-hour
    whole_domain: bool = False  # inherited; by this name in the rounds that are recorded
    lot: str = ""  # "" is routed
    lots: tuple[str, ...] = ()  # among these, if not among all
    weight: int = ONE
    tie: int = 0  # smaller is earlier
    # By lot: what must be held if it wins there.
    hold: dict[str, int] = msgspec.field(default_factory=dict)
    # What would do instead, in order of preference. Of all, one takes part in a round.
    otherwise: tuple[Ask, ...] = ()
    option: int = 0  # which of the bid's alternatives it is; 0 is the first
    premium: int = 0  # percent that it pays beyond what it competes with: for a term
    # And these, each in a lot of its own or the same: all of it or none, at one price.
    also: tuple[Ask, ...] = ()
    one_node: bool = False  # all of it in one machine; `blocks` says how many such sets
    # By machine, how many sets it may have there: for so many it has what nobody sells, and the
    # ask needs beside. None: in any machine, as many as fit.
    machines: dict[str, int] | None = None
    urgent: bool = False  # it may take the place of its own agent's leases that are not
    budget: str = ""  # which of the round's budgets it is paid from, if from one

    @property
    def is_joint(self) -> bool:
        return bool(self.also) or self.one_node

    @property
    def is_loose(self) -> bool:
        """Return whether any GPUs of one machine will do; the best linked are the best."""
        return self.one_node and self.spread and not self.also

    @property
    def asked(self) -> int:
        """
        The number of GPUs, or shares, in all; 0 of a whole domain, however many GPUs that has.
        """
        if not self.count:
            return 0
        if self.one_node:
            return self.blocks * (self.gpus + sum(need.gpus for need in self.also))
        return self.gpus * self.blocks + sum(need.gpus * need.blocks for need in self.also)

    @property
    def offered(self) -> int:
        """The price that it competes with: its own without the premium."""
        return self.price * 100 // (100 + self.premium)

    def with_premium(self, price: int) -> int:
        """
        The price it must bid to compete with `price`; never above its own for what it offered.
        """
        return -(-price * (100 + self.premium) // 100)

    @property
    def choices(self) -> dict[int, Ask]:
        """By option, all alternatives that take part."""
        return {ask.option or n: ask for n, ask in enumerate((self, *self.otherwise))}


class Incumbent(msgspec.Struct, frozen=True, kw_only=True):
    """A running lease that others may displace. It cannot move, so it competes in place."""

    id: str
    agent: str
    owner: str
    lot: str
    domain: str
    devices: tuple[str, ...]
    price: int  # its bid: the most it will pay
    weight: int  # carries what a restart would cost
    reserve: int  # the lesser of the base price at its win and now: nobody rivals it, nobody evicts
    compensation: int  # what it is owed if somebody else's agent displaces it
    tie: int = 0
    # Of a gang: all its devices by domain. `domain` is then the first of them.
    gang: dict[str, tuple[str, ...]] = {}
    share: str = ""  # the leaf it has of each of its devices, if not the whole
    places: tuple[tuple[int, ...], ...] = ()  # and where, by device: units, or a profile's start
    movable: bool = False  # its agent lets it be moved to other devices, for its compensation
    idle: bool = False  # its GPUs do nothing: it ranks by its bid alone
    pinned: bool = False  # nobody new can have its devices now, so nobody contests it
    urgent: bool = False  # as its bid was
    # What it has in other lots, under the same id: it is kept, or ends, as a whole. Of each, the
    # compensation is what that lot's fund owes.
    also: tuple[Incumbent, ...] = ()

    @property
    def gpus(self) -> int:
        return len(self.devices)

    @property
    def parts(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """The device, kind and places of each share that the lease has."""
        kind = PARTS if part_units(self.share) else self.share
        for device, places in zip(self.devices, self.places, strict=True):
            yield device, kind, places

    @property
    def seats(self) -> dict[str, tuple[str, ...]]:
        return self.gang or {self.domain: self.devices}

    @property
    def block(self) -> Block:
        if self.share:
            units: dict[str, int] = {}
            for device, kind, places in self.parts:
                container = part_of(device, kind)
                units[container] = units.get(container, 0) + units_at(kind, places)
            return Block(0, seats=tuple(sorted(units.items())))
        if self.gang:
            return Block(0, seats=tuple((d, len(gpus)) for d, gpus in sorted(self.gang.items())))
        return Block(self.gpus, self.domain)


def units_at(kind: str, places: tuple[int, ...]) -> int:
    """Return how much of a kind is at places: units of a GPU, or instances of a profile."""
    return size_of(places) if kind == PARTS else len(places)


# The rules that rounds are cleared by now. Rounds recorded under 1, which protected leases by the
# size of a fund, under 2, which sold parts in eighths, under 3, which displaced by rank alone, and
# under 4, by which a part of a GPU kept every whole block off it, cannot be cleared again by these.
RULES = 5


class RoundInput(msgspec.Struct, frozen=True, kw_only=True):
    at: int  # milliseconds; the market does not look at it, a reader of the record does
    lots: tuple[Lot, ...]
    asks: tuple[Ask, ...] = ()
    incumbents: tuple[Incumbent, ...] = ()
    available: dict[str, int] = {}  # by agent: credits in its wallet that nothing holds
    budgets: dict[str, int] = {}  # by name: what is left of each
    rules: int = 1  # by which it is cleared: see `RULES`


class Won(msgspec.Struct, frozen=True, kw_only=True):
    ask: str
    lot: str
    gpus: int  # of its block or blocks; of shares, how many
    price: int  # the least it could have bid and still won
    hold: int
    minimum: int  # what it pays beside its rent: the compensation of leases that it displaces
    domain: str
    devices: tuple[str, ...]
    waits_for: tuple[str, ...] = ()  # displaced leases that still use some of the devices
    share: str = ""
    places: tuple[tuple[int, ...], ...] = ()  # of shares, by device: units, or a profile's start
    domains: tuple[str, ...] = ()  # of a gang, one per block
    parts: tuple[int, ...] = ()  # of a gang, how many of `devices` are each block's
    option: int = 0  # which of the bid's alternatives it was; 0 is the first
    weight: int = 0  # of its price per GPU-hour, what it pays, of `GPU_WEIGHT`
    by_lot: dict[str, int] = {}  # where its GPUs are of several lots, or of sets in one machine
    funds: dict[str, int] = {}  # by lot, whose fund it owes `minimum` to, if not its own


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    ask: str
    reason: BidReason
    lot: str = ""
    price: int = 0  # what it offered
    gpus: int = 0  # the block it would have been sold
    price_to_win: int | None = None  # None: no price would have won
    short: int = 0  # WalletTooSmall: credits that are missing
    share: str = ""
    option: int = 0
    weight: int = 0  # what it would have paid, of its price
    largest: int = CHAIN[0]  # LargerThanEveryDomain: the most that is sold in one block there
    no_such_pool: str = ""  # NoSuchPool: the one it names
    pools: tuple[str, ...] = ()  # NoSuchPool: those that there are
    withheld: str = ""  # where there was no room: what of the lot nobody new gets now
    by_lot: dict[str, int] = {}  # of several lots: how many of each
    missing: tuple[str, ...] = ()  # of those, where somebody is in its way
    one_node: bool = False  # all of it had to be in one machine
    # Of a bid whose money is short: of its hold and this, which it would owe for displaced leases.
    compensation: int = 0
    own_leases: tuple[str, ...] = ()  # of its own agent, that it may not displace
    reserved: str = ""  # where there was no room: what of the lot nobody can displace, until when


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    lease: str
    price: int  # what staying costs now


class Displaced(msgspec.Struct, frozen=True, kw_only=True):
    lease: str
    compensation: int
    by: tuple[str, ...]  # the asks that take its devices
    funds: dict[str, int] = {}  # by lot, whose fund compensates it, if not its own alone


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A running lease that makes room for a block, by going to other devices of its lot."""

    lease: str
    by: str  # the ask it makes room for, which pays for it
    domain: str  # where it goes to
    devices: tuple[str, ...]
    compensation: int
    share: str = ""  # of its device, if it is not all of it
    places: tuple[tuple[int, ...], ...] = ()  # and where there


class LotResult(msgspec.Struct, frozen=True, kw_only=True):
    lot: str
    base: int
    posted: int
    devices: int
    leased: int  # devices of which somebody holds some or all after this round
    used: int  # the same by weight
    unserved: int  # the highest price that was admitted and not served; 0 when all were
    # By class ("8", "1", "0.5", "1g.10gb"): what one more would have cost, per GPU-hour.
    classes: dict[str, int] = {}
    stay: int = 0  # the most that a running lease pays to stay
    chain: Chain = CHAIN  # the block sizes that are sold, if there are domains as large
    withheld: str = ""  # what of it nobody new could have, and why, in words


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a round decided, in an order that does not depend on the input's."""

    won: tuple[Won, ...] = ()
    lost: tuple[Lost, ...] = ()
    kept: tuple[Kept, ...] = ()
    displaced: tuple[Displaced, ...] = ()
    lots: tuple[LotResult, ...] = ()
    moved: tuple[Moved, ...] = ()
    gpu_weight: int = EARLIER_GPU_WEIGHT  # what a whole GPU weighs in it
