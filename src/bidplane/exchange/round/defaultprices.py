"""
Prices of bids that name none: the agent's `maxPrice` or, if it has none, its priority times the
list price of the pool.

A bid that names no pool offers in each pool what that pool's list price makes it: it becomes one
alternative per pool, and is routed as any either-or bid is. A bid for GPUs of several pools at once
offers the average over its GPUs.

An agent whose strategy is `steady` offers no more than its ceiling, which `round.grants` computes
from its wallet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bidplane.api.money import LARGEST_PRICE
from bidplane.core.market.pricing.reserve import default_price
from bidplane.exchange.snapshot import AgentView, BidView, HostSnapshot, PoolView


def with_default_prices(
    snapshot: HostSnapshot, ceilings: Mapping[str, int] | None = None
) -> HostSnapshot:
    """
    The same snapshot, with a price for each readable bid that names none. `ceilings`: by agent, the
    most that such a bid offers.
    """
    if all(choice.price for bid in snapshot.bids for choice in (bid, *bid.otherwise)):
        return snapshot
    agents = {agent.name: agent for agent in snapshot.agents}
    bids = tuple(
        with_default_price(
            bid, agents[bid.agent], snapshot.pools, (ceilings or {}).get(bid.agent, LARGEST_PRICE)
        )
        if bid.agent in agents
        else bid
        for bid in snapshot.bids
    )
    return msgspec.structs.replace(snapshot, bids=bids)


def with_default_price(
    bid: BidView, agent: AgentView, pools: Sequence[PoolView], ceiling: int = LARGEST_PRICE
) -> BidView:
    """The bid, each alternative with a price: at most `ceiling` for those that named none."""
    if bid.problem or all(choice.price for choice in (bid, *bid.otherwise)):
        return bid
    offers = {pool.name: default_price(agent.priority, pool.list_price) for pool in pools}
    first, *alternatives = (
        priced
        for choice in (bid, *bid.otherwise)
        for priced in _priced(msgspec.structs.replace(choice, otherwise=()), agent, offers, ceiling)
    )
    return msgspec.structs.replace(first, otherwise=tuple(alternatives))


def _priced(
    choice: BidView, agent: AgentView, offers: Mapping[str, int], ceiling: int
) -> Iterator[BidView]:
    if choice.price:
        yield choice
        return
    if agent.max_price:
        yield _at(choice, min(ceiling, agent.max_price))
        return
    # Of a pool that nobody has, the round says so whatever is offered.
    highest = max(offers.values(), default=1)
    if choice.is_joint:
        worth = sum(
            offers.get(need.pool, highest) * need.gpus * need.blocks for need in choice.needs
        )
        gpus = sum(need.gpus * need.blocks for need in choice.needs)
        yield _at(choice, min(ceiling, -(-worth // gpus)))
    elif choice.pool or len(set(offers.values())) < 2:
        yield _at(choice, min(ceiling, offers.get(choice.pool, highest)))
    else:
        for pool in sorted(offers):
            yield _at(msgspec.structs.replace(choice, pool=pool), min(ceiling, offers[pool]))


def _at(choice: BidView, price: int) -> BidView:
    return msgspec.structs.replace(choice, price=price)
