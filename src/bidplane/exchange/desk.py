"""
The instant desk: sells single GPUs, and parts of one, from the float, between rounds.

It works on what the last round kept out: devices that were free when the round opened, and
that nobody but this desk sells until the next one opens. Each sale is a commit of its own.

Two kinds of buyer come here. An *order* is a client's, over HTTP, and is named by its key. A
*bid* with `instant` is a pod's, and what it buys is the lease it would have won in a round: it
is named after the bid, so that a bid wins once, here or there, whoever dies in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from bidplane.api.agent import host_namespace
from bidplane.api.lease import Device
from bidplane.api.money import GPU_WEIGHT, format_credits
from bidplane.core.market import LotResult, instant, preemption
from bidplane.core.market.instant import Float, Sale
from bidplane.exchange.inventory import Shop, Stock
from bidplane.exchange.snapshot import AgentView, BidView, PoolView
from bidplane.ledger import Ledger, budgets, leases
from bidplane.ledger.commit import Commit
from bidplane.ledger.leases import Budget, Terms, Winner
from bidplane.ledger.records import Account, Lease, lease_id, wallet_of

Kept: TypeAlias = tuple[tuple[str, str], ...]  # (domain, device)

_NO_SHOP = Shop((), {}, {})
_NO_BUDGET = Budget()


class NoSale(msgspec.Struct, frozen=True):
    """Why an order was not filled. Nothing was held, nothing moved."""

    reason: str
    message: str


class Offer(NamedTuple):
    """One thing the float could sell to a buyer."""

    lot: str
    asked: int  # the price
    max_price: int  # the most the buyer pays for it
    share: str
    weight: int  # of the price, in 56ths
    sale: Sale
    left: Float

    @property
    def gain(self) -> int:
        return (self.max_price - self.asked) * self.weight


class Desk:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.floats: dict[str, Float] = {}
        self._shop = _NO_SHOP
        self._stocks: dict[str, Stock] = {}  # by lot
        self._devices: dict[str, dict[str, Device]] = {}  # by lot and key
        self._seen = 0  # the last commit after which what is kept is known to be free

    def open(self, shop: Shop, kept: Mapping[str, Kept], lots: Iterable[LotResult]) -> None:
        """After a round: what it kept is for sale, at a price that follows from its own."""
        self._shop, self._seen = shop, self._ledger.head.sequence
        self._stocks = {item.lot: item for item in shop.stocks}
        self._devices = {lot: self._stocks[lot].by_key for lot, devices in kept.items() if devices}
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

    def withdraw(self, node: str) -> None:
        """The node can take no pod any more: what is kept of it is not sold."""
        for lot, kept in self.floats.items():
            known = self._devices[lot]
            gone = {key for key, device in known.items() if device.node == node}
            self.floats[lot] = kept.without(gone)

    @property
    def cheapest(self) -> int | None:
        """The least that something of what is left costs; None when nothing is."""
        left = [one.asked for one in self.floats.values() if one.devices or one.cut]
        return min(left, default=None)

    def pool(self, lot: str) -> PoolView | None:
        """The pool of a lot, as the last round knew it."""
        item = self._stocks.get(lot)
        return item.pool if item else None

    def buy(
        self, wallet: Account, *, pool: str, max_price: int, key: str, now: int, share: str = ""
    ) -> Lease | NoSale:
        """One GPU of the pool, or one part of one, now; or why not. The same key buys once."""
        bid = f"order/{wallet.id.partition('/')[2]}/{key}"
        made = self._ledger.lease_of_bid(bid)
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
        winner = Winner(
            bid_uid=bid,
            bid_namespace=host_namespace(wallet.name),
            bid_name=f"order-{lease_id(bid)}",
            wallet=wallet.id,
            agent=wallet.name,
            owner=wallet.owner,
        )
        offers = self._offers([item.lot for item in stocks], share, max_price)
        return self._sell(winner, offers, heavy=False, now=now)

    def serve(self, bid: BidView, agent: AgentView, *, now: int) -> Lease | NoSale:
        """
        What an instant bid asks for, at once; or why not: then it takes part in the next round
        as any other. Of its alternatives, the one that gains most, the earlier of equals.
        """
        made = self._ledger.lease_of_bid(bid.uid)
        if made is not None:
            return made
        if not self.floats or not is_instant(bid) or agent.suspended or agent.deleting:
            return _SOLD_OUT
        if 0 < 1000 * bid.deadline <= now:
            return _SOLD_OUT
        offers = [
            offer
            for choice in (bid, *bid.otherwise)
            for offer in self._offers(self._lots_for(choice), choice.share, choice.price)
        ]
        winner = Winner(
            bid_uid=bid.uid,
            bid_namespace=bid.namespace,
            bid_name=bid.name,
            wallet=wallet_of(agent.uid),
            agent=agent.name,
            owner=agent.owner,
        )
        budget = Budget(bid.budget, bid.work)
        return self._sell(winner, offers, heavy=agent.heavy, now=now, budget=budget)

    def _lots_for(self, choice: BidView) -> Sequence[str]:
        """The lots that will do, as far as the last round knows: a new selector waits for one."""
        found = self._shop.lots_for(choice)
        return [lot for lot in found if lot in self.floats]

    def _offers(self, lots: Iterable[str], share: str, max_price: int) -> list[Offer]:
        found = []
        for lot in lots:
            float_, leaf = self.floats.get(lot), self._stocks[lot].leaf(share)
            if float_ is not None and (sold := float_.sell(share)) is not None:
                weight = leaf.weight if leaf else GPU_WEIGHT
                found.append(Offer(lot, float_.asked, max_price, share, weight, *sold))
        return found

    def _sell(
        self,
        winner: Winner,
        offers: Sequence[Offer],
        *,
        heavy: bool,
        now: int,
        budget: Budget = _NO_BUDGET,
    ) -> Lease | NoSale:
        if not offers:
            return _SOLD_OUT
        best = max(offers, key=lambda offer: offer.gain)  # of equals the first
        if best.gain < 0:
            price = format_credits(min(offer.asked for offer in offers))
            return NoSale(
                "PriceTooLow", f"a GPU-hour costs {price} now; offer that, or write a Bid"
            )
        item = self._stocks[best.lot]
        device = self._devices[best.lot][best.sale.device]
        if (leaf := item.leaf(best.share)) is not None:
            slots = leaf.slots(best.sale.places)
            device = msgspec.structs.replace(device, share=best.share, slots=slots)
        with self._ledger.commit(now) as commit:
            if self._is_taken(commit, device):
                self.floats = {}  # another exchange has run a round since: what is free is unknown
                return _SOLD_OUT
            account = commit.account(winner.wallet)
            terms, levy_percent = terms_for(item.pool, account, heavy=heavy)
            hold = leases.hold_for(best.max_price, best.weight, terms)
            short = hold - (account.available if account else 0)
            if budget.amount and hold > budgets.left(
                commit, winner.wallet, budget.work, budget.amount
            ):
                return NoSale("BudgetSpent", "its budget does not cover what this holds")
            if account is None or not account.is_open or short > 0:
                missing = f"the wallet is {format_credits(short)} credits short of what this holds"
                return NoSale("WalletTooSmall", missing)
            lease = leases.win(
                commit,
                winner,
                terms,
                pool=item.pool.name,
                domain=best.sale.domain,
                devices=(device,),
                weight=best.weight,
                max_price=best.max_price,
                price=best.asked,
                base=best.left.base,
                owed=0,
                waits_for=(),
                instant=True,
                levy_percent=levy_percent,
                budget=budget,
            )
        self.floats[best.lot] = best.left
        self._seen = commit.sequence
        return lease

    def _is_taken(self, commit: Commit, device: Device) -> bool:
        """
        Whether somebody has the device though the last round left it to this desk. Only who
        else writes this ledger can have sold it, so it is asked only if somebody has written.
        """
        if commit.sequence == self._seen + 1:
            return False
        self._seen = commit.sequence - 1
        return any(
            held.whole == device.whole
            and not (held.share and device.share and set(held.slots).isdisjoint(device.slots))
            for lease in commit.live_leases()
            for held in lease.devices
        )


_SOLD_OUT = NoSale(
    "SoldOut", "nothing is kept for instant orders there now; write a Bid for the next round"
)


def is_instant(bid: BidView) -> bool:
    """Whether a float could sell it: one GPU or one part of one, without a term."""
    return (
        bid.instant
        and not bid.problem
        and not bid.term_seconds
        and all(
            choice.gpus == choice.blocks == 1 and not choice.is_joint and not choice.whole_domain
            for choice in (bid, *bid.otherwise)
        )
    )


def best_price(bid: BidView) -> int:
    """The most that any of its alternatives offers."""
    return max(choice.price for choice in (bid, *bid.otherwise))


def terms_for(pool: PoolView, wallet: Account | None, *, heavy: bool) -> tuple[Terms, int]:
    """
    On which a lease there is won, and how much of its rent is levied: by the restart class. One
    that says `heavy` and was seen to start in much less is light.
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
