"""
The best outcome of a small lot, not just a good one.

On a handful of GPUs greedy clearing can be far from the best: one small bid ranked first
may keep a large one out. With at most `BIDS_MOST` contestants for `GPUS_MOST` GPUs the set
with the highest total (price × weight × GPUs) is found by branch and bound.

A winner then pays the least with which it would still be in the best set: what the
others lose by its being there, divided by its weight and GPUs (Vickrey, Clarke and
Groves). Ties have one answer: each contestant's price has, far below a micro-credit, a
digit of its own, the earlier the higher, so that no two sets have the same total.

The search counts its steps, never the time, so it does the same everywhere. If it would
take too many, the whole lot is cleared greedily, before anybody was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bidplane.core.chain import CHAIN, Block
from bidplane.core.market.clearing import Clearing, Contestant
from bidplane.core.market.room import Room

BIDS_MOST = 64
GPUS_MOST = 64
_DIGIT_BITS = 7  # room for any block's GPUs
STEPS_MOST = 20_000

_GPU = len(CHAIN) - 1  # the counter of single GPUs


class TooLarge(Exception):
    """The search would take more steps than it may."""


class ExactClearing(Clearing):
    """A `Clearing` that holds the best set. Made by `clear_exactly`."""

    def __init__(self, start: Room, field: Sequence[Contestant], steps: int) -> None:
        super().__init__(start)
        self._steps = steps
        ties = sorted(field, key=lambda c: (c.tie, c.id), reverse=True)
        self._digit = {c.id: 1 << _DIGIT_BITS * n for n, c in enumerate(ties)}
        self._scale = 1 << _DIGIT_BITS * len(field)
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

    def critical_price(self, winner: Contestant) -> int:
        return self._paid[winner.id]

    def price_to_win(self, outsider: Contestant) -> int | None:
        if not self._start.fits(outsider.block):
            return None
        others = [c for c in self._field if c.id != outsider.id]
        self._steps = STEPS_MOST
        try:
            beside, _ = self._best(self._start.take(outsider.block), others)
        except TooLarge:
            beside = 0  # then it is told what wins for certain, if not the least that does
        return max(outsider.reserve, self._least(outsider, self._value - beside))

    def _critical(self, winner: Contestant) -> int:
        others = [c for c in self._field if c.id != winner.id]
        without, _ = self._best(self._start, others)
        beside = self._value - self._worth(winner)
        return max(winner.reserve, self._least(winner, without - beside))

    def _least(self, one: Contestant, cost: int) -> int:
        """The least price with which `one` is worth more than what it costs the others."""
        gpus = _gpus(one.block)
        cost -= self._digit.get(one.id, 0) * gpus
        return max(0, cost // (one.weight * gpus * self._scale) + 1)

    def _worth(self, one: Contestant) -> int:
        return (one.key * self._scale + self._digit[one.id]) * _gpus(one.block)

    def _best(self, room: Room, field: Sequence[Contestant]) -> tuple[int, tuple[str, ...]]:
        """The highest total of a set that fits `room`, and the set."""
        ranked = sorted(field, key=lambda c: c.rank)
        worth = [self._worth(c) for c in ranked]
        best: tuple[int, tuple[str, ...]] = (0, ())
        # Depth first, taking before leaving: the first leaf is the greedy outcome.
        stack: list[tuple[int, Room, int, tuple[str, ...]]] = [(0, room, 0, ())]
        while stack:
            self._steps -= 1
            if self._steps < 0:
                raise TooLarge
            at, left, value, taken = stack.pop()
            if value > best[0]:
                best = (value, taken)
            if at == len(ranked) or value + _bound(ranked, worth, at, left) <= best[0]:
                continue
            stack.append((at + 1, left, value, taken))
            one = ranked[at]
            if left.fits(one.block):
                stack.append((at + 1, left.take(one.block), value + worth[at], (*taken, one.id)))
        return best


def _bound(ranked: Sequence[Contestant], worth: Sequence[int], at: int, left: Room) -> int:
    """At least what the rest can add: GPUs filled by rank, the last block in part."""
    spare, total = left.spare[_GPU], 0
    for one, value in zip(ranked[at:], worth[at:], strict=True):
        gpus = _gpus(one.block)
        if gpus > spare:
            return total + value // gpus * spare
        spare -= gpus
        total += value
    return total


def _gpus(block: Block) -> int:
    return block.gpus or sum(n for _, n in block.seats)


def clear_exactly(start: Room, contestants: Iterable[Contestant]) -> Clearing | None:
    """The best outcome; None when the lot is too large for it."""
    field = list(contestants)
    small = len(field) <= BIDS_MOST and start.spare[_GPU] <= GPUS_MOST
    if not small or start.leaves or any(c.block.share for c in field):
        return None
    try:
        return ExactClearing(start, field, STEPS_MOST)
    except TooLarge:
        return None
