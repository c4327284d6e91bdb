"""
The credits that agents are granted each hour, and what these let `steady` agents offer.

An Agent's `refill`, if it has one, is granted times its priority. Without one, its share of the
default is: all GPUs for sale at list price for an hour, split over all agents by priority. An
explicit refill changes nobody else's share. So credits are scarce exactly when GPUs are: if every
agent had the default and spent it, the average GPU-hour would cost its list price.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bidplane.api.agent import Strategy, default_carry_over
from bidplane.api.money import GPU_WEIGHT, LARGEST_AMOUNT
from bidplane.api.shape import part_units
from bidplane.core.bidding.steady import sustainable_price
from bidplane.core.devices.chain import UNIT_WEIGHT
from bidplane.exchange.snapshot import AgentView, BidView, HostSnapshot
from bidplane.ledger.records import Account, wallet_of
from bidplane.ledger.wallets import REFILL_MILLISECONDS


class HourlyGrant(NamedTuple):
    """The credits that a wallet is granted each hour, and the balance at which that stops."""

    refill: int
    cap: int
    is_default: bool


def fleet_worth(snapshot: HostSnapshot) -> int:
    """Return the price of an hour of all GPUs for sale, at list price, in micro-credits."""
    prices = {pool.product: pool.list_price for pool in snapshot.pools}
    counts = Counter(device.product for device in snapshot.devices)
    return sum(prices.get(product, 0) * count for product, count in counts.items())


def with_default_refills(snapshot: HostSnapshot) -> HostSnapshot:
    """The same snapshot, with the refill of each agent whose spec names none."""
    if not any(agent.default_refill for agent in snapshot.agents):
        return snapshot
    sharing = [agent for agent in snapshot.agents if not agent.deleting and not agent.problem]
    priorities = sum(agent.priority for agent in sharing)
    worth = fleet_worth(snapshot)

    def granted(agent: AgentView) -> AgentView:
        if not agent.default_refill or not priorities:
            return agent
        refill = min(LARGEST_AMOUNT, worth * agent.priority // priorities)
        cap = default_carry_over(refill) if agent.default_cap else agent.cap
        return msgspec.structs.replace(agent, refill=refill, cap=cap)

    return msgspec.structs.replace(snapshot, agents=tuple(map(granted, snapshot.agents)))


def price_ceilings(
    snapshot: HostSnapshot, account: Callable[[str], Account | None], now: int
) -> dict[str, int]:
    """
    Return, by `steady` agent, the highest price of its bids that name none. `account`: of the
    ledger, by id; `now`: milliseconds.
    """
    steady = {agent.name: agent for agent in snapshot.agents if agent.strategy is Strategy.STEADY}
    if not steady:
        return {}
    weights: dict[str, int] = dict.fromkeys(steady, 0)
    for bid in snapshot.bids:
        if bid.agent in weights and not bid.problem and not bid.price:
            weights[bid.agent] += _weight(bid)
    ceilings = {}
    for name, agent in steady.items():
        wallet = account(wallet_of(agent.uid))
        ceilings[name] = sustainable_price(
            balance=wallet.posted if wallet is not None else agent.refill,
            refill=agent.refill,
            since_refill=(now - wallet.opened_at) % REFILL_MILLISECONDS if wallet else 0,
            weight=weights[name],
        )
    return ceilings


def _weight(bid: BidView) -> int:
    """Return the weight of a bid; a MIG instance counts as a whole GPU."""
    units = part_units(bid.share)
    return (UNIT_WEIGHT * units if units else GPU_WEIGHT) * bid.asked
