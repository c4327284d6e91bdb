"""
The instant desk: sells single GPUs from the float, between rounds, at the posted price.

It works on what the last round kept out: devices that were free when the round opened, and
that nobody but this desk sells until the next one opens. Each sale is a commit of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from bidplane.api.agent import host_namespace
from bidplane.api.lease import Device
from bidplane.api.money import GPU_WEIGHT, format_credits
from bidplane.core.market import LotResult, instant
from bidplane.core.market.instant import Float
from bidplane.exchange import inventory
from bidplane.exchange.inventory import Stock
from bidplane.exchange.snapshot import PoolView
from bidplane.ledger import Ledger, leases
from bidplane.ledger.leases import Winner
from bidplane.ledger.records import Account, Lease, lease_id, wallet_of

Kept: TypeAlias = tuple[tuple[str, str], ...]  # (domain, device)


class NoSale(msgspec.Struct, frozen=True):
    """Why an order was not filled. Nothing was held, nothing moved."""

    reason: str
    message: str


class Desk:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.floats: dict[str, Float] = {}
        self._stocks: dict[str, Stock] = {}  # by lot
        self._devices: dict[str, dict[str, Device]] = {}  # by lot and key

    def open(
        self, stock: Sequence[Stock], kept: Mapping[str, Kept], lots: Iterable[LotResult]
    ) -> None:
        """After a round: what it kept is for sale, at a price that follows from its own."""
        self._stocks = {item.lot: item for item in stock}
        self._devices = {
            lot: {inventory.device_key(d): d for d in self._stocks[lot].where}
            for lot, devices in kept.items()
            if devices
        }
        self.floats = {
            lot.lot: Float(
                lot=lot.lot,
                devices=kept[lot.lot],
                price=instant.opening_price(posted=lot.posted, base=lot.base),
                base=lot.base,
                leaves=self._stocks[lot.lot].leaves,
            )
            for lot in lots
            if kept.get(lot.lot)
        }

    def pool(self, lot: str) -> PoolView | None:
        """The pool of a lot, as the last round knew it."""
        item = self._stocks.get(lot)
        return item.pool if item else None

    def buy(
        self, wallet: Account, *, pool: str, max_price: int, key: str, now: int, share: str = ""
    ) -> Lease | NoSale:
        """One GPU of the pool, or one part of one, now; or why not. The same key buys once."""
        uid = wallet.id.partition("/")[2]
        bid = f"order/{uid}/{key}"
        made = self._ledger.lease(lease_id(bid))
        if made is not None:
            if (made.pool, made.max_price, made.share) != (pool, max_price, share):
                return NoSale("KeyReused", f"key {key!r} was used for another order")
            return made
        stocks = [item for item in self._stocks.values() if item.pool.name == pool]
        if not stocks:
            return NoSale("NoSuchPool", f"there is no pool {pool!r}")
        if share and all(item.leaf(share) is None for item in stocks):
            sold = sorted({leaf.name for item in stocks for leaf in item.leaves})
            names = ", ".join(sold) or "whole GPUs only"
            return NoSale("ShapeNotSold", f"{pool} does not sell {share!r}; it sells {names}")
        offers = [
            (offer.asked, offer.lot, found)
            for item in stocks
            if (offer := self.floats.get(item.lot)) and (found := offer.sell(share))
        ]
        if not offers:
            message = "nothing is kept for instant orders there now; write a Bid for the next round"
            return NoSale("SoldOut", message)
        asked, lot, (sale, left) = min(offers, key=lambda offer: offer[:2])
        if max_price < asked:
            price = format_credits(asked)
            return NoSale(
                "PriceTooLow", f"a GPU-hour costs {price} now; offer that, or write a Bid"
            )
        item = self._stocks[lot]
        device, weight = self._devices[lot][sale.device], GPU_WEIGHT
        if (leaf := item.leaf(share)) is not None:
            slots, weight = leaf.slots(sale.places), leaf.weight
            device = msgspec.structs.replace(device, share=share, slots=slots)
        terms = item.pool.terms
        with self._ledger.commit(now) as commit:
            account = commit.account(wallet_of(uid))
            short = leases.hold_for(max_price, weight, terms) - (
                account.available if account else 0
            )
            if account is None or not account.is_open or short > 0:
                missing = f"the wallet is {format_credits(short)} credits short of what this holds"
                return NoSale("WalletTooSmall", missing)
            lease = leases.win(
                commit,
                Winner(
                    bid_uid=bid,
                    bid_namespace=host_namespace(wallet.name),
                    bid_name=f"order-{lease_id(bid)}",
                    wallet=wallet.id,
                    agent=wallet.name,
                    owner=wallet.owner,
                ),
                terms,
                pool=pool,
                domain=sale.domain,
                devices=(device,),
                weight=weight,
                max_price=max_price,
                price=asked,
                base=left.base,
                owed=0,
                waits_for=(),
                instant=True,
            )
        self.floats[lot] = left
        return lease
