"""
The best outcome of a small lot, not just a good one.

On a handful of GPUs greedy clearing can be far from the best: one small bid ranked first
may keep a large one out. With at most `BIDS_MOST` contestants for `GPUS_MOST` GPUs the set
with the highest total (price × rank weight × GPUs) is found by branch and bound. A part of a
GPU counts as the part of its price that it pays.

A winner then pays the least with which it would still be in the best set: what the
others lose by its being there, divided by its rank weight and GPUs (Vickrey, Clarke and
Groves). Ties have one answer: each contestant's price has, far below a micro-credit, a
digit of its own, the earlier the higher, so that no two sets have the same total.

A bid is in a set only with those leases of its own agent that it spares (`clearing`), and the
rejected bids of a winner's own agent are no part of what the others lose by it.

The search counts its steps, never the time, so it does the same everywhere. If it would
take too many, the whole lot is cleared greedily, before anybody was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.market.clearing import liability
from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.greedy import Clearing
from bidplane.core.market.clearing.supply import seated, size_of
from bidplane.core.market.joint.capacity import Rooms

BIDS_MOST = 64
GPUS_MOST = 64
STEPS_MOST = 20_000


class SearchTooLong(Exception):
    """The search would take more steps than it may."""


class ExactClearing(Clearing):
    """A `Clearing` that holds the best set. Made by `clear_exactly`."""

    def __init__(self, start: Room, field: Sequence[Contestant], steps: int) -> None:
        super().__init__(start, field)
        self._steps = steps
        ties = sorted(field, key=lambda c: (c.tie, c.id), reverse=True)
        most = max((size_of(c.block, start) for c in field), default=1)
        bits = most.bit_length()  # so that no contestant's digit carries into another's
        self._digit = {c.id: 1 << bits * n for n, c in enumerate(ties)}
        self._scale = 1 << bits * len(field)
        self._field = field
        best = self._best(start, field)
        self._value = best[0]
        chosen = set(best[1])
        for contestant in sorted(field, key=lambda c: c.rank):
            if contestant.id in chosen:
                self.accepted.append(contestant)
                self.room = self.room.take(contestant.block)
            else:
                self.losers.append(contestant)
        self._paid = {c.id: self._critical(c) for c in self.accepted}
        leases = [c.block for c in field if c.is_lease]
        payers = liability.payers(seated(start, leases), self) if leases else {}
        self.takers = {lease: {bid: 1} for lease, bid in payers.items()}

    def critical_price(self, winner: Contestant) -> int:
        return self._paid[winner.id]

    def price_to_win(self, outsider: Contestant) -> int | None:
        if not self._start.fits(outsider.block):
            return None
        own = [c for c in self.own_leases.get(outsider.agent, ()) if outsider.spares(c)]
        room = self._start.take(outsider.block)
        for lease in own:
            if not room.fits(lease.block):
                return None
            room = room.take(lease.block)
        ids = {outsider.id, *(lease.id for lease in own)}
        rivals = [c for c in self._field if c.id not in ids]
        self._steps = STEPS_MOST
        try:
            beside, _ = self._best(room, rivals)
        except SearchTooLong:
            beside = 0  # then it is told what wins for certain, if not the least that does
        beside += sum(map(self._worth, own))
        return max(outsider.reserve, self._least(outsider, self._value - beside))

    def _critical(self, winner: Contestant) -> int:
        lost = {c.id for c in self.losers if c.is_of_agent(winner) and not c.is_lease}
        rivals = [c for c in self._field if c.id != winner.id and c.id not in lost]
        without, _ = self._best(self._start, rivals)
        beside = self._value - self._worth(winner)
        # A lease may be there only for a bid of its agent, which is not without it: it pays its
        # bid at most.
        least = min(winner.price, self._least(winner, without - beside))
        return max(winner.reserve, least)

    def _least(self, contestant: Contestant, cost: int) -> int:
        """The least price with which `contestant` is worth more than what it costs the others."""
        parts = size_of(contestant.block, self._start)
        cost -= self._digit.get(contestant.id, 0) * parts
        return max(0, cost // (contestant.weight * parts * self._scale) + 1)

    def _worth(self, contestant: Contestant) -> int:
        return (contestant.key * self._scale + self._digit[contestant.id]) * size_of(
            contestant.block, self._start
        )

    def _best(self, room: Room, field: Sequence[Contestant]) -> tuple[int, tuple[str, ...]]:
        """The highest total of a set that fits `room`, and the set."""
        ranked = sorted(field, key=lambda c: c.rank)
        worth = [self._worth(c) for c in ranked]
        parts = [size_of(c.block, self._start) for c in ranked]
        own = _own_leases(ranked)
        best: tuple[int, tuple[str, ...]] = (0, ())
        # Depth first, taking before leaving: the first leaf is the greedy outcome.
        stack: list[tuple[int, Room, int, tuple[str, ...]]] = [(0, room, 0, ())]
        while stack:
            self._steps -= 1
            if self._steps < 0:
                raise SearchTooLong
            at, free_room, value, chosen = stack.pop()
            if value > best[0]:
                best = (value, chosen)
            if at == len(ranked) or value + _bound(parts, worth, at, free_room) <= best[0]:
                continue
            stack.append((at + 1, free_room, value, chosen))
            contestant = ranked[at]
            if contestant.id in chosen or not free_room.fits(contestant.block):
                continue
            beside = free_room.take(contestant.block)
            with_own, value = (*chosen, contestant.id), value + worth[at]
            for n in own.get(at, ()):
                if ranked[n].id in chosen:
                    continue
                if n < at or not beside.fits(ranked[n].block):
                    break  # it was left out before, or cannot stay
                beside = beside.take(ranked[n].block)
                with_own, value = (*with_own, ranked[n].id), value + worth[n]
            else:
                stack.append((at + 1, beside, value, with_own))
        return best


def _own_leases(ranked: Sequence[Contestant]) -> dict[int, list[int]]:
    """By position of a bid, the positions of the leases that it spares."""
    leases = [n for n, c in enumerate(ranked) if c.is_lease and c.agent]
    spared = {
        at: [n for n in leases if bid.spares(ranked[n])]
        for at, bid in enumerate(ranked)
        if not bid.is_lease
    }
    return {at: positions for at, positions in spared.items() if positions}


def _bound(parts: Sequence[int], worth: Sequence[int], at: int, room: Room) -> int:
    """At least what the rest can add: what is free filled by rank, the last block in part."""
    spare, total = _capacity(room), 0
    for mine, value in zip(parts[at:], worth[at:], strict=True):
        if mine > spare:
            return total + value // mine * spare
        spare -= mine
        total += value
    return total


def _capacity(room: Room) -> int:
    """At least as much weight as any set that fits has."""
    if isinstance(room, Rooms):
        return sum(map(_capacity, room.lots.values()))
    gpus = room.spare[len(room.chain) - 1]  # the chain ends in single GPUs
    if not room.leaves:
        return GPU_WEIGHT * gpus
    # The smallest leaf is counted through all of it, whole GPUs included. A cut GPU may have less
    # than one leaf beside, which only what is pinned there can have. Profiles are counted each by
    # itself; a GPU that is sold whole may be more than all of its profiles.
    counted = list(zip(room.leaves, room.spare[len(room.chain) :], strict=True))
    if room.leaves[0].in_chain:
        leaf, spare = counted[-1]
        return leaf.weight * spare + (leaf.weight - 1) * len(room.cut)
    cut = sum(leaf.weight * leaf.per_gpu for leaf in room.leaves)
    return sum(leaf.weight * n for leaf, n in counted) + max(0, GPU_WEIGHT - cut) * gpus


def clear_exactly(start: Room, contestants: Iterable[Contestant]) -> Clearing | None:
    """The best outcome; None when the lot is too large for it."""
    field = list(contestants)
    if len(field) > BIDS_MOST or _capacity(start) > GPU_WEIGHT * GPUS_MOST:
        return None
    try:
        return ExactClearing(start, field, STEPS_MOST)
    except SearchTooLong:
        return None
