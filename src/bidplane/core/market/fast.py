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
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from bidplane.core.chain import CHAIN, Block, Chain, Leaf
from bidplane.core.market.clearing import Clearing, Contestant, clear
from bidplane.core.market.room import Room, need

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
        where = np.array(pinned, np.int64).reshape(-1, 2)
        levels = len(chain) + len(leaves)
        return cls(
            price=np.array([c.price for c in field], np.int64),
            weight=np.array([c.weight for c in field], np.int64),
            tie=np.array([c.tie for c in field], np.uint64),
            reserve=np.array([c.reserve for c in field], np.int64),
            kind=np.array(kind, np.int64),
            needs=np.array([need(b, leaves, chain) for b in kinds], np.int64).reshape(-1, levels),
            domain=where[:, 0],
            size=where[:, 1],
            ids=[c.id for c in field],
        )

    def ranking(self) -> Ints:
        """Positions in the order of rank; ids decide only between equals, which are few."""
        key = self.price * self.weight
        order = np.lexsort((self.tie, -key))
        ranked_key, ranked_tie = key[order], self.tie[order]
        same = (ranked_key[1:] == ranked_key[:-1]) & (ranked_tie[1:] == ranked_tie[:-1])
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
        for first, last in edges.reshape(-1, 2):
            run = order[first : last + 1]
            order[first : last + 1] = sorted(run, key=lambda i: self.ids[i])
        return order


class Stays(NamedTuple):
    """Leases that are kept, ordered by domain and then by rank."""

    ranks: Ints
    place: Ints  # domain × width + rank, to be searched
    taken: Ints  # GPUs of all before each


class Outcome:
    """Who wins, and what is needed to price it. Positions are ranks: 0 goes first."""

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
        self.spare = self._holds(free).sum(axis=0)
        self.wins = self._forward()
        self._look_back()

    # Who wins

    def _forward(self) -> Mask:
        wins = np.zeros(len(self.order), bool)
        spare, free = self.spare.copy(), self.free.copy()
        rest = np.arange(len(self.order))  # ranks that are undecided
        for _ in range(STRIKES_MOST):
            needs = self._needs(rest, free)
            total = needs.cumsum(axis=0)
            over = np.flatnonzero((total > spare).any(axis=1))
            stop = int(over[0]) if len(over) else len(rest)
            wins[rest[:stop]] = True
            if stop == len(rest):
                return wins
            if stop:
                spare = spare - total[stop - 1]
                self._occupy(free, rest[:stop])
            rest = rest[stop:]
            # What each would need if it came next: a pinned one's depends on its domain now.
            rest = rest[~(self._needs(rest, free, each=True) > spare).any(axis=1)]
        self._in_turn(wins, rest, spare, free)
        return wins

    def _in_turn(self, wins: Mask, rest: Ints, spare: Ints, free: Ints) -> None:
        for rank in rest:
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
        What each of `ranks` takes from the counters when all before it are in; with
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
        """What each rejected one met: the counters, and what it needed of them."""
        winners, losers = np.flatnonzero(self.wins), np.flatnonzero(~self.wins)
        self.winners, self.losers = winners, losers
        self._width = len(self.order) + 1
        self._stays = self._kept()
        taken = self._needs(winners, self.free).cumsum(axis=0)
        self.left = self.spare - taken  # after each winner
        before = np.searchsorted(winners, losers)
        zero = np.concatenate((self._nothing(1), taken))
        met = self.spare - zero[before]
        table = self.book.needs
        wanted = table[self.kind[losers]] if len(table) else self._nothing(len(losers))
        pinned = np.flatnonzero(self.domain[losers] >= 0)
        if len(pinned):
            free = self._free_at(self.domain[losers[pinned]], losers[pinned])
            size = self.size[losers[pinned]]
            wanted[pinned] = self._holds(free) - self._holds(free - size)
        # Above zero: what kept it out. By level, so that a column is gone through at once, and
        # in small numbers: what lacks more than these can say, no winner would give it.
        self._short = np.ascontiguousarray(np.clip(wanted - met, -_MOST, _MOST).T.astype(np.int32))
        self._blockers: dict[tuple[int, ...], Ints] = {}
        self._neighbours: dict[int, list[int]] = {}  # by domain: the leases that lose
        for rank in losers[pinned].tolist():
            self._neighbours.setdefault(int(self.domain[rank]), []).append(rank)

    def _free_at(self, domain: Any, rank: Any) -> Any:
        """What is free in a domain for whoever comes at `rank`."""
        stays = self._stays
        first = np.searchsorted(stays.place, domain * self._width)
        before = np.searchsorted(stays.place, domain * self._width + rank)
        return self.free[domain] - (stays.taken[before] - stays.taken[first])

    def _blocked_by(self, given: Ints) -> Ints:
        """The ranks of the rejected who would get in if `given` were added to what they met."""
        key = tuple(given.tolist())
        if key not in self._blockers:
            fit = np.ones(len(self.losers), bool)
            for short, more in zip(self._short, key, strict=True):
                fit &= short <= more
            self._blockers[key] = self.losers[fit]
        return self._blockers[key]

    def rivals(self) -> Ints:
        """For each winner, the rank of whoever it must stay ahead of; -1 for nobody."""
        found = np.full(len(self.winners), -1, np.int64)
        kinds = self.kind[self.winners]
        for kind in np.unique(kinds[kinds >= 0]):
            mine = np.flatnonzero(kinds == kind)
            blockers = self._blocked_by(self.book.needs[kind])
            at = np.searchsorted(blockers, self.winners[mine])
            there = at < len(blockers)
            found[mine[there]] = blockers[at[there]]
        found[kinds < 0] = self._rivals_of_leases()
        return found

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
        free = self._free_at(domain, ranks + 1)
        rival = np.full(len(ranks), len(self.order), np.int64)
        kinds = free * self._width + size
        for kind in np.unique(kinds):
            mine = np.flatnonzero(kinds == kind)
            now = int(free[mine[0]])
            blockers = self._blocked_by(self._given_back(now, int(size[mine[0]])))
            ahead = np.append(blockers, len(self.order))
            rival[mine] = ahead[np.searchsorted(blockers, ranks[mine], side="right")]
        crowded = np.isin(domain, np.array(list(self._neighbours), np.int64))
        for i in np.flatnonzero((rival > until) | crowded):
            rival[i] = self._rival_of_lease(int(ranks[i]))
        rival[rival == len(self.order)] = -1
        return rival[np.argsort(ranks)]

    def _given_back(self, free: int, size: int) -> Ints:
        with_it, without = self._holds(np.array([free + size, free]))
        given: Ints = with_it - without
        return given

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
            free = int(self._free_at(domain, low + 1))
            blockers = self._blocked_by(self._given_back(free, size))
            at = int(np.searchsorted(blockers, low, side="right"))
            while at < len(blockers) and blockers[at] < high:
                if self.domain[blockers[at]] != domain:  # its neighbours: below
                    best = int(blockers[at])
                    break
                at += 1
            if best < nobody:
                break
        for loser in self._neighbours.get(domain, ()):
            if rank < loser < best and self._lets_in(rank, loser):
                return loser
        return best

    def _lets_in(self, rank: int, loser: int) -> bool:
        """Whether a lease of the same domain would get in if the one at `rank` left."""
        free = int(self._free_at(int(self.domain[rank]), loser))
        at = int(np.searchsorted(self.winners, loser))
        met = self.left[at - 1]
        instead_free = free + int(self.size[rank]) - int(self.size[loser])
        states = np.array([free, max(0, instead_free)])
        now, instead = self._holds(states)
        return bool(instead_free >= 0 and (met - now + instead >= 0).all())

    def prices(self) -> Ints:
        """What each winner pays, in the order of rank."""
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


class FastClearing(Clearing):
    """A `Clearing` whose answers come from an `Outcome`."""

    def __init__(
        self, start: Room, field: Sequence[Contestant], domains: dict[str, int], free: Ints
    ) -> None:
        super().__init__(start)
        leaves, chain = start.leaves, start.chain
        self.outcome = Outcome(free, leaves, Book.of(field, domains, leaves, chain), chain)
        order = self.outcome.order
        self.accepted = [field[i] for i in order[self.outcome.winners]]
        self.losers = [field[i] for i in order[self.outcome.losers]]
        paid = self.outcome.prices().tolist()
        self._paid: dict[str, int] = {c.id: p for c, p in zip(self.accepted, paid, strict=True)}

    def critical_price(self, winner: Contestant) -> int:
        return self._paid[winner.id]

    def _in_the_way_of(self, block: Block) -> Contestant | None:
        if block.is_pinned:
            return super()._in_the_way_of(block)
        if block not in self._in_the_way:
            wanted = np.array(need(block, self._start.leaves, self._start.chain), np.int64)
            full = np.flatnonzero((self.outcome.left < wanted).any(axis=1))
            self._in_the_way[block] = self.accepted[full[0]] if len(full) else None
        return self._in_the_way[block]


def clear_fast(start: Room, contestants: Iterable[Contestant]) -> Clearing:
    """As `clear`; hands over to it what is too little, or too odd, for columns."""
    field = list(contestants)
    if len(field) < WORTH_IT or start.cut or any(c.block.seats for c in field):
        return clear(start, field)
    names = list(start.free)
    domains = {name: i for i, name in enumerate(names)}
    return FastClearing(start, field, domains, np.array(list(start.free.values()), np.int64))


def holds(free: Any, leaves: tuple[Leaf, ...], chain: Chain = CHAIN) -> Ints:
    """How many blocks of each size so much in one domain could hold, by row."""
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
