"""
Lots cleared so that every winner can pay (`purses`); and what a loser's money is short of the price
that would have won.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from bidplane.api.bid import BidReason
from bidplane.core.devices.chain import Block, weight_of
from bidplane.core.market.clearing.lot import Admitted, RefusedBid, contest_of, result_of
from bidplane.core.market.joint.capacity import Joint
from bidplane.core.market.joint.clearing import Joined
from bidplane.core.market.joint.components import Component
from bidplane.core.market.model import Ask, Lost, Lot, RoundInput, RoundResult
from bidplane.core.market.moving.moves import with_moves
from bidplane.core.market.pricing.purses import CLEARINGS_MOST, Due, Purses, Short, charge

# Of losers whose money may not cover the price they are told, so many in a lot of up to so many
# contestants are told exactly how much is missing; the others, the most it could be.
WHAT_IFS_MOST = 16
WHAT_IF_CONTESTANTS = 512


class ClearedLot:
    """One lot, cleared by itself, before room is made in it; prices are found when asked for."""

    def __init__(self, component: Component) -> None:
        self.component = component
        (self._lot,) = component.lots
        self._contest = contest_of(self._lot, component.entries, component.incumbents)

    @property
    def owed(self) -> dict[str, int]:
        """By winner, the compensation that it owes."""
        return {ask: self._contest.owed_by(ask) for ask in self._contest.seats}

    @cached_property
    def result(self) -> RoundResult:
        component = self.component
        return result_of(
            self._lot, component.entries, component.incumbents, component.refused, self._contest
        )

    def with_moves(self, purses: Purses) -> RoundResult:
        entries, incumbents = self.component.entries, self.component.incumbents
        return with_moves(self._lot, entries, incumbents, self.result, purses)


def clear_component(component: Component) -> ClearedLot | Joined:
    return Joined(component) if component.is_joint else ClearedLot(component)


def cleared_and_paid(
    parts: Sequence[Component], round_input: RoundInput
) -> tuple[list[ClearedLot | Joined], Purses]:
    """
    Clear all lots so that every winner can pay. Return the results, and the money left after them.
    """
    cleared = [clear_component(component) for component in parts]
    for attempt in itertools.count():
        purses = Purses(round_input.available, round_input.budgets)
        short = charge(_dues(cleared), purses, all_at_once=attempt >= CLEARINGS_MOST)
        if not short:
            return cleared, purses
        out = {shortfall.due.ask.id: shortfall for shortfall in short}
        cleared = [
            clear_component(_without(part.component, out)) if out.keys() & part.owed else part
            for part in cleared
        ]
    raise AssertionError("unreachable: each clearing leaves somebody out")


def _dues(cleared: Iterable[ClearedLot | Joined]) -> list[Due]:
    """The money that all winners must have, in the order of rank."""
    dues = []
    for part in cleared:
        owed = part.owed
        dues += [
            Due(entry.ask, entry.hold, owed[entry.ask.id])
            for entry in part.component.entries
            if entry.ask.id in owed
        ]
    return sorted(dues, key=lambda due: rank_of(due.ask))


def _without(component: Component, out: Mapping[str, Short]) -> Component:
    """
    The component without the bids that cannot pay; they are refused with the amount that is
    missing.
    """
    refused = [
        RefusedBid(
            entry.ask,
            loss_of(
                entry.ask,
                entry.block,
                entry.lot,
                entry.option,
                reason=short.reason,
                short=short.missing,
                compensation=short.due.compensation,
            ),
            entry.block,
        )
        for entry in component.entries
        if (short := out.get(entry.ask.id)) is not None
    ]
    entries = [entry for entry in component.entries if entry.ask.id not in out]
    return component._replace(entries=entries, refused=[*component.refused, *refused])


def with_money(component: Component, lost: Iterable[Lost], purses: Purses) -> Iterator[Lost]:
    """
    The losses, each with the amount that its wallet or budget is short of at the price to win.
    """
    entries = {entry.ask.id: entry for entry in component.entries}
    for ask, loss, block in component.refused:
        lot = next(lot for lot in component.lots if lot.name == loss.lot)
        entries[ask.id] = Admitted(ask, lot, block, ask.hold.get(lot.name, 0), loss.option)
    exact = WHAT_IFS_MOST if len(entries) + len(component.incumbents) <= WHAT_IF_CONTESTANTS else 0
    by_owner: dict[str, int] = {}
    for part in (part for lease in component.incumbents for part in (lease, *lease.also)):
        by_owner[part.owner] = by_owner.get(part.owner, 0) + part.compensation
    total = sum(by_owner.values())
    for loss in lost:
        if loss.price_to_win is None or loss.short:
            yield loss
            continue
        entry = entries[loss.ask]
        hold = -(-entry.hold * loss.price_to_win // max(1, entry.ask.price))
        owed = total - by_owner.get(entry.ask.owner, 0)
        purse = purses.of(entry.ask)
        if purse < hold + owed and exact:
            exact -= 1
            owed = _owed_at(component, entry, loss.price_to_win)
        if purse >= hold + owed:
            yield loss
        else:
            yield msgspec.structs.replace(loss, short=hold + owed - purse, compensation=owed)


def _owed_at(component: Component, entry: Admitted, price: int) -> int:
    """The compensation that an ask would owe, had it bid `price`."""
    tried = entry._replace(ask=msgspec.structs.replace(entry.ask, price=price))
    rivals = [other for other in component.entries if other.ask.id != entry.ask.id]
    what_if = clear_component(component._replace(entries=[*rivals, tried], refused=[]))
    return what_if.owed.get(entry.ask.id, 0)


def rank_of(ask: Ask) -> tuple[int, int, str]:
    return -ask.offered * ask.weight, ask.tie, ask.id


def loss_of(
    ask: Ask,
    block: Block,
    lot: Lot | None,
    option: int,
    *,
    reason: BidReason | None,
    short: int = 0,
    compensation: int = 0,
) -> Lost:
    return Lost(
        ask=ask.id,
        reason=reason or BidReason.BELOW_RESERVE,
        lot=lot.name if lot else "",
        price=ask.price,
        gpus=block.count if block.share else block.gpus,
        short=short,
        share=block.share,
        option=option,
        weight=weight_of(block, lot.leaves if lot else ()),
        by_lot=block.by_lot if isinstance(block, Joint) else {},
        one_node=ask.one_node,
        compensation=compensation,
    )
