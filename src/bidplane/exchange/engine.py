"""
What the exchange does each second, without a clock, a network or an event loop.

    wallets   opened, refilled, closed
    observe   claimed leases become active, left ones are released, broken ones pay no more
    settle    rent is billed, holds are topped up; who cannot pay gets notice
    clear     the round: who wins, who is displaced, at which prices

All four are one commit of the ledger: a crash anywhere leaves all of it or none. The
engine keeps nothing that the ledger does not have, so a new one simply goes on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bidplane.api.bid import BidReason, BidStatus
from bidplane.api.lease import Device, Phase
from bidplane.api.money import GPU_WEIGHT
from bidplane.api.pool import PoolStatus
from bidplane.core.chain import block_size
from bidplane.core.lease import Event
from bidplane.core.market import (
    Ask,
    Incumbent,
    Lot,
    RoundInput,
    RoundResult,
    Won,
    clear_round,
    instant,
    preemption,
)
from bidplane.core.market.early import fee
from bidplane.core.market.metering import charged_price
from bidplane.core.market.metering import reprice as worth_repricing
from bidplane.core.market.model import ONE
from bidplane.core.market.prices import BasePrice, advance
from bidplane.exchange import inventory
from bidplane.exchange.desk import Desk, Kept, terms_for
from bidplane.exchange.inventory import Shop, Stock
from bidplane.exchange.snapshot import BidView, PoolView, Snapshot
from bidplane.exchange.status import bid_statuses, pool_statuses, won_status
from bidplane.ledger import Ledger, leases, wallets
from bidplane.ledger.commit import Commit
from bidplane.ledger.leases import Term, Winner
from bidplane.ledger.records import REVENUE, Lease, LotPrice, TransferKind, fund_of, wallet_of


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a round came to, for whoever tells the world."""

    round: int  # the last that was recorded
    recorded: bool  # whether that was this one
    result: RoundResult
    bids: Mapping[str, BidStatus]  # by uid
    pools: Mapping[str, PoolStatus]  # by name


class Engine:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._round = ledger.last_round
        self._outcome: tuple[tuple[str, str], ...] = ()  # of the last recorded round
        self.desk = Desk(ledger)

    def run_round(
        self, snapshot: Snapshot, now: float, early: frozenset[str] = frozenset()
    ) -> Report:
        """`early`: the bids, by uid, for which it is run before its time."""
        with self.ledger.commit(round(now * 1000)) as commit:
            _keep_wallets(commit, snapshot)
            _observe(commit, snapshot)
            standing = _standing(commit, snapshot)
            shop = inventory.shop(snapshot.pools, snapshot.devices, standing)
            _breach(commit, shop.stocks)
            _settle(commit)
            _charge_for_early(commit, snapshot, shop.stocks, early)
            given, kept, refused = _round_input(commit, snapshot, standing, shop)
            result = clear_round(given)
            _apply(commit, snapshot, shop.stocks, given, result)
            # A round that came to what the last one did is not worth a record.
            outcome = tuple((loss.ask, loss.reason.value) for loss in result.lost)
            number = self._round
            if result.won or result.displaced or outcome != self._outcome:
                number = commit.add_round(
                    input=msgspec.json.encode(given), result=msgspec.json.encode(result)
                )
            bids = bid_statuses(commit, snapshot, result, refused, number)
        recorded = number != self._round
        self._round, self._outcome = number, outcome
        self.desk.open(shop, kept, result.lots)
        bids |= self._sell_at_once(snapshot, result, round(now * 1000))
        return Report(
            round=number,
            recorded=recorded,
            result=result,
            bids=bids,
            pools=pool_statuses(shop.stocks, result),
        )

    def _sell_at_once(
        self, snapshot: Snapshot, result: RoundResult, now: int
    ) -> dict[str, BidStatus]:
        """
        The float was not in the round. Of those who lost it, whoever would rather pay the
        float's price has it now: no GPU is kept from a bid that offers what it costs.
        """
        if not self.desk.floats:
            return {}
        lost = {loss.ask for loss in result.lost if loss.reason in _UNSERVED}
        agents = {agent.name: agent for agent in snapshot.agents}
        waiting = [bid for bid in snapshot.bids if bid.uid in lost and bid.instant]
        sold: dict[str, BidStatus] = {}
        for bid in sorted(waiting, key=lambda bid: (-bid.price, bid.created, bid.uid)):
            lease = self.desk.serve(bid, agents[bid.agent], now=now)
            if isinstance(lease, Lease):
                sold[bid.uid] = won_status(bid, lease)
        return sold


_UNSERVED = (BidReason.OUTBID, BidReason.NO_FREE_BLOCK)


def _keep_wallets(commit: Commit, snapshot: Snapshot) -> None:
    busy = {lease.wallet for lease in commit.live_leases()}
    for agent in sorted(snapshot.agents, key=lambda agent: agent.uid):
        if not agent.deleting:
            wallets.open_wallet(commit, uid=agent.uid, name=agent.name, owner=agent.owner)
            wallets.refill(commit, uid=agent.uid, amount=agent.refill, cap=agent.cap)
        elif wallet_of(agent.uid) not in busy:
            # Not before its pods have ended and its leases were let go of: a released
            # device may be sold at once.
            wallets.close_wallet(commit, uid=agent.uid)
    here = {wallet_of(agent.uid) for agent in snapshot.agents}
    for wallet in commit.open_wallets():
        if wallet.id not in here:
            wallets.close_wallet(commit, uid=wallet.id.partition("/")[2])


def _observe(commit: Commit, snapshot: Snapshot) -> None:
    for lease in commit.live_leases():
        if lease.id in snapshot.left:
            leases.release(commit, lease.id, Event.LEFT)
    # Claims after releases: one may have made the other's devices free. Both before
    # lateness is judged: the exchange may have been away while the claim was made.
    for lease in commit.live_leases():
        if lease.phase is Phase.PENDING and (lease.claimed or lease.id in snapshot.claimed):
            leases.claim(commit, lease.id)
        elif leases.is_unclaimed(lease, commit.at):
            leases.release(commit, lease.id, Event.UNCLAIMED)


def _breach(commit: Commit, stock: Sequence[Stock]) -> None:
    """
    A running lease whose device is gone pays no more from now on, and pays again when it is
    back. One that was won and has not begun is void: its holder bids anew.
    """
    here: dict[str, set[Device]] = {}
    for item in stock:
        here.setdefault(item.pool.name, set()).update(item.where)
    for lease in commit.live_leases():
        if lease.pool not in here:
            continue
        gone = any(device.whole not in here[lease.pool] for device in lease.devices)
        if lease.phase is Phase.PENDING:
            if gone:
                leases.release(commit, lease.id, Event.INVENTORY_CHANGED)
        elif gone and not lease.breached_at:
            leases.breach(commit, lease.id)
        elif lease.breached_at and not gone:
            leases.mend(commit, lease.id)


def _settle(commit: Commit) -> None:
    for lease in commit.live_leases():
        if leases.needs_settling(commit, lease) and not leases.settle(commit, lease.id):
            leases.notice(commit, lease.id, Event.UNFUNDED)
        elif lease.phase is Phase.ACTIVE and leases.is_expired(lease, commit.at):
            leases.notice(commit, lease.id, Event.EXPIRED)


def _charge_for_early(
    commit: Commit, snapshot: Snapshot, stocks: Sequence[Stock], early: frozenset[str]
) -> None:
    """Whoever had the round run at once pays for it, once, whether it wins or not."""
    wallets_of = {agent.name: wallet_of(agent.uid) for agent in snapshot.agents}
    for bid in sorted(snapshot.bids, key=_name):
        if bid.uid not in early or bid.problem or bid.agent not in wallets_of:
            continue
        weight = max((_weight(bid, item) for item in stocks), default=0)
        amount = fee(bid.price, weight)
        wallet = commit.account(wallets_of[bid.agent])
        if amount and wallet is not None and wallet.is_open and wallet.available >= amount:
            commit.transfer(
                f"early/{bid.uid}",
                TransferKind.EARLY,
                debit=wallet.id,
                credit=REVENUE,
                amount=amount,
            )


Refusals = dict[str, tuple[BidReason, str]]  # by uid, bids that no lot can serve as they are


def _round_input(
    commit: Commit, snapshot: Snapshot, standing: Sequence[BidView], shop: Shop
) -> tuple[RoundInput, dict[str, Kept], Refusals]:
    """
    What the market is given; by lot, what is kept out of it for the instant path; and the
    bids that take no part because nothing is sold as they want it.
    """
    live = commit.live_leases()
    kept: dict[str, Kept] = {}
    lots: list[Lot] = []
    running: list[Incumbent] = []
    prices = {item.lot: _price(commit, item) for item in shop.stocks}
    _seed_funds(commit, shop.stocks, prices)
    sizes: dict[str, int] = {}
    for item in shop.stocks:
        sizes[item.pool.name] = sizes.get(item.pool.name, 0) + item.devices
    for item in shop.stocks:
        pool, price = item.pool, prices[item.lot]
        fund = commit.account(fund_of(pool.name))
        # Lots of one pool share its fund, each as large as it is.
        part = fund.available * item.devices // max(1, sizes[pool.name]) if fund else 0
        domains = inventory.domains(item, live)
        waiting = [
            block_size(b.gpus) or b.gpus
            for b in standing
            if b.pool in ("", pool.name) and not b.share
        ]
        kept[item.lot] = instant.choose(domains, waiting=waiting, percent=pool.float_percent)
        lots.append(
            Lot(
                name=item.lot,
                base=price.base,
                posted=max(price.posted, price.base),
                fund=part,
                domains=instant.without(domains, kept[item.lot]),
                leaves=item.leaves,
                exact=pool.exact,
                floated=len(kept[item.lot]),
            )
        )
        running += inventory.incumbents(item, live, base=price.base, at=commit.at)
    asks, refused = _asks(commit, snapshot, standing, shop)
    available = {
        agent.name: wallet.available
        for agent in snapshot.agents
        if (wallet := commit.account(wallet_of(agent.uid))) is not None and wallet.is_open
    }
    given = RoundInput(
        at=commit.at,
        lots=tuple(lots),
        asks=tuple(sorted(asks, key=lambda ask: ask.id)),
        incumbents=tuple(running),
        available=available,
    )
    return given, kept, refused


def _seed_funds(commit: Commit, stocks: Sequence[Stock], prices: Mapping[str, LotPrice]) -> None:
    for pool in {item.pool.name: item.pool for item in stocks}.values():
        wanted = sum(
            preemption.seed(
                preemption.seed_price(pool.floor, prices[item.lot].base),
                item.devices,
                pool.terms.notice_seconds,
                pool.terms.restart_seconds,
            )
            for item in stocks
            if item.pool.name == pool.name
        )
        wallets.seed_fund(commit, pool=pool.name, wanted=wanted)


def _asks(
    commit: Commit, snapshot: Snapshot, standing: Sequence[BidView], shop: Shop
) -> tuple[list[Ask], Refusals]:
    owners = {agent.name: agent.owner for agent in snapshot.agents}
    asks: list[Ask] = []
    refused: Refusals = {}
    ages = _ages(standing, owners, commit.at)
    for bid in standing:
        if bid.uid not in ages:
            refused[bid.uid] = BidReason.TOO_MANY_BIDS, _TOO_MANY
            continue
        able: list[Ask] = []
        why: list[tuple[BidReason, str]] = []
        for option, choice in enumerate((bid, *bid.otherwise)):
            lots = shop.lots_for(choice)
            if lots and isinstance(lots[0], BidReason):
                why.append(lots)  # type: ignore[arg-type]
            else:
                ask = _ask(choice, owners, shop.stocks, ages[bid.uid])
                # A pool nobody has is named to the round, which says so.
                lot = "" if lots else choice.pool
                able.append(msgspec.structs.replace(ask, lot=lot, lots=lots, option=option))
        if able:
            first, *rest = able
            asks.append(msgspec.structs.replace(first, otherwise=tuple(rest)))
        else:
            refused[bid.uid] = why[0]
    return asks, refused


def _standing(commit: Commit, snapshot: Snapshot) -> list[BidView]:
    """The bids that take part: readable, of an agent that stays, and not yet won with."""
    staying = {a.name for a in snapshot.agents if not a.deleting and not a.suspended}
    # A uid is one bid's. If a host ever shows it twice, the first by name stands for it.
    unique = {bid.uid: bid for bid in sorted(snapshot.bids, key=_name, reverse=True)}
    return [
        bid
        for bid in unique.values()
        if not bid.problem
        and bid.agent in staying
        and not 0 < 1000 * bid.deadline <= commit.at
        and commit.lease_of_bid(bid.uid) is None
    ]


def _name(bid: BidView) -> tuple[str, str]:
    return bid.namespace, bid.name


def _ask(bid: BidView, owners: Mapping[str, str], stocks: Sequence[Stock], age: int) -> Ask:
    # The earlier bid goes first; within a second a hash decides, which nobody can choose
    # to any effect. Running leases have small ties: they go before equal bids.
    chance = int.from_bytes(hashlib.sha256(bid.uid.encode()).digest()[:4], "big")
    return Ask(
        id=bid.uid,
        agent=bid.agent,
        owner=owners[bid.agent],
        gpus=bid.gpus,
        price=bid.price,
        blocks=bid.blocks,
        spread=bid.spread,
        share=bid.share,
        weight=ONE + age,
        premium=preemption.TERM_PREMIUM_PERCENT if bid.term_seconds else 0,
        tie=((bid.created + 1) << 32) | chance,
        hold={
            item.lot: leases.hold_for(
                bid.price, _weight(bid, item), item.pool.terms, bid.term_seconds
            )
            for item in stocks
            if bid.pool in ("", item.pool.name)
        },
    )


def _weight(bid: BidView, item: Stock) -> int:
    """What it would pay of its price in that lot, in 56ths; 0 where it is not sold."""
    if bid.share:
        leaf = item.leaf(bid.share)
        return leaf.weight * bid.gpus * bid.blocks if leaf else 0
    gpus = bid.gpus if bid.spread else (block_size(bid.gpus) or bid.gpus) * bid.blocks
    return GPU_WEIGHT * gpus


STANDING_MOST = 1000  # bids of one owner
_TOO_MANY = f"its owner has {STANDING_MOST} older bids that stand; end some, or wait until they win"


def _ages(standing: Sequence[BidView], owners: Mapping[str, str], at: int) -> dict[str, int]:
    """
    By bid, what waiting adds to its rank. An owner's bids share it: the oldest has all that
    it waited for, the second half of it, and so on; or many small bids would age more than a
    large one.
    """
    ages: dict[str, int] = {}
    counts: dict[str, int] = {}
    for bid in sorted(standing, key=lambda bid: (bid.created, bid.uid)):
        place = counts[owners[bid.agent]] = counts.get(owners[bid.agent], 0) + 1
        # In steps of a minute, so that a bid that waits is not news each second.
        waited = at // 1000 - bid.created if bid.created else 0
        if place <= STANDING_MOST:
            ages[bid.uid] = preemption.age(waited - waited % 60) // place
    return ages


def _price(commit: Commit, item: Stock) -> LotPrice:
    """The lot's price as it is now: a function of what was written down, and the time."""
    pool = item.pool
    known = commit.lot(item.lot)
    if known is None:
        parent = commit.lot(pool.name)  # it was split off: it begins at the whole's price
        return LotPrice(
            lot=item.lot,
            base=max(pool.floor, parent.base) if parent else pool.floor,
            posted=max(pool.floor, parent.posted) if parent else pool.floor,
            devices=item.devices,
            leased=0,
            used=0,
            unserved=0,
            at=commit.at,
        )
    moved = advance(
        BasePrice(
            base=known.base,
            at=known.at,
            devices=GPU_WEIGHT * known.devices,
            leased=known.used,
            unserved=known.unserved,
        ),
        commit.at,
        floor=pool.floor,
        target_percent=pool.target_percent,
    )
    return msgspec.structs.replace(known, base=moved.base, at=moved.at)


def _apply(
    commit: Commit,
    snapshot: Snapshot,
    stock: Iterable[Stock],
    given: RoundInput,
    result: RoundResult,
) -> None:
    """Write down what the round decided. Those who leave go first, so that none waits twice."""
    stocks = {item.lot: item for item in stock}
    lots = {lot.name: lot for lot in given.lots}
    bids = {bid.uid: bid for bid in snapshot.bids}
    ages = {ask.id: ask.weight - ONE for ask in given.asks}
    for gone in result.displaced:
        leases.notice(commit, gone.lease, Event.OUTBID, compensation=gone.compensation)
    for won in result.won:
        item, base = stocks[won.lot], lots[won.lot].base
        seat = inventory.seat(item, won)
        _win(commit, snapshot, bids[won.ask], won, seat, item.pool, base, ages[won.ask])
    for kept in result.kept:
        _reprice(commit, kept.lease, kept.price)
    for lot in result.lots:
        known = commit.lot(lot.lot)
        now = (lot.devices, lot.leased, lot.used, lot.unserved)
        if known is None or (known.devices, known.leased, known.used, known.unserved) != now:
            commit.put_lot(
                LotPrice(
                    lot=lot.lot,
                    base=lot.base,
                    posted=lot.posted,
                    devices=lot.devices,
                    leased=lot.leased,
                    used=lot.used,
                    unserved=lot.unserved,
                    at=_price(commit, stocks[lot.lot]).at,
                )
            )


def _win(
    commit: Commit,
    snapshot: Snapshot,
    bid: BidView,
    won: Won,
    devices: tuple[Device, ...],
    pool: PoolView,
    base: int,
    age: int,
) -> None:
    agent = next(agent for agent in snapshot.agents if agent.name == bid.agent)
    bid = (bid, *bid.otherwise)[won.option]
    terms, levy_percent = terms_for(pool, heavy=agent.heavy)
    leases.win(
        commit,
        Winner(
            bid_uid=bid.uid,
            bid_namespace=bid.namespace,
            bid_name=bid.name,
            wallet=wallet_of(agent.uid),
            agent=agent.name,
            owner=agent.owner,
        ),
        terms,
        pool=pool.name,
        domain=won.domain,
        devices=devices,
        max_price=bid.price,
        price=won.price,
        base=base,
        owed=won.minimum,
        waits_for=won.waits_for,
        weight=won.weight,
        parts=won.parts,
        age=age,
        levy_percent=levy_percent,
        term=Term(bid.term_seconds, bid.renews),
    )


def _reprice(commit: Commit, id: str, stay: int) -> None:
    lease = commit.lease(id)
    if lease is None:
        return
    price = charged_price(
        stay=stay,
        win=lease.win_price,
        most=lease.max_price,
        in_first_epoch=commit.at < lease.active_at + 1000 * lease.epoch_seconds,
    )
    at_epoch = lease.settled_at == commit.at
    if price != lease.price and (at_epoch or worth_repricing(lease.price, price)):
        leases.reprice(commit, id, price)
