"""Rounds that were recorded: cleared again, and asked what they meant for one bid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.money import format_credits, rent
from bidplane.core.market import Ask, RoundInput, RoundResult, clear_round
from bidplane.core.market.earlier import read_input, read_result
from bidplane.core.market.model import RULES
from bidplane.core.market.pricing.explain import (
    IDLE,
    explain,
    explain_move,
    explain_sale,
    explain_standing,
    explained_win,
)
from bidplane.errors import UserError
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import Lease, Round, lease_id

_HOUR = 3600


class Replay(NamedTuple):
    number: int
    input: RoundInput
    result: RoundResult  # as it comes out now
    differences: tuple[str, ...]  # parts of the result that are not as recorded
    to_the_byte: bool = True  # false of one that an older version wrote, with fewer fields

    @property
    def is_same(self) -> bool:
        return not self.differences

    @property
    def is_of_earlier_rules(self) -> bool:
        """
        True if another version cleared the round by other rules, so that its result may differ.
        """
        return self.input.rules != RULES


def replay(record: Round) -> Replay:
    """Clear the round's saved input again and compare with the result that was saved."""
    round_input = read_input(record.input)
    result = clear_round(round_input)
    if msgspec.json.encode(result) == record.result:
        return Replay(record.number, round_input, result, ())
    # Read as today's: what an older version did not write down had not happened.
    then = read_result(record.result)
    parts = sorted(RoundResult.__struct_fields__)
    different = tuple(part for part in parts if getattr(then, part) != getattr(result, part))
    return Replay(record.number, round_input, result, different, to_the_byte=False)


def find_round(ledger: Ledger, number: int) -> Round:
    records = ledger.rounds_after(number - 1, limit=1)
    if not records or records[0].number != number:
        last = ledger.last_round
        have = f"rounds 1 to {last} are recorded" if last else "none is recorded yet"
        raise UserError(f"there is no round {number}: {have}")
    return records[0]


class RoundVerdict(NamedTuple):
    round: int  # 0: none; it was sold between two
    sentence: str


def explain_bid(ledger: Ledger, uid: str) -> RoundVerdict | None:
    """
    The reason that the bid won or lost in the last round it took part in; None if no round knows
    it.
    """
    lease = ledger.lease(lease_id(uid))
    if lease is not None and (lease.instant or lease.moved_from):
        hourly = format_credits(rent(lease.win_price, lease.weight, _HOUR))
        message = without_round(lease)
        offered = format_credits(lease.max_price)
        ending = _ending(ledger, uid)
        return RoundVerdict(0, f"{message}, {hourly} an hour; it offered {offered}{ending}")
    for record in _backwards(ledger):
        round_input = read_input(record.input)
        ask = next((ask for ask in round_input.asks if ask.id == uid), None)
        if ask is not None:
            result = read_result(record.result)
            return RoundVerdict(record.number, _sentence(ledger, ask, result))
    return None


def without_round(lease: Lease) -> str:
    """
    The sentence for a lease that no round decided: bought from the float, or reserved for an agent
    that had to move.
    """
    if lease.instant:
        return explain_sale(lease.gpus, lease.win_price, lease.pool, lease.share)
    return explain_move(lease.gpus, lease.win_price, lease.pool)


def _sentence(ledger: Ledger, ask: Ask, result: RoundResult) -> str:
    for won in result.won:
        if won.ask == ask.id:
            hourly = format_credits(rent(won.price, won.weight, _HOUR))
            chosen = ask.choices[won.option]
            message = explained_win(chosen, won)
            offered = f"it offered {format_credits(chosen.price)}, and one less than the price"
            ending = _ending(ledger, ask.id)
            return f"{message}, {hourly} an hour; {offered} would have lost{ending}"
    for lost in result.lost:
        if lost.ask == ask.id:
            if lost.price_to_win is None:
                return explain(lost)
            hourly = (
                f"{format_credits(rent(lost.price_to_win, lost.weight, _HOUR))} an hour at most"
            )
            if lost.reason is BidReason.WALLET_TOO_SMALL:  # its price may have been enough
                price = format_credits(lost.price_to_win)
                return f"{explain(lost)} With credits, {price} would have won, for {hourly}."
            return f"{explain(lost)} That is {hourly}."
    return "it took part, and the round says nothing of it"


def _ending(ledger: Ledger, uid: str) -> str:
    lease = ledger.lease(lease_id(uid))
    if lease is None:
        return ""
    if not lease.reason:
        remarks = explain_standing(idle=bool(lease.idle_since), breached=bool(lease.breached_at))
        return f"; its lease is {remarks}" if remarks else ""
    paid = f", compensated with {format_credits(lease.compensation)}" if lease.compensation else ""
    idle = f", {IDLE}" if lease.idle_since else ""
    return f"; its lease has ended or is ending ({lease.reason}{idle}{paid})"


def _backwards(ledger: Ledger, *, at_once: int = 50) -> Iterator[Round]:
    end = ledger.last_round
    while end > 0:
        start = max(0, end - at_once)
        yield from reversed(ledger.rounds_after(start, limit=end - start))
        end = start
