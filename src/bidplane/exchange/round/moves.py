"""
Leases that move to make room: their notice, the devices reserved for them, and their resumption.
"""

from __future__ import annotations

from collections.abc import Sequence

from bidplane.api.shape import share_name
from bidplane.core.devices.chain import Chain
from bidplane.core.leases.lifecycle import LeaseEvent
from bidplane.core.market import Moved
from bidplane.core.market.shapes import sizes_sold
from bidplane.exchange.instantsales import buyer_of, terms_for
from bidplane.exchange.round.inventory import LotDevices, MarketInventory, seat
from bidplane.exchange.snapshot import BidView, HostSnapshot
from bidplane.ledger import budgets, leases
from bidplane.ledger.commit import Commit
from bidplane.ledger.records import Lease, wallet_of


def make_move(commit: Commit, item: LotDevices, move: Moved) -> None:
    """Give a lease its notice and compensation, and reserve devices for its holder's next bid."""
    leases.notice(commit, move.lease, LeaseEvent.MOVED, compensation=move.compensation)
    devices = seat(item, move)
    leases.reserve_devices(commit, move.lease, domain=move.domain, devices=devices)


def resume_moved_leases(
    commit: Commit, snapshot: HostSnapshot, standing: Sequence[BidView], inventory: MarketInventory
) -> list[BidView]:
    """
    Give each moved agent the devices reserved for it, at its old price, through its oldest bid of
    the same size. Return the remaining bids.
    """
    agents = {wallet_of(agent.uid): agent for agent in snapshot.agents}
    pools = {item.pool.name: item.pool for item in inventory.stocks}
    for reservation in [lease for lease in commit.live_leases() if lease.is_reservation]:
        agent, pool = agents.get(reservation.wallet), pools.get(reservation.pool)
        if agent is None or pool is None:
            continue
        fits = [
            bid
            for bid in standing
            if bid.agent == agent.name
            and _fits_reservation(bid, reservation, inventory, pool.chain)
        ]
        wallet = commit.account(reservation.wallet)
        terms, levy_percent = terms_for(pool, wallet, heavy=agent.heavy)
        for bid in sorted(fits, key=lambda bid: (bid.created, bid.uid)):
            hold = leases.hold_for(bid.price, reservation.weight, terms)
            if wallet is None or wallet.available < hold:
                continue
            if (
                bid.budget
                and budgets.remaining(commit, reservation.wallet, bid.work, bid.budget) < hold
            ):
                continue
            leases.lease_reserved_devices(
                commit,
                reservation.id,
                buyer_of(bid, agent),
                terms,
                max_price=bid.price,
                levy_percent=levy_percent,
            )
            standing = [other for other in standing if other.uid != bid.uid]
            break
    return list(standing)


def _fits_reservation(
    bid: BidView, reservation: Lease, inventory: MarketInventory, chain: Chain
) -> bool:
    if (
        (bid.is_joint and not bid.is_loose)
        or share_name(bid.share) != share_name(reservation.share)
        or bid.term_seconds
    ):
        return False
    if (bid.spread and not bid.is_loose) or bid.blocks != 1:
        return False
    stocks = [item for item in inventory.stocks if reservation.devices[0].whole in item.where]
    sizes = sizes_sold(bid, chain, (item.extent for item in stocks))
    lots = {item.lot for item in stocks}
    return reservation.gpus in sizes and lots <= set(inventory.lots_for(bid))
