"""The ledger as people read it: texts for amounts and times, and only what the reader may see."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.http import exchange as api
from bidplane.api.lease import Phase
from bidplane.api.money import SECONDS_PER_HOUR, format_credits, rent
from bidplane.api.times import rfc3339_ms
from bidplane.core.devices.chain import CHAIN
from bidplane.core.market import (
    Ask,
    Displaced,
    Incumbent,
    Lost,
    LotResult,
    Moved,
    RoundInput,
    RoundResult,
    Won,
)
from bidplane.core.market.earlier import read_input, read_result
from bidplane.core.market.pricing.explain import (
    IDLE,
    explain,
    explain_standing,
    explained_win,
    where,
)
from bidplane.core.market.pricing.reserve import bounds
from bidplane.exchange.instantsales import InstantSales
from bidplane.exchange.round.conditions import lease_name
from bidplane.exchange.round.grants import HourlyGrant
from bidplane.ledger import leases
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import Account, Lease, LotPrice, Round, lease_id
from bidplane.ledger.reports.statement import Statement
from bidplane.ledger.rounds import without_round


def prices(ledger: Ledger, lots: tuple[LotResult, ...] | None, desk: InstantSales) -> api.Prices:
    """The prices of the round just run; before the first, of the last one recorded."""
    priced_lots = ledger.lots() if lots is None else lots
    return api.Prices(pools=[_priced(lot, desk) for lot in priced_lots], round=ledger.last_round)


def _priced(lot: LotResult | LotPrice, desk: InstantSales) -> api.PoolPrice:
    price, pool, offer = _pool_price(lot), desk.pool(lot.lot), desk.floats.get(lot.lot)
    if offer is not None and offer.devices:
        price = msgspec.structs.replace(price, instant=format_credits(offer.asked))
    if pool is not None:
        low, high = bounds(
            lot.base, floor=pool.floor, target_percent=pool.target_percent, seconds=BOUND_SECONDS
        )
        price = msgspec.structs.replace(
            price,
            next_low=format_credits(low),
            next_high=format_credits(high),
            list_price=format_credits(pool.list_price),
        )
    return price


BOUND_SECONDS = 60
HISTORY_ROUNDS = 500  # that one answer looks at


def history(ledger: Ledger, pool: str) -> api.PriceHistory:
    first = max(0, ledger.last_round - HISTORY_ROUNDS)
    points = []
    for record in ledger.rounds_after(first, limit=HISTORY_ROUNDS):
        result = read_result(record.result)
        points += [
            api.PriceAt(
                at=rfc3339_ms(record.at),
                round=record.number,
                price=format_credits(lot.posted),
                base=format_credits(lot.base),
                devices=lot.devices,
                leased=lot.leased,
            )
            for lot in result.lots
            if lot.lot == pool
        ]
    return api.PriceHistory(pool=pool, prices=points)


def order_view(lease: Lease) -> api.Order:
    hold = leases.hold_for(lease.max_price, lease.weight, leases.terms_of(lease))
    return api.Order(
        lease=lease_name(lease.id),
        bid=lease.bid_name,
        pool=lease.pool,
        price=format_credits(lease.win_price),
        max_price=format_credits(lease.max_price),
        node=lease.node,
        device=lease.devices[0].name,
        share=lease.share,
        held=format_credits(hold),
    )


def round_view(record: Round, *, agent: str | None, since: int = 0) -> api.RoundSummary:
    """
    The part of a round that `agent` may see; None sees everything. `since`: when the agent began;
    rounds before had another of its name.
    """
    market_input = read_input(record.input)
    result = read_result(record.result)
    outcomes = _outcomes(market_input, result)
    return api.RoundSummary(
        number=record.number,
        at=rfc3339_ms(record.at),
        pools=[_pool_price(lot) for lot in result.lots],
        outcomes=[
            outcome
            for outcome in outcomes
            if agent is None or (outcome.agent == agent and record.at >= since)
        ],
        bids=len(market_input.asks),
    )


def round_record(record: Round) -> api.RoundRecord:
    return api.RoundRecord(
        number=record.number,
        at=rfc3339_ms(record.at),
        input=msgspec.Raw(record.input),
        result=msgspec.Raw(record.result),
    )


# How far back a bid's round is looked for. A round is recorded when it changed something,
# so a standing bid is in one of the last; the limit keeps one question from being a day's.
ROUNDS_BACK = 2000


def explanation(
    ledger: Ledger, uid: str, *, agent: str | None, since: int = 0
) -> api.Explanation | None:
    """
    The reason that the bid won or lost, as `agent` (None may see all), which began at `since`, may
    see it; None if no round knows the bid.
    """
    lease = ledger.lease_of_bid(uid)
    if agent is not None and lease is not None and lease.won_at < since:
        return None  # of another agent of its name
    if lease is not None and (lease.instant or lease.moved_from):
        answer = _with_standing(_without_round(lease), lease)
        return answer if agent in (None, lease.agent) else None
    needle = msgspec.json.encode(uid)
    for record in _rounds_back(ledger):
        if lease is not None and record.at != lease.won_at:
            continue  # a bid wins once: only that round explains it
        if needle not in record.input:
            continue
        market_input = read_input(record.input)
        ask = next((ask for ask in market_input.asks if ask.id == uid), None)
        if ask is not None:
            if agent is not None and (ask.agent != agent or record.at < since):
                return None
            result = read_result(record.result)
            return _with_standing(_explained(record, ask, result), lease)
    return None


def _with_standing(answer: api.Explanation, lease: Lease | None) -> api.Explanation:
    remarks = standing(lease) if lease is not None else ""
    if not remarks:
        return answer
    return msgspec.structs.replace(answer, message=f"{answer.message}; its lease is {remarks}")


def _without_round(lease: Lease) -> api.Explanation:
    """
    The explanation of a lease that no round decided: bought from the float, or reserved for an
    agent that had to move.
    """
    return api.Explanation(
        bid=lease.bid_uid,
        agent=lease.agent,
        event="Won",
        reason=BidReason.WON.value,
        message=without_round(lease),
        round=0,
        at=rfc3339_ms(lease.won_at),
        gpus_asked=lease.gpus,
        offer=format_credits(lease.max_price),
        pool=lease.pool,
        gpus_sold=lease.gpus,
        price=format_credits(lease.win_price),
        cost_per_hour=format_credits(rent(lease.win_price, lease.weight, SECONDS_PER_HOUR)),
        share=lease.share,
        lease=lease_name(lease.id),
    )


def _rounds_back(ledger: Ledger, chunk: int = 50) -> Iterator[Round]:
    last = ledger.last_round
    for top in range(last, max(0, last - ROUNDS_BACK), -chunk):
        first = max(0, top - chunk)
        yield from reversed(ledger.rounds_after(first, limit=top - first))


def _explained(record: Round, ask: Ask, result: RoundResult) -> api.Explanation:
    won = next((win for win in result.won if win.ask == ask.id), None)
    loss = next((loss for loss in result.lost if loss.ask == ask.id), None)
    ask = _option(ask, won or loss)
    answer = api.Explanation(
        bid=ask.id,
        agent=ask.agent,
        event="Won",
        reason=BidReason.WON.value,
        message="",
        round=record.number,
        at=rfc3339_ms(record.at),
        gpus_asked=ask.asked,
        offer=format_credits(ask.price),
    )
    if won is not None:
        return msgspec.structs.replace(
            answer,
            message=explained_win(ask, won),
            pool=where(won),
            gpus_sold=won.gpus,
            price=format_credits(won.price),
            cost_per_hour=format_credits(rent(won.price, won.weight, SECONDS_PER_HOUR)),
            share=won.share,
            lease=lease_name(lease_id(ask.id)),
        )
    if loss is None:
        raise ValueError(f"round {record.number} says nothing of bid {ask.id}")
    to_win = loss.price_to_win
    return msgspec.structs.replace(
        answer,
        event="Lost",
        reason=loss.reason.value,
        message=explain(loss),
        pool=where(loss),
        gpus_sold=loss.gpus,
        price_to_win="" if to_win is None else format_credits(to_win),
        cost_per_hour=""
        if to_win is None
        else format_credits(rent(to_win, loss.weight, SECONDS_PER_HOUR)),
        share=loss.share,
    )


def _option(ask: Ask, outcome: Won | Lost | None) -> Ask:
    """The alternative of a bid that took part."""
    return ask.choices[outcome.option] if outcome else ask


def _outcomes(market_input: RoundInput, result: RoundResult) -> list[api.BidOutcome]:
    asks = {ask.id: ask for ask in market_input.asks}
    running = {incumbent.id: incumbent for incumbent in market_input.incumbents}
    won = [
        api.BidOutcome(
            agent=asks[win.ask].agent,
            event="Won",
            message=explained_win(_option(asks[win.ask], win), win),
            pool=where(win),
            bid=win.ask,
            gpus=win.gpus,
            share=win.share,
            offer=format_credits(_option(asks[win.ask], win).price),
            price=format_credits(win.price),
        )
        for win in result.won
    ]
    lost = [
        api.BidOutcome(
            agent=asks[loss.ask].agent,
            event="Lost",
            message=explain(loss),
            pool=where(loss),
            bid=loss.ask,
            gpus=loss.gpus,
            share=loss.share,
            offer=format_credits(loss.price),
            price_to_win=("" if loss.price_to_win is None else format_credits(loss.price_to_win)),
        )
        for loss in result.lost
    ]
    displaced = [
        api.BidOutcome(
            agent=running[displacement.lease].agent,
            event="Displaced",
            message=_how_displaced(running[displacement.lease], displacement),
            pool=" + ".join(part.lot for part in parts_of(running[displacement.lease])),
            lease=lease_name(displacement.lease),
            gpus=sum(part.gpus for part in parts_of(running[displacement.lease])),
            share=running[displacement.lease].share,
            offer=format_credits(running[displacement.lease].price),
            compensation=format_credits(displacement.compensation),
        )
        for displacement in result.displaced
    ]
    moved = [
        api.BidOutcome(
            agent=running[move.lease].agent,
            event="Moved",
            message=(
                f"moves from {_seat(running[move.lease])} to {_seat(move)}, to make room;"
                f" compensated with {format_credits(move.compensation)}"
            ),
            share=move.share,
            pool=running[move.lease].lot,
            lease=lease_name(move.lease),
            gpus=running[move.lease].gpus,
            offer=format_credits(running[move.lease].price),
            compensation=format_credits(move.compensation),
        )
        for move in result.moved
    ]
    return won + displaced + moved + lost


def parts_of(lease: Incumbent) -> tuple[Incumbent, ...]:
    """The lease's part in each lot."""
    return (lease, *lease.also)


def _how_displaced(lease: Incumbent, displaced: Displaced) -> str:
    idle = f" ({IDLE})" if lease.idle else ""
    return f"outbid{idle}; compensated with {format_credits(displaced.compensation)}"


def _seat(lease: Incumbent | Moved) -> str:
    """The place of a lease, for people: the GPU of a share, else its domain."""
    return lease.devices[0].rpartition("/")[2] if lease.share else lease.domain


def _pool_price(lot: LotResult | LotPrice) -> api.PoolPrice:
    return api.PoolPrice(
        pool=lot.lot,
        price=format_credits(lot.posted),
        base=format_credits(lot.base),
        devices=lot.devices,
        leased=lot.leased,
        classes={}
        if isinstance(lot, LotPrice)
        else {name: format_credits(price) for name, price in lot.classes.items()},
        stay="" if isinstance(lot, LotPrice) or not lot.stay else format_credits(lot.stay),
        chain=CHAIN if isinstance(lot, LotPrice) else lot.chain,
        withheld="" if isinstance(lot, LotPrice) else lot.withheld,
    )


def wallet_view(account: Account, accruing: int, grant: HourlyGrant | None = None) -> api.Wallet:
    return api.Wallet(
        agent=account.name,
        balance=format_credits(account.posted),
        held=format_credits(account.held),
        available=format_credits(account.available),
        accruing=format_credits(accruing),
        state="Open" if account.is_open else "Closed",
        refill=format_credits(grant.refill) if grant is not None else "0",
        default_refill=grant is not None and grant.is_default,
        carry_over=format_credits(grant.cap) if grant is not None else "0",
    )


def statement_view(statement: Statement) -> api.StatementView:
    return api.StatementView(
        agent=statement.agent,
        lines=[
            api.StatementLine(
                at=rfc3339_ms(line.at),
                kind=line.kind.value,
                text=line.text,
                amount=format_credits(line.amount),
                balance=format_credits(line.balance),
                lease=lease_name(line.lease) if line.lease else "",
            )
            for line in statement.lines
        ],
        balance=format_credits(statement.balance),
        held=format_credits(statement.held),
        accruing=format_credits(statement.accruing),
    )


def lease_view(lease: Lease, now: int) -> api.LeaseView:
    return api.LeaseView(
        name=lease_name(lease.id),
        agent=lease.agent,
        pool=" + ".join(lease.pool_names),
        node=lease.node,
        devices=list(lease.devices),
        phase=lease.phase.value,
        ready=lease.ready,
        price=format_credits(lease.price),
        max_price=format_credits(lease.max_price),
        charged=format_credits(lease.charged),
        accruing=format_credits(lease.meter(now).due),
        won_at=rfc3339_ms(lease.won_at),
        active_at=rfc3339_ms(lease.active_at),
        reclaim_at=rfc3339_ms(lease.reclaim_at),
        idle_since=rfc3339_ms(lease.idle_since),
        message=standing(lease),
    )


def standing(lease: Lease) -> str:
    over = lease.phase is Phase.RELEASED
    return explain_standing(
        idle=bool(lease.idle_since) and not over, breached=bool(lease.breached_at) and not over
    )
