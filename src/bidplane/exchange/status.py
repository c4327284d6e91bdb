"""The status of bids and pools, from the ledger and the round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from bidplane.api.bid import BidPhase, BidReason, BidStatus
from bidplane.api.lease import Phase
from bidplane.api.money import format_credits
from bidplane.api.pool import PoolStatus
from bidplane.core.market import Lost, LotResult, RoundResult
from bidplane.core.market.pricing.explain import explain, explain_win
from bidplane.exchange.round.conditions import lease_name
from bidplane.exchange.round.inventory import LotDevices
from bidplane.exchange.snapshot import BidView, HostSnapshot
from bidplane.ledger import budgets
from bidplane.ledger.commit import Commit
from bidplane.ledger.records import Lease, wallet_of
from bidplane.ledger.rounds import without_round

# A bid that can never win as it is. The others stand, and may win when something changes.
_REFUSALS = (
    BidReason.LARGER_THAN_EVERY_DOMAIN,
    BidReason.NO_MACHINE_HAS_ALL,
    BidReason.NO_SUCH_DEVICE,
    BidReason.NO_SUCH_CLASS,
    BidReason.NO_SUCH_POOL,
    BidReason.SHAPE_NOT_SOLD,
    BidReason.SELECTOR_TOO_FINE,
    BidReason.SELECTS_NOTHING,
    BidReason.CONSTRAINT_NOT_SOLD,
    BidReason.BAD_PRICE,
    BidReason.BAD_BID,
    BidReason.DEADLINE_PASSED,
)
# TooManyBids stands, and is taken in when an older one is gone; one over its budget, when what
# runs on it has ended for less, or when it bids less; DeviceTaken, when one is given back;
# TermBound, when terms end.
_PUT_OFF = (
    BidReason.TOO_MANY_BIDS,
    BidReason.TOO_MANY_SELECTORS,
    BidReason.SELECTOR_PENDING,
    BidReason.BUDGET_SPENT,
    BidReason.DEVICE_TAKEN,
    BidReason.TERM_BOUND,
)


def bid_statuses(
    commit: Commit,
    snapshot: HostSnapshot,
    result: RoundResult,
    refused: Mapping[str, tuple[BidReason, str]],
    number: int,
) -> dict[str, BidStatus]:
    lost = {loss.ask: loss for loss in result.lost}
    available = _available(commit, snapshot) if lost else {}
    statuses: dict[str, BidStatus] = {}
    for bid in snapshot.bids:
        lease = commit.lease_of_bid(bid.uid)
        if lease is not None:
            statuses[bid.uid] = won_status(bid, lease)
        elif bid.problem:
            phase = BidPhase.WAITING if bid.bad in _PUT_OFF else BidPhase.REFUSED
            statuses[bid.uid] = BidStatus(phase=phase, reason=bid.bad, message=bid.problem)
        elif bid.deadline and 1000 * bid.deadline <= commit.at:
            statuses[bid.uid] = BidStatus(
                phase=BidPhase.REFUSED,
                reason=BidReason.DEADLINE_PASSED,
                message="its deadline has passed and it had not won; bid anew, earlier or higher",
            )
        elif bid.uid in refused:
            reason, message = refused[bid.uid]
            phase = BidPhase.WAITING if reason in _PUT_OFF else BidPhase.REFUSED
            statuses[bid.uid] = BidStatus(phase=phase, reason=reason, message=message)
        elif bid.uid in lost:
            free = available.get(bid.agent, "")
            statuses[bid.uid] = _lost_status(lost[bid.uid], number, free)
    wallets_of = {agent.name: wallet_of(agent.uid) for agent in snapshot.agents}
    for bid in snapshot.bids:
        if bid.budget and bid.uid in statuses and bid.agent in wallets_of:
            spending = budgets.spent(commit, wallets_of[bid.agent], bid.work)
            statuses[bid.uid] = msgspec.structs.replace(
                statuses[bid.uid],
                spent=format_credits(spending.charged),
                # In steps of a minute, so that a lease that runs is not news each second.
                ran_seconds=spending.seconds - spending.seconds % 60,
            )
    return statuses


def _available(commit: Commit, snapshot: HostSnapshot) -> dict[str, str]:
    """
    By agent, the available credits, rounded down to three digits: a wallet that pays by the second
    is not news each second.
    """
    amounts = {}
    for agent in snapshot.agents:
        wallet = commit.account(wallet_of(agent.uid))
        if wallet is not None:
            unit = 10 ** max(0, len(str(max(0, wallet.available))) - 3)
            amounts[agent.name] = format_credits(max(0, wallet.available) // unit * unit)
    return amounts


def won_status(bid: BidView, lease: Lease) -> BidStatus:
    over = lease.phase is Phase.RELEASED
    return BidStatus(
        phase=BidPhase.ENDED if over else BidPhase.WON,
        reason=BidReason.RELEASED if over else BidReason.WON,
        message=(
            f"the lease it won is over ({lease.reason}); a bid wins once, so bid anew"
            if over
            else _how_won(bid, lease)
        ),
        pool=" + ".join(lease.pool_names),
        lease=lease_name(lease.id),
        gpus_sold=lease.gpus,
        share_sold=lease.share,
    )


def _how_won(bid: BidView, lease: Lease) -> str:
    if lease.instant or lease.moved_from:
        return without_round(lease)
    return explain_win(
        _asked(bid, lease),
        lease.gpus,
        lease.win_price,
        lease.pool,
        lease.share,
        by_lot=lease.gpus_by_pool,
    )


def _asked(bid: BidView, lease: Lease) -> int:
    """The number of GPUs that the alternative that won had asked for."""
    requested = (
        choice.asked if choice.count else 0
        for choice in (bid, *bid.otherwise)
        if choice.price == lease.max_price and choice.asked <= lease.gpus
    )
    return max(requested, default=0) or lease.gpus


def _lost_status(loss: Lost, number: int, wallet: str) -> BidStatus:
    return BidStatus(
        phase=BidPhase.REFUSED if loss.reason in _REFUSALS else BidPhase.WAITING,
        reason=loss.reason,
        message=explain(loss),
        pool=" + ".join(loss.by_lot) or loss.lot,
        price_to_win="" if loss.price_to_win is None else format_credits(loss.price_to_win),
        wallet=wallet,
        round=number,
        gpus_sold=loss.gpus,
        share_sold=loss.share,
        withheld=loss.withheld,
    )


def pool_statuses(stocks: Iterable[LotDevices], result: RoundResult) -> dict[str, PoolStatus]:
    """The status of each pool; of several lots the cheapest gives the price of a GPU."""
    by_pool: dict[str, list[tuple[LotDevices, LotResult]]] = {}
    lots = {lot.lot: lot for lot in result.lots}
    for item in stocks:
        by_pool.setdefault(item.pool.name, []).append((item, lots[item.lot]))
    return {
        name: PoolStatus(
            devices=sum(lot.devices for _, lot in pool_lots),
            leased=sum(lot.leased for _, lot in pool_lots),
            price=format_credits(min(lot.posted for _, lot in pool_lots)),
            lots=len(pool_lots),
            message="; ".join(
                dict.fromkeys(
                    remark
                    for item, _ in pool_lots
                    for remark in (item.problem, item.withheld)
                    if remark
                )
            ),
        )
        for name, pool_lots in by_pool.items()
    }
