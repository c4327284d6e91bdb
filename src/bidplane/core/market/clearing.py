"""
Who wins a lot, and what each winner pays: greedy with skip, critical prices.

Contestants are taken in the order of their key (price × weight). Each is accepted if it
fits beside those accepted before it, else it is rejected and the next is tried.

A winner pays its *critical price*: the least it could have bid and still won. Let e be
a contestant rejected after winner i, and A the accepted set that e met. If A − i + e
fits, then without i, e would have got in; and with e in, i no longer fits, because
A + e did not. So i must stay ahead of the first such e, and of no other: the ones
before it would be rejected without i too. This needs nothing of `Room` but that every
subset of a fitting set fits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bidplane.core.chain import Block
from bidplane.core.market.model import ONE
from bidplane.core.market.room import Room


class Contestant(NamedTuple):
    """A bid or a running lease, as clearing sees it."""

    id: str
    block: Block
    price: int
    weight: int
    tie: int
    reserve: int  # the least it may be charged

    @property
    def key(self) -> int:
        return self.price * self.weight

    @property
    def rank(self) -> tuple[int, int, str]:
        """Smaller goes first. Total: ids are unique, so input order never matters."""
        return (-self.key, self.tie, self.id)

    def price_ahead_of(self, other: Contestant) -> int:
        """The least price with which this one would rank before `other`."""
        price, remainder = divmod(other.key, self.weight)
        wins_ties = (self.tie, self.id) < (other.tie, other.id)
        return price if remainder == 0 and wins_ties else price + 1


class _Seen:
    """Of the rivals up to some, those who would get in if somebody with a certain block left."""

    def __init__(self) -> None:
        self.let_in: list[int] = []
        self.until = 0


class Clearing:
    """The outcome for one lot. Built by `clear`; asks what-if questions of itself."""

    def __init__(self, start: Room) -> None:
        self._start = start
        self.room = start  # what is left after everybody accepted
        self.accepted: list[Contestant] = []  # in rank order
        self.rejected: list[tuple[Contestant, Room]] = []  # in rank order, with what each met
        self.losers: list[Contestant] = []  # the same, by themselves
        # Of the rejected, the first of each block that met the same: if it would not get in without
        # a winner, nor would the others.
        self._rivals: list[tuple[Contestant, Room]] = []
        self._rival_ranks: list[tuple[int, int, str]] = []
        self._let_in: dict[Block, _Seen] = {}
        self.after: list[Room] = []  # what was left after each accepted one, if it was kept
        self._in_the_way: dict[Block, Contestant | None] = {}  # the same for all of one size

    def critical_price(self, winner: Contestant) -> int:
        """The least `winner` could have bid and still won; never below its reserve."""
        rival = self._rival_of(winner)
        if rival is None:
            return winner.reserve
        return max(winner.reserve, winner.price_ahead_of(rival))

    def _rival_of(self, winner: Contestant) -> Contestant | None:
        """The first rejected after it who would have got in without it."""
        first = bisect_left(self._rival_ranks, winner.rank)
        if winner.block.is_pinned:  # what it gives back depends on what its domain has by then
            for rival, met in self._rivals[first:]:
                if met.fits_without(winner.block, rival.block):
                    return rival
            return None
        # Of one that may be anywhere it depends on its block alone: who gets in is kept by block.
        seen = self._let_in.setdefault(winner.block, _Seen())
        while not (seen.let_in and seen.let_in[-1] >= first) and seen.until < len(self._rivals):
            rival, met = self._rivals[seen.until]
            if met.fits_without(winner.block, rival.block):
                seen.let_in.append(seen.until)
            seen.until += 1
        at = bisect_left(seen.let_in, first)
        return self._rivals[seen.let_in[at]][0] if at < len(seen.let_in) else None

    def reject(self, loser: Contestant, *, first: bool = True) -> None:
        """`first`: whether none of its block was rejected since the last was accepted."""
        self.rejected.append((loser, self.room))
        self.losers.append(loser)
        if first:
            self._rivals.append((loser, self.room))
            self._rival_ranks.append(loser.rank)

    def price_to_win(self, outsider: Contestant) -> int | None:
        """The least that `outsider`, which is not accepted, would have won with."""
        if not self._start.fits(outsider.block):
            return None
        winner = self._in_the_way_of(outsider.block)
        if winner is None:
            return outsider.reserve  # it fits beside all: only its reserve kept it out
        return max(outsider.reserve, outsider.price_ahead_of(winner))

    def _in_the_way_of(self, block: Block) -> Contestant | None:
        """The first winner after whom `block` no longer fits: whom one must outrank."""
        if block not in self._in_the_way:
            rooms = self.after or list(self._rooms())
            # What does not fit after one winner does not after the next either.
            first = bisect_left(rooms, True, key=lambda room: not room.fits(block))
            self._in_the_way[block] = self.accepted[first] if first < len(rooms) else None
        return self._in_the_way[block]

    def _rooms(self) -> Iterator[Room]:
        room = self._start
        for winner in self.accepted:
            room = room.take(winner.block)
            yield room

    def posted_price(self, reserve: int, *, last: int) -> int:
        """What one more GPU would have cost a newcomer; while none can be had, the `last`."""
        price = self.entry_price(Block(1), reserve)
        return max(reserve, last) if price is None else price

    def entry_price(self, block: Block, reserve: int) -> int | None:
        """What a newcomer would have had to bid for one more such block; None if in vain."""
        newcomer = Contestant("\U0010ffff", block, 0, ONE, 1 << 63, reserve)
        return self.price_to_win(newcomer)


def clear(start: Room, contestants: Iterable[Contestant]) -> Clearing:
    """`start`: what the contestants compete for, with none of them inside."""
    result = Clearing(start)
    too_large: set[Block] = set()  # for what is left now
    for contestant in sorted(contestants, key=lambda c: c.rank):
        block = contestant.block
        if block not in too_large and result.room.fits(block):
            result.accepted.append(contestant)
            result.room = result.room.take(block)
            result.after.append(result.room)
            too_large.clear()
        else:
            result.reject(contestant, first=block not in too_large)
            too_large.add(block)
    return result
