"""
The same clearing as `greedy`, for lots with thousands of bids: columns instead of objects.

`greedy` is the one to read and the one that is right; this one gives the same result to
the bit, which property tests hold it to. What makes it fast:

* Instead of asking each contestant in turn, all are added up at once, and the first whose
  sum is too much is found. At that point everybody behind it who does not fit any more is
  struck off: what is left never grows, so they never will again. A few such steps strike off
  whole sizes at a time.
* Who would have got in without winner i depends only on what i takes. So the rejected are
  searched once for each distinct block, not once for each winner.

It clears bids alone. A lot in which running leases compete is left to `contested`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from bidplane.core.devices.chain import CHAIN, Block, Chain, Leaf
from bidplane.core.market.clearing.capacity import Room, need
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.contested import clear
from bidplane.core.market.clearing.greedy import Clearing, Greedy

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

# Below this many the readable one is as fast, and has nothing to prove.
WORTH_IT = 256
# Strikes before the rest is asked in turn. Two to six are usual; running leases in very
# large domains could take one each.
STRIKES_MOST = 64
_MOST = 2**31 - 1


class Book(msgspec.Struct, frozen=True):
    """The bids of one lot, as columns."""

    price: Ints
    weight: Ints
    tie: NDArray[np.uint64]
    reserve: Ints
    kind: Ints  # index into `needs`
    needs: Ints  # by kind and level
    ids: Sequence[str]
    agent: Ints  # a number for each; -1 for nobody's

    @classmethod
    def of(cls, field: Sequence[Contestant], leaves: tuple[Leaf, ...], chain: Chain) -> Book:
        kinds: dict[Block, int] = {}
        kind = [kinds.setdefault(c.block, len(kinds)) for c in field]
        levels = len(chain) + len(leaves)
        agents: dict[str, int] = {"": -1}
        return cls(
            price=np.array([c.price for c in field], np.int64),
            weight=np.array([c.weight for c in field], np.int64),
            tie=np.array([c.tie for c in field], np.uint64),
            reserve=np.array([c.reserve for c in field], np.int64),
            kind=np.array(kind, np.int64),
            needs=np.array([need(b, leaves, chain) for b in kinds], np.int64).reshape(-1, levels),
            ids=[c.id for c in field],
            agent=np.array([agents.setdefault(c.agent, len(agents)) for c in field], np.int64),
        )

    def ranking(self) -> Ints:
        """Positions in the order of rank; ids decide only between equals, which are few."""
        key = self.price * self.weight
        order = np.lexsort((self.tie, -key))
        ranked_key, ranked_tie = key[order], self.tie[order]
        tied = (ranked_key[1:] == ranked_key[:-1]) & (ranked_tie[1:] == ranked_tie[:-1])
        edges = np.flatnonzero(np.diff(np.concatenate(([False], tied, [False])).astype(np.int8)))
        for first, last in edges.reshape(-1, 2):
            run = order[first : last + 1]
            order[first : last + 1] = sorted(run, key=lambda i: self.ids[i])
        return order


class ColumnOutcome:
    """
    The winners of a clearing, and the counters that price them. Positions are ranks: 0 goes first.
    """

    def __init__(
        self, free: Ints, leaves: tuple[Leaf, ...], book: Book, chain: Chain = CHAIN
    ) -> None:
        self.leaves = leaves
        self.chain = chain
        self.book = book
        self.order = book.ranking()
        self.kind = book.kind[self.order]
        self.key = (book.price * book.weight)[self.order]
        self.agent = book.agent[self.order]
        self.needs = book.needs[self.kind] if len(book.needs) else self._nothing(len(self.order))
        self.spare = holds(free, leaves, chain).sum(axis=0)
        self.wins = self._forward()
        self._look_back()

    # Who wins

    def _forward(self) -> Mask:
        wins = np.zeros(len(self.order), bool)
        spare = self.spare.copy()
        undecided = np.arange(len(self.order))  # ranks
        for _ in range(STRIKES_MOST):
            total = self.needs[undecided].cumsum(axis=0)
            over = np.flatnonzero((total > spare).any(axis=1))
            stop = int(over[0]) if len(over) else len(undecided)
            wins[undecided[:stop]] = True
            if stop == len(undecided):
                return wins
            if stop:
                spare = spare - total[stop - 1]
            undecided = undecided[stop:]
            undecided = undecided[~(self.needs[undecided] > spare).any(axis=1)]
        self._in_turn(wins, undecided, spare)
        return wins

    def _in_turn(self, wins: Mask, ranks: Ints, spare: Ints) -> None:
        for rank in ranks:
            if (self.needs[rank] <= spare).all():
                wins[rank] = True
                spare = spare - self.needs[rank]

    def _nothing(self, count: int) -> Ints:
        return np.zeros((count, len(self.chain) + len(self.leaves)), np.int64)

    # What each winner pays

    def _look_back(self) -> None:
        """Record the counters that each loser met, and how far they fell short of its need."""
        winners, losers = np.flatnonzero(self.wins), np.flatnonzero(~self.wins)
        self.winners, self.losers = winners, losers
        used = self.needs[winners].cumsum(axis=0)
        self.left = self.spare - used  # after each winner
        before = np.searchsorted(winners, losers)
        met = self.spare - np.concatenate((self._nothing(1), used))[before]
        # Above zero: what kept it out. By level, so that a column is gone through at once, and
        # in small numbers: what lacks more than these can say, no winner would give it.
        short = np.clip(self.needs[losers] - met, -_MOST, _MOST)
        self._short = np.ascontiguousarray(short.T.astype(np.int32))
        self._blockers: dict[tuple[int, ...], Ints] = {}

    def _blocked_by(self, returned: Ints) -> Ints:
        """The ranks of the rejected who would get in if `returned` were added to what they met."""
        key = tuple(returned.tolist())
        if key not in self._blockers:
            fit = np.ones(len(self.losers), bool)
            for short, more in zip(self._short, key, strict=True):
                fit &= short <= more
            self._blockers[key] = self.losers[fit]
        return self._blockers[key]

    def _first_of_others(self, blockers: Ints, ranks: Ints) -> Ints:
        """For each rank, the first blocker after it of another agent; nobody: beyond all ranks."""
        at = np.searchsorted(blockers, ranks, side="right")
        ahead = at < len(blockers)
        first = np.full(len(ranks), len(self.order), np.int64)
        first[ahead] = blockers[at[ahead]]
        agents = self.agent[ranks]
        own = ahead & (agents >= 0)
        if own.any():
            own[own] = self.agent[first[own]] == agents[own]
            for i in np.flatnonzero(own):
                first[i] = self._past_own(blockers, int(first[i]), int(agents[i]))
        return first

    def _past_own(self, blockers: Ints, rank: int, agent: int) -> int:
        """The first blocker from `rank` on that is not the agent's."""
        at, step = int(np.searchsorted(blockers, rank)), 8
        while at < len(blockers):
            of_others = np.flatnonzero(self.agent[blockers[at : at + step]] != agent)
            if len(of_others):
                return int(blockers[at + of_others[0]])
            at, step = at + step, 2 * step
        return len(self.order)

    def rivals(self) -> Ints:
        """For each winner, the rank of whoever it must stay ahead of; -1 for nobody."""
        rivals = np.full(len(self.winners), -1, np.int64)
        kinds = self.kind[self.winners]
        for kind in np.unique(kinds):
            mine = np.flatnonzero(kinds == kind)
            blockers = self._blocked_by(self.book.needs[kind])
            first = self._first_of_others(blockers, self.winners[mine])
            rivals[mine] = np.where(first < len(self.order), first, -1)
        return rivals

    def prices(self) -> Ints:
        """The price of each winner, in the order of rank."""
        rivals, book, order = self.rivals(), self.book, self.order
        mine = order[self.winners]
        paid = book.reserve[mine].copy()
        contested = np.flatnonzero(rivals >= 0)
        ours, theirs = mine[contested], order[rivals[contested]]
        price, remainder = np.divmod(self.key[rivals[contested]], book.weight[ours])
        ahead = book.tie[ours] < book.tie[theirs]
        for i in np.flatnonzero(book.tie[ours] == book.tie[theirs]):
            ahead[i] = book.ids[ours[i]] < book.ids[theirs[i]]
        price += ~((remainder == 0) & ahead)
        paid[contested] = np.maximum(paid[contested], price)
        return paid


class FastClearing(Greedy):
    """A `Greedy` whose answers come from a `ColumnOutcome`."""

    def __init__(self, start: Room, field: Sequence[Contestant]) -> None:
        super().__init__(start)
        leaves, chain = start.leaves, start.chain
        free = np.array(list(start.free.values()), np.int64)
        self.outcome = ColumnOutcome(free, leaves, Book.of(field, leaves, chain), chain)
        order = self.outcome.order
        self.accepted = [field[i] for i in order[self.outcome.winners]]
        self.losers = [field[i] for i in order[self.outcome.losers]]

    @cached_property
    def _paid(self) -> dict[str, int]:
        paid = self.outcome.prices().tolist()
        return {c.id: p for c, p in zip(self.accepted, paid, strict=True)}

    def critical_price(self, winner: Contestant) -> int:
        return self._paid[winner.id]

    def _places_before_full(self, block: Block) -> int:
        if block.is_pinned:
            self._record_rooms()
            return super()._places_before_full(block)
        needed = np.array(need(block, self._start.leaves, self._start.chain), np.int64)
        full = np.flatnonzero((self.outcome.left < needed).any(axis=1))
        return int(full[0]) if len(full) else len(self.accepted)

    def _record_rooms(self) -> None:
        room = self._start
        for winner in self.accepted[len(self.after) :]:
            room = room.take(winner.block)
            self.after.append(room)


def clear_fast(start: Room, contestants: Iterable[Contestant]) -> Clearing:
    """Clear a lot as `clear` does; of many bids without running leases, as columns."""
    field = list(contestants)
    pinned = any(c.is_lease or c.block.is_pinned for c in field)
    if len(field) < WORTH_IT or start.cut or pinned:
        return clear(start, field)
    return FastClearing(start, field)


def holds(free: Ints, leaves: tuple[Leaf, ...], chain: Chain = CHAIN) -> Ints:
    """The number of blocks of each size that fit `free` GPUs of one domain, one row per domain."""
    columns = [free // size for size in chain] + [free * leaf.per_gpu for leaf in leaves]
    return np.stack(columns, axis=1)
