"""
Instant sales: single GPUs, and shares of one, sold from the float between rounds.

It works on what the last round kept out: devices that were free when the round opened, and
that nobody else sells until the next one opens. Each sale is a commit of its own.

Two kinds of buyer come here. An *order* is a client's, over HTTP, and is named by its key. A
*bid* with `instant` is a pod's, and what it buys is the lease it would have won in a round: it
is named after the bid, so that a bid wins once, here or there, whoever dies in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from bidplane.api.agent import host_namespace
from bidplane.api.bid import BidReason
from bidplane.api.kinds import Object
from bidplane.api.lease import DeviceRef, Origin
from bidplane.api.money import GPU_WEIGHT, format_credits
from bidplane.api.shape import LEAST_PART, Shape, part_name, share_name
from bidplane.api.times import rfc3339_ms
from bidplane.core.devices.ranges import occupied, overlap
from bidplane.core.market import LotResult, shapes
from bidplane.core.market.clearing import preemption
from bidplane.core.market.pricing import instant
from bidplane.core.market.pricing.instant import Float, Sale
from bidplane.exchange.floatbounds import BOUND_SECONDS, FloatBounds
from bidplane.exchange.round import machines
from bidplane.exchange.round.inventory import LotDevices, MarketInventory, part_ref
from bidplane.exchange.snapshot import AgentView, BidView, PoolView
from bidplane.ledger import Ledger, budgets, leases
from bidplane.ledger.commit import Commit
from bidplane.ledger.leases import Award, Buyer, Terms
from bidplane.ledger.records import Account, Lease, lease_id, wallet_of

Kept: TypeAlias = tuple[tuple[str, str], ...]  # (domain, device)

_EMPTY_INVENTORY = MarketInventory((), {}, {})


class NoSale(msgspec.Struct, frozen=True):
    """The reason that an order was not filled. Nothing was held, nothing moved."""

    reason: str
    message: str


class FloatOffer(NamedTuple):
    """One GPU or share that the float could sell to a buyer."""

    lot: str
    price: int
    max_price: int  # the most the buyer pays for it
    share: str
    weight: int  # of the price, of `GPU_WEIGHT`
    sale: Sale
    remaining: Float

    @property
    def gain(self) -> int:
        return (self.max_price - self.price) * self.weight


class InstantSales:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.floats: dict[str, Float] = {}
        self._inventory = _EMPTY_INVENTORY
        self._hosts: Mapping[str, Object] = {}
        self._stocks: dict[str, LotDevices] = {}  # by lot
        self._devices: dict[str, dict[str, DeviceRef]] = {}  # by lot and key
        self._checked_commit = 0  # the last commit after which what is kept is known to be free
        self._bounds = FloatBounds(ledger)

    def open(
        self,
        inventory: MarketInventory,
        floated: Mapping[str, Kept],
        lots: Iterable[LotResult],
        hosts: Mapping[str, Object],
    ) -> None:
        """Offer the devices that the last round kept out, at a price that follows from its own."""
        self._inventory, self._checked_commit = inventory, self._ledger.head.sequence
        self._hosts = hosts
        self._stocks = {item.lot: item for item in inventory.stocks}
        self._devices = {
            lot: self._stocks[lot].by_key for lot, devices in floated.items() if devices
        }
        self.floats = {
            lot.lot: Float(
                lot=lot.lot,
                devices=floated[lot.lot],
                price=instant.opening_price(posted=lot.posted, base=lot.base),
                base=lot.base,
                leaves=self._stocks[lot.lot].leaves,
            )
            for lot in lots
            if floated.get(lot.lot)
        }

    def withdraw(self, node: str) -> None:
        """Take the devices of a node that can take no pod out of the floats."""
        for lot, offered in self.floats.items():
            devices = self._devices[lot]
            on_node = {key for key, device in devices.items() if device.node == node}
            self.floats[lot] = offered.without(on_node)

    @property
    def cheapest(self) -> int | None:
        """The lowest price in the floats; None when they are empty."""
        prices = [
            offered.asked for offered in self.floats.values() if offered.devices or offered.cut
        ]
        return min(prices, default=None)

    def pool(self, lot: str) -> PoolView | None:
        """The pool of a lot, as the last round knew it."""
        item = self._stocks.get(lot)
        return item.pool if item else None

    def buy(
        self, wallet: Account, *, pool: str, max_price: int, key: str, now: int, share: str = ""
    ) -> Lease | NoSale:
        """Buy one GPU of the pool, or one share, now; or return why not. The same key buys once."""
        bid = f"order/{wallet.agent_uid}/{key}"
        earlier = self._ledger.lease_of_bid(bid)
        if earlier is not None:
            terms_before = earlier.pool, earlier.max_price, share_name(earlier.share)
            if terms_before != (pool, max_price, share_name(share)):
                return NoSale("KeyReused", f"key {key!r} was used for another order")
            return earlier
        stocks = [item for item in self._stocks.values() if item.pool.name == pool]
        if not stocks:
            return NoSale("NoSuchPool", f"there is no pool {pool!r}")
        if share and all(item.leaf(share) is None for item in stocks):
            leaves = [leaf for item in stocks for leaf in item.leaves]
            sold = sorted({leaf.name for leaf in leaves if not leaf.in_chain})
            sold += (
                [f"parts from {part_name(LEAST_PART)}"] if any(n.in_chain for n in leaves) else []
            )
            names = ", ".join(sold) or "whole GPUs only"
            return NoSale("ShapeNotSold", f"{pool} does not sell {share!r}; it sells {names}")
        buyer = Buyer(
            bid_uid=bid,
            bid_namespace=host_namespace(wallet.name),
            bid_name=f"order-{lease_id(bid)}",
            wallet=wallet.id,
            agent=wallet.name,
            owner=wallet.owner,
            origin=Origin.ORDER,
            plane_namespace="default",  # any pod may name it; it has to be shown somewhere
        )
        part = Shape(gpus=1, share=share)
        offers = self._offers([item.lot for item in stocks], part, max_price)
        return self._sell(buyer, offers, heavy=False, now=now)

    def serve(self, bid: BidView, agent: AgentView, *, now: int) -> Lease | NoSale:
        """
        Sell an instant bid what it asks for, at once; or return why not: then it takes part in the
        next round as any other. Of its alternatives, the one that gains most, the earlier of
        equals.
        """
        earlier = self._ledger.lease_of_bid(bid.uid)
        if earlier is not None:
            return earlier
        if not self.floats or not is_instant(bid):
            return _SOLD_OUT
        if agent.problem or agent.suspended or agent.deleting:
            return _SOLD_OUT
        if 0 < 1000 * bid.deadline <= now:
            return _SOLD_OUT
        offers = [
            offer
            for choice in (bid, *bid.otherwise)
            for offer in self._offers(self._lots_for(choice), choice, choice.price)
        ]
        return self._sell(buyer_of(bid, agent), offers, heavy=agent.heavy, now=now)

    def _lots_for(self, choice: BidView) -> Sequence[str]:
        """
        The lots that serve the bid, as far as the last round knows: a new selector waits for the
        next.
        """
        lots = self._inventory.lots_for(choice)
        return [
            lot
            for lot in lots
            if lot in self.floats
            and machines.fits_everywhere(choice, lot, self._hosts, self._inventory.stocks)
        ]

    def _offers(self, lots: Iterable[str], shape: Shape, max_price: int) -> list[FloatOffer]:
        offers = []
        for lot in lots:
            share = shapes.share_in(shape, self._stocks[lot].extent)
            if isinstance(share, BidReason):
                continue
            float_, leaf = self.floats.get(lot), self._stocks[lot].leaf(share)
            if float_ is not None and (sold := float_.sell(share)) is not None:
                weight = leaf.weight if leaf else GPU_WEIGHT
                offers.append(FloatOffer(lot, float_.asked, max_price, share, weight, *sold))
        return offers

    def _sell(
        self, buyer: Buyer, offers: Sequence[FloatOffer], *, heavy: bool, now: int
    ) -> Lease | NoSale:
        if not offers:
            return _SOLD_OUT
        best = max(offers, key=lambda offer: offer.gain)  # of equals the first
        if best.gain < 0:
            price = format_credits(min(offer.price for offer in offers))
            return NoSale(
                "PriceTooLow", f"a GPU-hour costs {price} now; offer that, or write a Bid"
            )
        item = self._stocks[best.lot]
        device = self._devices[best.lot][best.sale.device]
        if (leaf := item.leaf(best.share)) is not None:
            device = part_ref(device, leaf, best.sale.places)
        with self._ledger.commit(now) as commit:
            if self._is_taken(commit, device):
                self.floats = {}  # another exchange has run a round since: what is free is unknown
                self._bounds.forget()
                return _SOLD_OUT
            again_at = self._bounds.allowed_at(
                buyer.owner, item.pool, self._pool_gpus(item.pool.name), best.weight, now
            )
            if again_at > now:
                return NoSale("FloatBound", _beyond_bound(item.pool, again_at))
            account = commit.account(buyer.wallet)
            terms, levy_percent = terms_for(item.pool, account, heavy=heavy)
            hold = leases.hold_for(best.max_price, best.weight, terms)
            short = hold - (account.available if account else 0)
            if buyer.budget and hold > budgets.remaining(
                commit, buyer.wallet, buyer.work, buyer.budget
            ):
                return NoSale("BudgetSpent", "its budget does not cover what this holds")
            if account is None or not account.is_open or short > 0:
                missing = f"the wallet is {format_credits(short)} credits short of what this holds"
                return NoSale("WalletTooSmall", missing)
            lease = leases.win(
                commit,
                Award(
                    buyer=buyer,
                    terms=terms,
                    pool=item.pool.name,
                    domain=best.sale.domain,
                    devices=(device,),
                    weight=best.weight,
                    max_price=best.max_price,
                    price=best.price,
                    base=best.remaining.base,
                    instant=True,
                    levy_percent=levy_percent,
                ),
            )
        self.floats[best.lot] = best.remaining
        self._checked_commit = commit.sequence
        self._bounds.note(buyer.owner, item.pool.name, best.weight, now)
        return lease

    def _pool_gpus(self, pool: str) -> int:
        return sum(item.devices for item in self._stocks.values() if item.pool.name == pool)

    def _is_taken(self, commit: Commit, device: DeviceRef) -> bool:
        """
        Return True if the device was leased since the last round offered it. Only another
        writer of this ledger can have sold it, so leases are searched only if somebody has written.
        """
        if commit.sequence == self._checked_commit + 1:
            return False
        self._checked_commit = commit.sequence - 1
        return any(
            leased.whole == device.whole and overlap(occupied(leased), occupied(device))
            for lease in commit.live_leases()
            for leased in lease.devices
        )


def _beyond_bound(pool: PoolView, again_at: int) -> str:
    return (
        f"one owner may buy {pool.float_owner_percent} % of the float of {pool.name}, at least one"
        f" GPU, in any {BOUND_SECONDS} s: buy again at {rfc3339_ms(again_at)}, or write a Bid for"
        " the next round"
    )


_SOLD_OUT = NoSale(
    "SoldOut", "nothing is kept for instant orders there now; write a Bid for the next round"
)


def is_instant(bid: BidView) -> bool:
    """Return True if a float could sell the bid: one GPU or one share, without a term."""
    return (
        bid.instant
        and not bid.problem
        and not bid.term_seconds
        and all(choice.is_single and not choice.is_joint for choice in (bid, *bid.otherwise))
    )


def buyer_of(bid: BidView, agent: AgentView) -> Buyer:
    """Return the buyer that a bid, or one of its alternatives, is in the ledger."""
    return Buyer(
        bid_uid=bid.uid,
        bid_namespace=bid.namespace,
        bid_name=bid.name,
        wallet=wallet_of(agent.uid),
        agent=agent.name,
        owner=agent.owner,
        plane_namespace=bid.plane_namespace,
        beside=bid.beside,
        term_seconds=bid.term_seconds,
        renews=bid.renews,
        budget=bid.budget,
        work=bid.work,
    )


def best_price(bid: BidView) -> int:
    """The most that any of its alternatives offers."""
    return max(choice.price for choice in (bid, *bid.otherwise))


def terms_for(pool: PoolView, wallet: Account | None, *, heavy: bool) -> tuple[Terms, int]:
    """
    The terms on which a lease of the pool is won, and the percentage of its rent that is levied: by
    the restart class. An agent that says `heavy` and was seen to start in much less is light.
    """
    light = pool.terms
    if wallet is not None and preemption.is_demoted(
        wallet.starts, wallet.start_ms, pool.heavy_restart_seconds
    ):
        heavy = False
    terms = light._replace(restart_seconds=pool.heavy_restart_seconds) if heavy else light
    return terms, preemption.levy_percent(
        terms.restart_seconds, light.restart_seconds, light.notice_seconds
    )
