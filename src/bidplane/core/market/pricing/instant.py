"""
The float: a few free GPUs kept out of a round, to be sold one by one before the next.

It is taken where it breaks least: from domains that are broken already, and never from one
that a waiting block could have. It costs a little more than a round would ask, and more
with each sale, so that the round stays the place for those who can wait a second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from bidplane.core.devices import ranges
from bidplane.core.devices.chain import Leaf, leaf_of, uncut
from bidplane.core.market.model import Domain, units_at

MOST_PERCENT = 5  # of a lot
PREMIUM_PERCENT = 5  # over what a newcomer would pay in a round
STEP_PERCENT = 2  # of the first price, for each sale until the next round


class Sale(NamedTuple):
    domain: str
    device: str
    places: tuple[int, ...] = ()  # of a part: units, or a profile's start


class Float(msgspec.Struct, frozen=True, kw_only=True):
    lot: str
    devices: tuple[tuple[str, str], ...]  # (domain, device), the next to be sold first
    price: int  # of the first, since the round
    base: int
    sold: int = 0
    leaves: tuple[Leaf, ...] = ()  # the parts of a GPU that are sold
    # What is left of GPUs that were cut for a part, by (domain, device) and kind.
    cut: dict[tuple[str, str], dict[str, tuple[int, ...]]] = {}

    @property
    def asked(self) -> int:
        """The price of the next sale."""
        return self.price + self.sold * (self.price * STEP_PERCENT // 100)

    def without(self, removed: Collection[str]) -> Float:
        """The float without the devices `removed`."""
        return msgspec.structs.replace(
            self,
            devices=tuple(key for key in self.devices if key[1] not in removed),
            cut={key: kinds for key, kinds in self.cut.items() if key[1] not in removed},
        )

    def sell(self, share: str = "") -> tuple[Sale, Float] | None:
        """
        Sell one GPU or one share. Return the sale and the float after it; None if there is none to
        sell.
        """
        if not share:
            if not self.devices:
                return None
            remaining = msgspec.structs.replace(self, devices=self.devices[1:], sold=self.sold + 1)
            return Sale(*self.devices[0]), remaining
        leaf = leaf_of(share, self.leaves)
        if leaf is None:
            return None
        cut, devices = dict(self.cut), self.devices
        kind = leaf.kind
        free = {key: units_at(kind, kinds[kind]) for key, kinds in cut.items()}
        open_ = [key for key, units in free.items() if units >= leaf.units]
        if open_:  # where least is left beside it
            key = min(open_, key=lambda key: (free[key], key))
        elif devices:
            key, devices = devices[0], devices[1:]
            cut[key] = uncut(self.leaves)
        else:
            return None
        places = cut[key][kind]
        first, rest = ranges.take(places, leaf.units) if leaf.in_chain else (places[:1], places[1:])
        cut[key] = {**cut[key], kind: rest}
        remaining = msgspec.structs.replace(self, cut=cut, devices=devices, sold=self.sold + 1)
        return Sale(*key, first), remaining


def opening_price(*, posted: int, base: int) -> int:
    return -(-max(posted, base) * (100 + PREMIUM_PERCENT) // 100)


def choose(
    domains: Iterable[Domain], *, waiting: Iterable[int], percent: int
) -> tuple[tuple[str, str], ...]:
    """
    The free devices to keep out of a round for the float, as (domain, device). `waiting`: the sizes
    of the blocks that bids wait for.
    """
    domains = list(domains)
    limit = sum(domain.size for domain in domains) * min(percent, MOST_PERCENT) // 100
    needed = min((size for size in waiting if size >= 2), default=None)
    spare = [d for d in domains if d.free and (needed is None or len(d.free) < needed)]
    spare.sort(key=lambda domain: (len(domain.free), domain.name))
    candidates = [(domain.name, device) for domain in spare for device in sorted(domain.free)]
    return tuple(candidates[:limit])


def without(domains: Iterable[Domain], floated: Iterable[tuple[str, str]]) -> tuple[Domain, ...]:
    """The domains without the devices of the float."""
    out = set(floated)
    return tuple(
        msgspec.structs.replace(
            domain, free=tuple(d for d in domain.free if (domain.name, d) not in out)
        )
        for domain in domains
    )
