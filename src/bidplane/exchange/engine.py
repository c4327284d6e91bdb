"""
The work of the exchange in each round, without a clock, a network or an event loop.

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
from contextlib import suppress
from typing import NamedTuple

import msgspec

from bidplane.api.bid import BidReason, BidStatus
from bidplane.api.lease import Phase
from bidplane.api.money import GPU_WEIGHT
from bidplane.api.pool import PoolStatus
from bidplane.api.shape import share_name
from bidplane.core.devices.chain import CHAIN, Chain
from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.core.market import (
    RoundInput,
    RoundResult,
    clear_round,
    shapes,
)
from bidplane.core.market.lots import Selects, selects
from bidplane.core.market.model import ONE
from bidplane.core.market.pricing.early import fee
from bidplane.core.market.pricing.metering import charged_price
from bidplane.core.market.pricing.metering import reprice as worth_repricing
from bidplane.exchange.instantsales import InstantSales, Kept, best_price
from bidplane.exchange.round import multilot
from bidplane.exchange.round.awards import award_of
from bidplane.exchange.round.defaultprices import with_default_prices
from bidplane.exchange.round.grants import price_ceilings, with_default_refills
from bidplane.exchange.round.inputs import (
    by_name,
    price_now,
    round_input,
    standing_bids,
    weight_of,
)
from bidplane.exchange.round.inventory import InventoryCache, LotDevices, MarketInventory
from bidplane.exchange.round.moves import make_move, resume_moved_leases
from bidplane.exchange.round.observations import breach, lost_nodes, note_idle, observe
from bidplane.exchange.snapshot import AgentView, BidView, HostSnapshot
from bidplane.exchange.status import bid_statuses, pool_statuses, won_status
from bidplane.ledger import Ledger, leases, wallets
from bidplane.ledger.commit import Commit
from bidplane.ledger.leases import is_protected
from bidplane.ledger.records import (
    REVENUE,
    Lease,
    LotPrice,
    TransferKind,
    lease_id,
    wallet_of,
)
from bidplane.ledger.tables import LEASE


class RoundReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a round, for the statuses and metrics that show it."""

    round: int  # the last that was recorded
    recorded: bool  # whether that was this one
    result: RoundResult
    bids: Mapping[str, BidStatus]  # by uid
    pools: Mapping[str, PoolStatus]  # by name


class _Rehearsed(Exception):
    """Ends a rehearsal, so that its commit is undone."""


class _Cleared(NamedTuple):
    """A round that was cleared and committed, before its statuses are built."""

    number: int
    outcome: tuple[tuple[str, str], ...]
    result: RoundResult
    inventory: MarketInventory
    floated: dict[str, Kept]
    bids: dict[str, BidStatus]


class Engine:
    def __init__(self, ledger: Ledger, *, selects: Selects = selects) -> None:
        """
        Create an engine. `selects` answers for the bids' selectors; by default they are evaluated
        here.
        """
        self.ledger = ledger
        self._round = ledger.last_round
        self._outcome: tuple[tuple[str, str], ...] = ()  # of the last recorded round
        self._inventories = InventoryCache(selects)
        self.desk = InstantSales(ledger)
        # Of the last round: the agents by uid, and what the `steady` ones offer at most, by name.
        self.agents: Mapping[str, AgentView] = {}
        self.ceilings: Mapping[str, int] = {}

    def run_round(
        self, snapshot: HostSnapshot, now: float, early: frozenset[str] = frozenset()
    ) -> RoundReport:
        """
        Run one round and report it. `early`: the bids, by uid, for which it is run before its time.
        """
        snapshot = self._with_defaults(snapshot, round(now * 1000))
        with self.ledger.commit(round(now * 1000)) as commit:
            cleared = self._clear(commit, snapshot, early)
        result, number = cleared.result, cleared.number
        recorded = number != self._round
        self._round, self._outcome = number, cleared.outcome
        self.desk.open(cleared.inventory, cleared.floated, result.lots, snapshot.hosts)
        bids = {**cleared.bids, **self._sell_at_once(snapshot, result, round(now * 1000))}
        return RoundReport(
            round=number,
            recorded=recorded,
            result=result,
            bids=bids,
            pools=pool_statuses(cleared.inventory.stocks, result),
        )

    def _with_defaults(self, snapshot: HostSnapshot, now: int) -> HostSnapshot:
        """The same snapshot, with the refills and prices that its agents and bids do not name."""
        snapshot = with_default_refills(snapshot)
        self.agents = {agent.uid: agent for agent in snapshot.agents}
        self.ceilings = price_ceilings(snapshot, self.ledger.account, now)
        return with_default_prices(snapshot, self.ceilings)

    def rehearse(
        self, snapshot: HostSnapshot, now: float, early: frozenset[str] = frozenset()
    ) -> None:
        """Run a round and undo it: raises what `run_round` would raise."""
        with suppress(_Rehearsed), self.ledger.commit(round(now * 1000)) as commit:
            self._clear(commit, snapshot, early)
            if not commit.is_empty:
                commit.write()
            raise _Rehearsed

    def _clear(self, commit: Commit, snapshot: HostSnapshot, early: frozenset[str]) -> _Cleared:
        commit.prefetch(LEASE, [lease_id(bid.uid) for bid in snapshot.bids])
        _keep_wallets(commit, snapshot)
        lost = lost_nodes(commit, snapshot)
        observe(commit, snapshot, lost)
        note_idle(commit, snapshot)
        standing = standing_bids(commit, snapshot)
        inventory = self._inventories.get(
            snapshot.pools, snapshot.devices, standing, snapshot.cards
        )
        breach(commit, inventory.stocks, snapshot.unusable, lost, snapshot.foreign)
        _settle(commit)
        standing = resume_moved_leases(commit, snapshot, standing, inventory)
        _raise_bids(commit, snapshot)
        _charge_for_early(commit, snapshot, inventory.stocks, early)
        market_input, floated, refused = round_input(commit, snapshot, standing, inventory)
        result = clear_round(market_input)
        _apply(commit, snapshot, inventory.stocks, market_input, result)
        # A round that came to what the last one did is not worth a record.
        outcome = tuple((loss.ask, loss.reason.value) for loss in result.lost)
        number = self._round
        if result.won or result.displaced or outcome != self._outcome:
            number = commit.add_round(
                input=msgspec.json.encode(market_input), result=msgspec.json.encode(result)
            )
        bids = bid_statuses(commit, snapshot, result, refused, number)
        return _Cleared(number, outcome, result, inventory, floated, bids)

    def _sell_at_once(
        self, snapshot: HostSnapshot, result: RoundResult, now: int
    ) -> dict[str, BidStatus]:
        """
        Sell from the float to bids that lost the round and offer the float's price, which was not
        in the round: no GPU is kept from a bid that offers what it costs.
        """
        if not self.desk.floats:
            return {}
        lost = {loss.ask for loss in result.lost if loss.reason in _UNSERVED}
        agents = {agent.name: agent for agent in snapshot.agents}
        waiting = [bid for bid in snapshot.bids if bid.uid in lost and bid.instant]
        sold: dict[str, BidStatus] = {}
        for bid in sorted(waiting, key=lambda bid: (-best_price(bid), bid.created, bid.uid)):
            cheapest = self.desk.cheapest
            if cheapest is None or best_price(bid) < cheapest:
                break  # nothing is left that it, or who offers less, would pay for
            lease = self.desk.serve(bid, agents[bid.agent], now=now)
            if isinstance(lease, Lease):
                sold[bid.uid] = won_status(bid, lease)
        return sold


_UNSERVED = (BidReason.OUTBID, BidReason.NO_FREE_BLOCK)


def _keep_wallets(commit: Commit, snapshot: HostSnapshot) -> None:
    busy = {lease.wallet for lease in commit.live_leases()}
    for agent in sorted(snapshot.agents, key=lambda agent: agent.uid):
        if agent.problem and not agent.deleting:
            continue
        if not agent.deleting:
            wallets.open_wallet(
                commit,
                uid=agent.uid,
                name=agent.name,
                owner=agent.owner,
                team=agent.team,
                marks=agent.marks,
            )
            if agent.refill or not agent.default_refill:  # else its grants wait for GPUs
                wallets.refill(commit, uid=agent.uid, amount=agent.refill, cap=agent.cap)
            if not agent.heavy:
                wallets.forget_starts(commit, uid=agent.uid)
        elif wallet_of(agent.uid) not in busy:
            # Not before its pods have ended and its leases were let go of: a released
            # device may be sold at once.
            wallets.close_wallet(commit, uid=agent.uid)
    present = {wallet_of(agent.uid) for agent in snapshot.agents}
    for wallet in commit.open_wallets():
        if wallet.id not in present:
            wallets.close_wallet(commit, uid=wallet.id.partition("/")[2])


def _settle(commit: Commit) -> None:
    for lease in commit.live_leases():
        settles = leases.needs_settling(commit, lease)
        if settles and (event := leases.settle(commit, lease.id)) is not None:
            leases.notice(commit, lease.id, event)
        elif lease.phase is Phase.ACTIVE and leases.is_expired(lease, commit.at):
            leases.notice(commit, lease.id, LeaseEvent.EXPIRED)


def _raise_bids(commit: Commit, snapshot: HostSnapshot) -> None:
    """
    Raise the rank of leases whose bid offers more than before. Offering less changes nothing: an
    agent must not lose a lease by its own hand and be compensated for it; it can give it back.
    """
    chains = {pool.name: pool.chain for pool in snapshot.pools}
    running = [bid for bid in snapshot.bids if commit.lease_of_bid(bid.uid) is not None]
    for bid in sorted(running, key=by_name):
        lease = None if bid.problem else commit.lease_of_bid(bid.uid)
        if lease is None or lease.phase is not Phase.ACTIVE or is_protected(lease, commit.at):
            continue
        matching = _served_choices(bid, lease, chains)
        offered = max((choice.price for choice in matching), default=0)
        if offered > lease.max_price:
            leases.raise_bid(commit, lease.id, offered)


def _served_choices(bid: BidView, lease: Lease, chains: Mapping[str, Chain]) -> list[BidView]:
    """
    The alternatives of a bid that its lease serves. If its pool has changed its chain since, those
    that ask for most.
    """
    choices = [
        choice
        for choice in (bid, *bid.otherwise)
        if all(need.pool in ("", *lease.pool_names) for need in choice.needs)
        and (choice.memory or share_name(choice.share) == share_name(lease.share))
        and choice.asked <= lease.gpus
    ]
    exact = [
        choice
        for choice in choices
        if shapes.is_sold_as(choice, lease.gpus, lambda pool: chains.get(pool or lease.pool, CHAIN))
    ]
    most = max((choice.asked for choice in choices), default=0)
    return exact or [choice for choice in choices if choice.asked == most]


def _charge_for_early(
    commit: Commit, snapshot: HostSnapshot, stocks: Sequence[LotDevices], early: frozenset[str]
) -> None:
    """Charge the bids that had the round run at once, whether they win or not."""
    wallets_of = {agent.name: wallet_of(agent.uid) for agent in snapshot.agents}
    for bid in sorted((bid for bid in snapshot.bids if bid.uid in early), key=by_name):
        if bid.problem or bid.agent not in wallets_of:
            continue
        weight = max((shapes.weight_in(bid, item.extent) for item in stocks), default=0)
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
    snapshot: HostSnapshot,
    stock: Iterable[LotDevices],
    market_input: RoundInput,
    result: RoundResult,
) -> None:
    """Write the round's decisions to the ledger. Winners pay first, for those who leave."""
    stocks = {item.lot: item for item in stock}
    bids = {bid.uid: bid for bid in snapshot.bids}
    ages = {ask.id: ask.weight - ONE for ask in market_input.asks}
    bases = {lot.name: lot.base for lot in market_input.lots}
    agents = {agent.name: agent for agent in snapshot.agents}
    for won in result.won:
        bid = bids[won.ask]
        agent = agents[bid.agent]
        wallet, age = commit.account(wallet_of(agent.uid)), ages[won.ask]
        award = award_of(won, bid, agent, wallet, stocks=stocks, bases=bases, age=age)
        leases.win(commit, award)
    for displaced in result.displaced:
        funds, amount = multilot.by_pool(stocks, displaced.funds), displaced.compensation
        lease = commit.lease(displaced.lease)
        if lease is not None and lease.phase is Phase.PENDING:
            leases.void(commit, displaced.lease, refund=amount, funds=funds)
        else:
            leases.notice(
                commit, displaced.lease, LeaseEvent.OUTBID, compensation=amount, funds=funds
            )
    for move in result.moved:
        make_move(commit, stocks[next(w.lot for w in result.won if w.ask == move.by)], move)
    for staying in result.kept:
        _reprice(commit, staying.lease, staying.price)
    for lot in result.lots:
        recorded = commit.lot(lot.lot)
        now = (lot.devices, lot.leased, lot.used, lot.unserved)
        if (
            recorded is None
            or (recorded.devices, recorded.leased, recorded.used, recorded.unserved) != now
        ):
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
                    gpu_weight=GPU_WEIGHT,
                )
            )


def _reprice(commit: Commit, id: str, stay: int) -> None:
    lease = commit.lease(id)
    if lease is None or lease.phase is Phase.PENDING:
        return  # one that has not begun keeps the price it was won at
    price = charged_price(
        stay=stay,
        win=lease.win_price,
        most=lease.max_price,
        in_first_epoch=commit.at < lease.active_at + 1000 * lease.epoch_seconds,
    )
    at_epoch = lease.settled_at == commit.at
    if price != lease.price and (at_epoch or worth_repricing(lease.price, price)):
        leases.reprice(commit, id, price)
