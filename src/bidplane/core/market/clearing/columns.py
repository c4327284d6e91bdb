"""
The same clearing as `clearing`, for lots with thousands of bids: columns instead of objects.

`clearing` is the one to read and the one that is right; this one gives the same result to
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

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

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
    """The contestants of one lot, as columns."""

    price: Ints
    weight: Ints
    tie: NDArray[np.uint64]
    reserve: Ints
    kind: Ints  # index into `needs`; of a pinned one, -1
    needs: Ints  # by kind and level
    domain: Ints  # of a pinned one; of a movable one, -1
    size: Ints  # GPUs of a pinned one
    ids: Sequence[str]
    agent: Ints  # a number for each; -1 for nobody's

    @classmethod
    def of(
        cls,
        field: Sequence[Contestant],
        domains: dict[str, int],
        leaves: tuple[Leaf, ...],
        chain: Chain,
    ) -> Book:
        kinds: dict[Block, int] = {}
        kind = [-1 if c.block.domain else kinds.setdefault(c.block, len(kinds)) for c in field]
        blocks = [c.block for c in field]
        pinned = [(domains[b.domain], b.size) if b.domain else (-1, 0) for b in blocks]
        domain_and_size = np.array(pinned, np.int64).reshape(-1, 2)
        levels = len(chain) + len(leaves)
        agents: dict[str, int] = {"": -1}
        return cls(
            price=np.array([c.price for c in field], np.int64),
            weight=np.array([c.weight for c in field], np.int64),
            tie=np.array([c.tie for c in field], np.uint64),
            reserve=np.array([c.reserve for c in field], np.int64),
            kind=np.array(kind, np.int64),
            needs=np.array([need(b, leaves, chain) for b in kinds], np.int64).reshape(-1, levels),
            domain=domain_and_size[:, 0],
            size=domain_and_size[:, 1],
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


class Stays(NamedTuple):
    """The leases that stay, ordered by domain and then by rank."""

    ranks: Ints
    place: Ints  # domain × width + rank, to be searched
    taken: Ints  # GPUs of all before each


class ColumnOutcome:
    """
    The winners of a clearing, and the counters that price them. Positions are ranks: 0 goes first.
    """

    def __init__(
        self, free: Ints, leaves: tuple[Leaf, ...], book: Book, chain: Chain = CHAIN
    ) -> None:
        self.leaves = leaves
        self.chain = chain
        self.free = free
        self.book = book
        self.order = book.ranking()
        self.kind = book.kind[self.order]
        self.domain = book.domain[self.order]
        self.size = book.size[self.order]
        self.key = (book.price * book.weight)[self.order]
        self.agent = book.agent[self.order]
        self.spare = self._holds(free).sum(axis=0)
        self.wins = self._forward()
        self._look_back()

    # Who wins

    def _forward(self) -> Mask:
        wins = np.zeros(len(self.order), bool)
        spare, free = self.spare.copy(), self.free.copy()
        undecided = np.arange(len(self.order))  # ranks
        for _ in range(STRIKES_MOST):
            needs = self._needs(undecided, free)
            total = needs.cumsum(axis=0)
            over = np.flatnonzero((total > spare).any(axis=1))
            stop = int(over[0]) if len(over) else len(undecided)
            wins[undecided[:stop]] = True
            if stop == len(undecided):
                return wins
            if stop:
                spare = spare - total[stop - 1]
                self._occupy(free, undecided[:stop])
            undecided = undecided[stop:]
            # What each would need if it came next: a pinned one's depends on its domain now.
            undecided = undecided[~(self._needs(undecided, free, each=True) > spare).any(axis=1)]
        self._in_turn(wins, undecided, spare, free)
        return wins

    def _in_turn(self, wins: Mask, ranks: Ints, spare: Ints, free: Ints) -> None:
        for rank in ranks:
            needs = self._needs(np.array([rank]), free)[0]
            if (needs <= spare).all():
                wins[rank] = True
                spare -= needs
                self._occupy(free, np.array([rank]))

    def _occupy(self, free: Ints, ranks: Ints) -> None:
        pinned = ranks[self.domain[ranks] >= 0]
        np.subtract.at(free, self.domain[pinned], self.size[pinned])

    def _needs(self, ranks: Ints, free: Ints, *, each: bool = False) -> Ints:
        """
        The units that each of `ranks` takes from the counters when all before it are placed; with
        `each`, when it alone is.
        """
        table = self.book.needs
        needs = table[self.kind[ranks]] if len(table) else self._nothing(len(ranks))
        pinned = np.flatnonzero(self.domain[ranks] >= 0)
        if len(pinned):
            domain, size = self.domain[ranks[pinned]], self.size[ranks[pinned]]
            before = free[domain] if each else free[domain] - _taken_before(domain, size)
            needs[pinned] = self._holds(before) - self._holds(before - size)
        return needs

    def _nothing(self, count: int) -> Ints:
        return np.zeros((count, len(self.chain) + len(self.leaves)), np.int64)

    def _holds(self, free: Any) -> Ints:
        return holds(free, self.leaves, self.chain)

    # What each winner pays

    def _look_back(self) -> None:
        """Record the counters that each loser met, and how far they fell short of its need."""
        winners, losers = np.flatnonzero(self.wins), np.flatnonzero(~self.wins)
        self.winners, self.losers = winners, losers
        self._width = len(self.order) + 1
        self._stays = self._kept()
        used = self._needs(winners, self.free).cumsum(axis=0)
        self.left = self.spare - used  # after each winner
        before = np.searchsorted(winners, losers)
        zero = np.concatenate((self._nothing(1), used))
        met = self.spare - zero[before]
        table = self.book.needs
        needs = table[self.kind[losers]] if len(table) else self._nothing(len(losers))
        pinned = np.flatnonzero(self.domain[losers] >= 0)
        if len(pinned):
            free = self.free_at(self.domain[losers[pinned]], losers[pinned])
            size = self.size[losers[pinned]]
            needs[pinned] = self._holds(free) - self._holds(free - size)
        # Above zero: what kept it out. By level, so that a column is gone through at once, and
        # in small numbers: what lacks more than these can say, no winner would give it.
        self._short = np.ascontiguousarray(np.clip(needs - met, -_MOST, _MOST).T.astype(np.int32))
        self._blockers: dict[tuple[int, ...], Ints] = {}
        self._neighbours: dict[int, list[int]] = {}  # by domain: the leases that lose
        for rank in losers[pinned].tolist():
            self._neighbours.setdefault(int(self.domain[rank]), []).append(rank)

    def free_at(self, domain: Any, rank: Any) -> Any:
        """The free GPUs of a domain, as a contestant at `rank` meets them."""
        stays = self._stays
        first = np.searchsorted(stays.place, domain * self._width)
        before = np.searchsorted(stays.place, domain * self._width + rank)
        return self.free[domain] - (stays.taken[before] - stays.taken[first])

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
        for kind in np.unique(kinds[kinds >= 0]):
            mine = np.flatnonzero(kinds == kind)
            blockers = self._blocked_by(self.book.needs[kind])
            first = self._first_of_others(blockers, self.winners[mine])
            rivals[mine] = np.where(first < len(self.order), first, -1)
        rivals[kinds < 0] = self._rivals_of_leases()
        return rivals

    def _kept(self) -> Stays:
        """The leases that stay, by domain and then by rank."""
        ranks = self.winners[self.domain[self.winners] >= 0]
        place = self.domain[ranks] * self._width + ranks
        order = np.argsort(place)
        ranks = ranks[order]
        return Stays(ranks, place[order], np.concatenate(([0], self.size[ranks].cumsum())))

    def _rivals_of_leases(self) -> Ints:
        """As `rivals`, for the leases among the winners, in the order of rank."""
        ranks = self._stays.ranks
        domain, size = self.domain[ranks], self.size[ranks]
        last = np.append(domain[1:] != domain[:-1], True)[: len(ranks)]
        until = np.where(last, len(self.order), np.append(ranks[1:], 0)[: len(ranks)])
        # What a lease gives back depends on what its domain has free, and so does who gets
        # in. It stays the same until the next lease of that domain: mostly far enough.
        free = self.free_at(domain, ranks + 1)
        rival = np.full(len(ranks), len(self.order), np.int64)
        kinds = free * self._width + size
        for kind in np.unique(kinds):
            mine = np.flatnonzero(kinds == kind)
            now = int(free[mine[0]])
            blockers = self._blocked_by(self._given_back(now, int(size[mine[0]])))
            rival[mine] = self._first_of_others(blockers, ranks[mine])
        crowded = np.isin(domain, np.array(list(self._neighbours), np.int64))
        for i in np.flatnonzero((rival > until) | crowded):
            rival[i] = self._rival_of_lease(int(ranks[i]))
        rival[rival == len(self.order)] = -1
        return rival[np.argsort(ranks)]

    def _given_back(self, free: int, size: int) -> Ints:
        with_it, without = self._holds(np.array([free + size, free]))
        returned: Ints = with_it - without
        return returned

    def _rival_of_lease(self, rank: int) -> int:
        """For one lease, through all that changes in its domain after it."""
        nobody = len(self.order)
        domain, size = int(self.domain[rank]), int(self.size[rank])
        first, last = np.searchsorted(
            self._stays.place, [domain * self._width + rank + 1, (domain + 1) * self._width]
        )
        steps = [rank, *self._stays.ranks[first:last].tolist(), nobody]
        best = nobody
        for low, high in itertools.pairwise(steps):
            free = int(self.free_at(domain, low + 1))
            blockers = self._blocked_by(self._given_back(free, size))
            at = int(np.searchsorted(blockers, low, side="right"))
            while at < len(blockers) and blockers[at] < high:
                # Its neighbours: below.
                if self.domain[blockers[at]] != domain and self._lifts(int(blockers[at]), rank):
                    best = int(blockers[at])
                    break
                at += 1
            if best < nobody:
                break
        for loser in self._neighbours.get(domain, ()):
            if rank < loser < best and self._lifts(loser, rank) and self._lets_in(rank, loser):
                return loser
        return best

    def _lifts(self, loser: int, rank: int) -> bool:
        """Return True if the loser belongs to another agent, so that it may raise the price."""
        return bool(self.agent[rank] < 0 or self.agent[loser] != self.agent[rank])

    def _lets_in(self, rank: int, loser: int) -> bool:
        """
        Return True if a losing lease of the same domain would fit once the winner at `rank` left.
        """
        free = int(self.free_at(int(self.domain[rank]), loser))
        at = int(np.searchsorted(self.winners, loser))
        met = self.left[at - 1]
        instead_free = free + int(self.size[rank]) - int(self.size[loser])
        states = np.array([free, max(0, instead_free)])
        now, instead = self._holds(states)
        return bool(instead_free >= 0 and (met - now + instead >= 0).all())

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
        self.outcome = ColumnOutcome(free, leaves, Book.of(field, {}, leaves, chain), chain)
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


def holds(free: Any, leaves: tuple[Leaf, ...], chain: Chain = CHAIN) -> Ints:
    """The number of blocks of each size that fit `free` GPUs of one domain, one row per domain."""
    columns = [free // size for size in chain] + [free * leaf.per_gpu for leaf in leaves]
    return np.stack(columns, axis=1)


def _taken_before(domain: Ints, size: Ints) -> Ints:
    """For each lease, what those before it take of its domain."""
    order = np.argsort(domain, kind="stable")
    sizes, domains = size[order], domain[order]
    total = sizes.cumsum() - sizes
    first = np.searchsorted(domains, domains)
    before = np.empty_like(total)
    before[order] = total - total[first]
    return before
