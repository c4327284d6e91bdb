"""
What the exchange does each second, without a clock, a network or an event loop.

    wallets   opened, refilled, closed
    observe   claimed leases become active, left ones are released, broken ones pay no more
    settle    rent is billed, holds are topped up; who cannot pay gets notice; who offers more for
              what it has ranks by it
    clear     the round: who wins, who is displaced, at which prices

All four are one commit of the ledger: a crash anywhere leaves all of it or none. The
engine keeps nothing that the ledger or the next snapshot does not have, so a new one simply
goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bidplane.api.bid import BidReason, BidStatus
from bidplane.api.lease import Phase
from bidplane.api.pool import PoolStatus
from bidplane.core.chain import CHAIN, Chain, block_size
from bidplane.core.lease import Event
from bidplane.core.market import (
    RoundInput,
    RoundResult,
    Won,
    clear_round,
)
from bidplane.core.market.early import fee
from bidplane.core.market.metering import charged_price
from bidplane.core.market.metering import reprice as worth_repricing
from bidplane.core.market.model import ONE
from bidplane.exchange import inventory, spanning
from bidplane.exchange.desk import Desk, best_price
from bidplane.exchange.inventory import Stock
from bidplane.exchange.moves import make_move, take_up
from bidplane.exchange.observing import breach, lost_nodes, note_idle, observe
from bidplane.exchange.opening import (
    by_name,
    price_now,
    round_input,
    standing_bids,
    weight_in,
    weight_of,
)
from bidplane.exchange.snapshot import BidView, Snapshot
from bidplane.exchange.status import bid_statuses, pool_statuses, won_status
from bidplane.ledger import Ledger, leases, wallets
from bidplane.ledger.commit import Commit
from bidplane.ledger.leases import Budget, Term, Winner, is_protected
from bidplane.ledger.records import REVENUE, Lease, LotPrice, TransferKind, wallet_of


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
        self._shelves = inventory.Shelves()
        self.desk = Desk(ledger)

    def run_round(
        self, snapshot: Snapshot, now: float, early: frozenset[str] = frozenset()
    ) -> Report:
        """`early`: the bids, by uid, for which it is run before its time."""
        with self.ledger.commit(round(now * 1000)) as commit:
            _keep_wallets(commit, snapshot)
            lost = lost_nodes(commit, snapshot)
            observe(commit, snapshot, lost)
            note_idle(commit, snapshot)
            standing = standing_bids(commit, snapshot)
            shop = self._shelves.shop(snapshot.pools, snapshot.devices, standing, snapshot.cards)
            breach(commit, shop.stocks, snapshot.unusable, lost)
            _settle(commit)
            standing = take_up(commit, snapshot, standing, shop)
            _raise_bids(commit, snapshot)
            _charge_for_early(commit, snapshot, shop.stocks, early)
            given, kept, refused = round_input(commit, snapshot, standing, shop)
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
        for bid in sorted(waiting, key=lambda bid: (-best_price(bid), bid.created, bid.uid)):
            asked = self.desk.cheapest
            if asked is None or best_price(bid) < asked:
                break  # nothing is left that it, or who offers less, would pay for
            lease = self.desk.serve(bid, agents[bid.agent], now=now)
            if isinstance(lease, Lease):
                sold[bid.uid] = won_status(bid, lease)
        return sold


_UNSERVED = (BidReason.OUTBID, BidReason.NO_FREE_BLOCK)


def _keep_wallets(commit: Commit, snapshot: Snapshot) -> None:
    busy = {lease.wallet for lease in commit.live_leases()}
    for agent in sorted(snapshot.agents, key=lambda agent: agent.uid):
        if not agent.deleting:
            wallets.open_wallet(
                commit,
                uid=agent.uid,
                name=agent.name,
                owner=agent.owner,
                team=agent.team,
                marks=agent.marks,
            )
            wallets.refill(commit, uid=agent.uid, amount=agent.refill, cap=agent.cap)
            if not agent.heavy:
                wallets.forget_starts(commit, uid=agent.uid)
        elif wallet_of(agent.uid) not in busy:
            # Not before its pods have ended and its leases were let go of: a released
            # device may be sold at once.
            wallets.close_wallet(commit, uid=agent.uid)
    here = {wallet_of(agent.uid) for agent in snapshot.agents}
    for wallet in commit.open_wallets():
        if wallet.id not in here:
            wallets.close_wallet(commit, uid=wallet.id.partition("/")[2])


def _settle(commit: Commit) -> None:
    for lease in commit.live_leases():
        settles = leases.needs_settling(commit, lease)
        if settles and (why := leases.settle(commit, lease.id)) is not None:
            leases.notice(commit, lease.id, why)
        elif lease.phase is Phase.ACTIVE and leases.is_expired(lease, commit.at):
            leases.notice(commit, lease.id, Event.EXPIRED)


def _raise_bids(commit: Commit, snapshot: Snapshot) -> None:
    """
    Whoever offers more for what it has ranks by it from now on. Offering less changes nothing:
    a lease is not lost by its own hand and compensated for it; it can be given back.
    """
    chains = {pool.name: pool.chain for pool in snapshot.pools}
    for bid in sorted(snapshot.bids, key=by_name):
        lease = None if bid.problem else commit.lease_of_bid(bid.uid)
        if lease is None or lease.phase is not Phase.ACTIVE or is_protected(lease, commit.at):
            continue
        found = _meant(bid, lease, chains)
        offered = max((choice.price for choice in found), default=0)
        if offered > lease.max_price:
            leases.raise_bid(commit, lease.id, offered)


def _meant(bid: BidView, lease: Lease, chains: Mapping[str, Chain]) -> list[BidView]:
    """
    The alternatives of a bid that its lease is what they ask for. A pool may have changed its
    chain since: then those that ask for most of it.
    """
    choices = [
        choice
        for choice in (bid, *bid.otherwise)
        if all(need.pool in ("", *lease.pool_names) for need in choice.needs)
        and choice.share == lease.share
        and choice.asked <= lease.gpus
    ]
    found = [choice for choice in choices if _sold(choice, lease, chains) == lease.gpus]
    most = max((choice.asked for choice in choices), default=0)
    return found or [choice for choice in choices if choice.asked == most]


def _sold(choice: BidView, lease: Lease, chains: Mapping[str, Chain]) -> int:
    if choice.whole_domain:
        return lease.gpus  # however many its domain had
    total = 0
    for need in choice.needs:
        size = block_size(need.gpus, chains.get(need.pool or lease.pool, CHAIN)) or need.gpus
        total += (need.gpus if need.spread or need.share else size) * need.blocks
    return choice.sets * total


def _charge_for_early(
    commit: Commit, snapshot: Snapshot, stocks: Sequence[Stock], early: frozenset[str]
) -> None:
    """Whoever had the round run at once pays for it, once, whether it wins or not."""
    wallets_of = {agent.name: wallet_of(agent.uid) for agent in snapshot.agents}
    for bid in sorted(snapshot.bids, key=by_name):
        if bid.uid not in early or bid.problem or bid.agent not in wallets_of:
            continue
        weight = max((weight_in(bid, item) for item in stocks), default=0)
        weight = weight_of(bid, stocks) if bid.is_joint else weight
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


def _apply(
    commit: Commit,
    snapshot: Snapshot,
    stock: Iterable[Stock],
    given: RoundInput,
    result: RoundResult,
) -> None:
    """Write down what the round decided. Those who leave go first, so that none waits twice."""
    stocks = {item.lot: item for item in stock}
    bids = {bid.uid: bid for bid in snapshot.bids}
    ages = {ask.id: ask.weight - ONE for ask in given.asks}
    for gone in result.displaced:
        leases.notice(
            commit,
            gone.lease,
            Event.OUTBID,
            compensation=gone.compensation,
            funds=spanning.by_pool(stocks, gone.funds),
        )
    bases = {lot.name: lot.base for lot in given.lots}
    for won in result.won:
        _win(commit, snapshot, bids[won.ask], won, stocks, bases, ages[won.ask])
    for move in result.moved:  # after who pays for it, so that the fund is never short of it
        make_move(commit, stocks[next(w.lot for w in result.won if w.ask == move.by)], move)
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
                    at=price_now(commit, stocks[lot.lot]).at,
                )
            )


def _win(
    commit: Commit,
    snapshot: Snapshot,
    bid: BidView,
    won: Won,
    stocks: Mapping[str, Stock],
    bases: Mapping[str, int],
    age: int,
) -> None:
    agent = next(agent for agent in snapshot.agents if agent.name == bid.agent)
    bid = (bid, *bid.otherwise)[won.option]
    wallet = commit.account(wallet_of(agent.uid))
    item = stocks[won.lot]
    pools = [stocks[lot].pool for lot in won.by_lot] or [item.pool]
    terms, levy_percent = spanning.terms_in(pools, wallet, heavy=agent.heavy)
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
        pool=item.pool.name,
        domain=won.domain,
        devices=spanning.seat(stocks, won) if won.by_lot else inventory.seat(item, won),
        max_price=bid.price,
        price=won.price,
        base=spanning.base(bases, won),
        owed=won.minimum,
        waits_for=won.waits_for,
        weight=won.weight,
        parts=won.parts,
        age=age,
        levy_percent=levy_percent,
        term=Term(bid.term_seconds, bid.renews),
        budget=Budget(bid.budget, bid.work),
        pools=spanning.pools_of(stocks, bases, won),
        funds=spanning.by_pool(stocks, won.funds),
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
