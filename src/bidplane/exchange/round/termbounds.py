"""
Bounds on terms: nobody may protect so much of a pool, or for so long, that others are locked out.

A pool says how long a term may be, how much of a lot may be under terms, and how much of it one
owner's may be. A bid that would go beyond is refused with `TermBound`, and with when it would not:
it stands, and takes part again by itself.

A bid that takes part may win in any of its lots. So it counts in all of them for the bids after it,
and no outcome of the round is beyond a bound. Bids are taken by what they offer; one whose wallet
cannot hold what a win needs counts for nothing. The rest is in the ledger: a restart changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from bidplane.api.bid import BidReason
from bidplane.api.lease import Phase
from bidplane.api.money import GPU_WEIGHT
from bidplane.api.times import rfc3339_ms
from bidplane.core.market import Ask, shapes
from bidplane.exchange.round.inventory import LotDevices
from bidplane.exchange.snapshot import BidView, HostSnapshot
from bidplane.ledger.commit import Commit
from bidplane.ledger.leases import is_protected
from bidplane.ledger.records import Lease, wallet_of

Refusal: TypeAlias = tuple[BidReason, str]


class TermUse(NamedTuple):
    """A part of a lot that is under a term, or may be after the round."""

    owner: str
    weight: int  # of `GPU_WEIGHT`
    until: int  # milliseconds; 0: until the round has decided


class TermBounds:
    """The lots' parts under terms, as a round admits one bid after the other."""

    def __init__(
        self, commit: Commit, snapshot: HostSnapshot, stocks: Sequence[LotDevices]
    ) -> None:
        self._at = commit.at
        self._stocks = {item.lot: item for item in stocks}
        self._owners = {agent.name: agent.owner for agent in snapshot.agents}
        wallets = {agent.name: commit.account(wallet_of(agent.uid)) for agent in snapshot.agents}
        self._available = {name: wallet.available for name, wallet in wallets.items() if wallet}
        self._uses: dict[str, list[TermUse]] = {lot: [] for lot in self._stocks}
        for lease in commit.live_leases():
            if until := _protected_until(lease, commit.at):
                for lot, weight in _weight_by_lot(lease, stocks).items():
                    self._uses[lot].append(TermUse(lease.owner, weight, until))

    def in_order(self, standing: Sequence[BidView]) -> list[BidView]:
        """Return the bids, those with a term by what they offer, the highest first."""
        return sorted(
            standing,
            key=lambda bid: (-bid.price if bid.term_seconds else 0, bid.created, bid.uid),
        )

    def restrict(self, ask: Ask, bid: BidView) -> Ask | Refusal:
        """Return the ask without the lots where it would go beyond a bound, or the refusal."""
        needs: list[Ask] = []
        for need in (ask, *ask.also):
            problems = {lot: self._problem(lot, need, ask, bid) for lot in need.lots}
            lots = tuple(lot for lot, problem in problems.items() if not problem)
            if need.lots and not lots:
                return BidReason.TERM_BOUND, next(iter(problems.values()))
            needs.append(msgspec.structs.replace(need, lots=lots))
        first, *also = needs
        return msgspec.structs.replace(first, also=tuple(also))

    def admit(self, asks: Iterable[Ask], bid: BidView) -> None:
        """Count a bid in every lot where it may win."""
        asks = list(asks)
        holds = [hold for ask in asks for hold in ask.hold.values()]
        if holds and min(holds) > self._available.get(bid.agent, 0):
            return
        weights: dict[str, int] = {}
        for ask in asks:
            in_this: dict[str, int] = {}
            for need in (ask, *ask.also):
                for lot in need.lots:
                    in_this[lot] = in_this.get(lot, 0) + self._weight(lot, need, bid)
            for lot, weight in in_this.items():
                weights[lot] = max(weights.get(lot, 0), weight)
        for lot, weight in weights.items():
            self._uses[lot].append(TermUse(self._owners[bid.agent], weight, 0))

    def _weight(self, lot: str, need: Ask, bid: BidView) -> int:
        return bid.sets * shapes.weight_in(need, self._stocks[lot].extent)

    def _problem(self, lot: str, need: Ask, ask: Ask, bid: BidView) -> str:
        """The reason that a need cannot have a term in a lot, in words; "" if it can."""
        item = self._stocks[lot]
        pool, owner = item.pool, self._owners[bid.agent]
        if bid.term_seconds > pool.longest_term_seconds:
            return (
                f"{pool.name} sells terms of at most {pool.longest_term_seconds} s, and it asks for"
                f" {bid.term_seconds} s: shorten bidplane.dev/term, or leave it out"
            )
        # Its other needs may come to the same lot.
        weight = sum(
            self._weight(lot, other, bid) for other in (ask, *ask.also) if lot in other.lots
        )
        uses = self._uses[lot]
        for limit, percent, counted in (
            ("one owner may have", pool.term_owner_percent, [u for u in uses if u.owner == owner]),
            ("may be", pool.term_percent, uses),
        ):
            bound = GPU_WEIGHT * max(1, item.devices * percent // 100)
            moment = room_at(counted, weight, bound)
            if moment == _NOW:
                continue
            return (
                f"of the {item.devices} GPUs of {lot}, {limit} {bound // GPU_WEIGHT} under terms:"
                f" {_when(moment)}; or bid without a term"
            )
        return ""


_NOW, _NEVER, _NEXT_ROUND = 0, -1, -2


def room_at(uses: Sequence[TermUse], weight: int, bound: int) -> int:
    """
    Return when there is room for `weight` below the bound, in milliseconds; 0 is now, -1 never, -2
    when the round has decided on the bids ahead.
    """
    if weight > bound:
        return _NEVER
    used = sum(use.weight for use in uses)
    if used + weight <= bound:
        return 0
    used -= sum(use.weight for use in uses if not use.until)
    if used + weight <= bound:
        return _NEXT_ROUND
    for use in sorted((use for use in uses if use.until), key=lambda use: use.until):
        used -= use.weight
        if used + weight <= bound:
            return use.until
    return _NEVER


def _when(moment: int) -> str:
    if moment == _NEVER:
        return "it asks for more than that"
    if moment == _NEXT_ROUND:
        return "bids that offer more are ahead of it, and it is tried again in the next round"
    return f"there is room for it from {rfc3339_ms(moment)} on, when terms end"


def _protected_until(lease: Lease, at: int) -> int:
    """The end of a lease's term, if not yet claimed as if it were now; 0 if it has none."""
    if is_protected(lease, at):
        return lease.term_until
    if lease.phase is Phase.PENDING and lease.term_seconds:
        return at + 1000 * lease.term_seconds
    return 0


def _weight_by_lot(lease: Lease, stocks: Sequence[LotDevices]) -> dict[str, int]:
    """The weight of a lease in each lot; all its devices weigh the same."""
    weights: dict[str, int] = {}
    for device in lease.devices:
        for item in stocks:
            if device.whole in item.where:
                each = -(-lease.weight // len(lease.devices))
                weights[item.lot] = weights.get(item.lot, 0) + each
    return weights
