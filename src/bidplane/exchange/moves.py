"""Leases that move to make room: their notice, the devices kept for them, and going on there."""

from __future__ import annotations

from collections.abc import Sequence

from bidplane.core.chain import Chain, block_size
from bidplane.core.lease import Event
from bidplane.core.market import Moved
from bidplane.exchange import inventory
from bidplane.exchange.desk import terms_for
from bidplane.exchange.inventory import Shop, Stock
from bidplane.exchange.snapshot import BidView, Snapshot
from bidplane.ledger import budgets, leases
from bidplane.ledger.commit import Commit
from bidplane.ledger.leases import Budget, Winner
from bidplane.ledger.records import Lease, wallet_of


def make_move(commit: Commit, item: Stock, move: Moved) -> None:
    """Its notice, its compensation, and the devices that are kept for its holder's next bid."""
    leases.notice(commit, move.lease, Event.MOVED, compensation=move.compensation)
    devices = inventory.seat(item, move)
    leases.keep(commit, move.lease, domain=move.domain, devices=devices)


def take_up(
    commit: Commit, snapshot: Snapshot, standing: Sequence[BidView], shop: Shop
) -> list[BidView]:
    """
    Who was moved goes on where devices are kept for it, at the price it had: its oldest bid for
    as many has them, without a contest. Returns the bids that are left.
    """
    agents = {wallet_of(agent.uid): agent for agent in snapshot.agents}
    pools = {item.pool.name: item.pool for item in shop.stocks}
    for kept in [lease for lease in commit.live_leases() if lease.is_kept]:
        agent, pool = agents.get(kept.wallet), pools.get(kept.pool)
        if agent is None or pool is None:
            continue
        fits = [
            bid
            for bid in standing
            if bid.agent == agent.name and _can_take_up(bid, kept, shop, pool.chain)
        ]
        wallet = commit.account(kept.wallet)
        terms, levy_percent = terms_for(pool, wallet, heavy=agent.heavy)
        for bid in sorted(fits, key=lambda bid: (bid.created, bid.uid)):
            hold = leases.hold_for(bid.price, kept.weight, terms)
            if wallet is None or wallet.available < hold:
                continue
            if bid.budget and budgets.left(commit, kept.wallet, bid.work, bid.budget) < hold:
                continue
            winner = Winner(
                bid_uid=bid.uid,
                bid_namespace=bid.namespace,
                bid_name=bid.name,
                wallet=kept.wallet,
                agent=agent.name,
                owner=agent.owner,
            )
            leases.take_up(
                commit,
                kept.id,
                winner,
                terms,
                max_price=bid.price,
                levy_percent=levy_percent,
                budget=Budget(bid.budget, bid.work),
            )
            standing = [other for other in standing if other.uid != bid.uid]
            break
    return list(standing)


def _can_take_up(bid: BidView, kept: Lease, shop: Shop, chain: Chain) -> bool:
    if bid.is_joint or bid.share != kept.share or bid.term_seconds:
        return False
    if bid.spread or bid.blocks != 1:
        return False
    where = [item.lot for item in shop.stocks if kept.devices[0].whole in item.where]
    # A block of a size that is sold no more is still whose bid asks for exactly as much.
    wanted = {bid.gpus, None if bid.share else block_size(bid.gpus, chain)}
    if bid.whole_domain:
        wanted = {item.domain for item in shop.stocks if item.lot in where}
    return kept.gpus in wanted and set(where) <= set(shop.lots_for(bid))
