"""Awards: the bids that won a round, as the ledger takes them."""

from __future__ import annotations

from collections.abc import Mapping

from bidplane.core.market import Won
from bidplane.exchange.instantsales import buyer_of
from bidplane.exchange.round import multilot
from bidplane.exchange.round.inventory import LotDevices, seat
from bidplane.exchange.snapshot import AgentView, BidView
from bidplane.ledger.leases import Award
from bidplane.ledger.records import Account


def award_of(
    won: Won,
    bid: BidView,
    agent: AgentView,
    wallet: Account | None,
    *,
    stocks: Mapping[str, LotDevices],
    bases: Mapping[str, int],
    age: int,
) -> Award:
    """
    Return the award of a bid that won. `stocks` and `bases`: by lot, the devices and base prices of
    the round; `age`: the rank weight that the bid had gained by waiting.
    """
    choice = (bid, *bid.otherwise)[won.option]
    item = stocks[won.lot]
    pools = [stocks[lot].pool for lot in won.by_lot] or [item.pool]
    terms, levy_percent = multilot.terms_in(pools, wallet, heavy=agent.heavy)
    return Award(
        buyer=buyer_of(choice, agent),
        terms=terms,
        pool=item.pool.name,
        domain=won.domain,
        devices=multilot.seat(stocks, won) if won.by_lot else seat(item, won),
        max_price=choice.price,
        price=won.price,
        base=multilot.base(bases, won),
        owed=won.minimum,
        waits_for=won.waits_for,
        weight=won.weight,
        parts=won.parts,
        age=age,
        levy_percent=levy_percent,
        pools=multilot.pools_of(stocks, bases, won),
        funds=multilot.by_pool(stocks, won.funds),
    )
