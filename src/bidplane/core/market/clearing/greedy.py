"""
The winners of a lot and their prices where nobody can be displaced: greedy with skip, critical
prices. Where running leases compete too: `displacing`.

Bids are taken in the order of their key (price × weight). Each is accepted if it fits beside
those accepted before it, else it is rejected and the next is tried.

A winner pays its *critical price*: the least it could have bid and still won. Let e be
a bid rejected after winner i, and A the accepted set that e met. If A − i + e
fits, then without i, e would have got in; and with e in, i no longer fits, because
A + e did not. So i must stay ahead of the first such e, and of no other: the ones
before it would be rejected without i too. This needs nothing of `Room` but that every
subset of a fitting set fits.

A rejected bid of i's own agent is not one that i must stay ahead of. A rejected bid changes
nothing for others, so this is i's critical price in the round without that bid.
"""

from __future__ import annotations

import heapq
import itertools
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.capacity import Counters, Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.supply import Place, fits_with, gains_of, need_of, seats_of
from bidplane.core.market.model import ONE


class Clearing:
    """The outcome for one lot, or lots cleared together; asks what-if questions of itself."""

    # By displaced lease, the bids that take its seat and how much each of them does.
    takers: dict[str, dict[str, int]]

    def __init__(self, start: Room, leases: Iterable[Contestant] = ()) -> None:
        """`start`: the room that the contestants compete for, with none of them placed."""
        self._start = start
        self.room = start  # what is left after everybody accepted
        self.accepted: list[Contestant] = []
        self.losers: list[Contestant] = []  # in rank order
        self.takers = {}
        self.own_leases: dict[str, list[Contestant]] = {}  # by agent, in rank order
        for lease in sorted((c for c in leases if c.is_lease and c.agent), key=lambda c: c.rank):
            self.own_leases.setdefault(lease.agent, []).append(lease)

    def critical_price(self, winner: Contestant) -> int:
        """The least `winner` could have bid and still won; never below its reserve."""
        raise NotImplementedError

    def price_to_win(self, outsider: Contestant) -> int | None:
        """The least that `outsider`, which is not accepted, would have won with."""
        raise NotImplementedError

    def own_in_the_way(self, outsider: Contestant) -> tuple[str, ...]:
        """Leases of its own agent that keep a bid out which no price lets win."""
        if not self._start.fits(outsider.block) or self.price_to_win(outsider) is not None:
            return ()
        room, blocking = self._start.take(outsider.block), []
        for lease in self.own_leases.get(outsider.agent, ()):
            if outsider.spares(lease) and room.fits(lease.block):
                room = room.take(lease.block)
            elif outsider.spares(lease):
                blocking.append(lease.id)
        return tuple(blocking)

    def posted_price(self, reserve: int, *, last: int) -> int:
        """The price of one more GPU for a newcomer; `last` while none can be had."""
        price = self.entry_price(Block(1), reserve)
        return max(reserve, last) if price is None else price

    def entry_price(self, block: Block, reserve: int) -> int | None:
        """
        The price at which a newcomer would have won one more such block; None if no price wins.
        """
        newcomer = Contestant("\U0010ffff", block, 0, ONE, 1 << 63, reserve)
        return self.price_to_win(newcomer)


class _Seen:
    """The rivals, up to some position, who would fit if a winner with a certain block left."""

    def __init__(self) -> None:
        self.let_in: list[int] = []
        self.fits: list[bool] = []  # of each rival that was looked at


# Rivals with one block that met the same: the first, and the first of another agent. Of a third
# nobody is asked, since a winner is of one agent.
_AGENTS_PER_BLOCK = 2


class Greedy(Clearing):
    """The outcome for bids alone. Built by `clear_bids`."""

    def __init__(self, start: Room) -> None:
        super().__init__(start)
        self.after: list[Room] = []  # what was left after each of the accepted
        # The rejected with what each met; of those with one block that met the same, only two.
        self._rivals: list[tuple[Contestant, Room]] = []
        self._first_alike: list[int] = []  # of each rival, the first with its block and room
        # For what is left now: the first rival with the block, and the agents recorded.
        self._too_large: dict[Block, tuple[int, set[str]]] = {}
        self._let_in: dict[Block, _Seen] = {}
        # The same for what a pinned winner gives back, as counters. By place, the positions of
        # pinned rivals there, and how many rivals there were when a winner took units of it.
        self._let_in_by: dict[Counters, _Seen] = {}
        self._rivals_at: dict[Place, list[int]] = {}
        self._taken_at: dict[Place, list[int]] = {}
        # By id, of each accepted one: how many rivals there were before.
        self._rivals_before: dict[str, int] = {}
        self._last_chance: dict[Block, int | None] = {}

    # Who wins

    def consider(self, bid: Contestant) -> None:
        """Accept the next in rank order, or reject it."""
        if bid.block in self._too_large or not self.room.fits(bid.block):
            self._reject(bid)
        else:
            self._accept(bid)

    def _accept(self, bid: Contestant) -> None:
        self._rivals_before[bid.id] = len(self._rivals)
        self.accepted.append(bid)
        if bid.block.is_pinned:
            for place, _ in seats_of(bid.block):
                self._taken_at.setdefault(place, []).append(len(self._rivals))
        self.room = self.room.take(bid.block)
        self.after.append(self.room)
        self._too_large.clear()

    def _reject(self, loser: Contestant) -> None:
        self.losers.append(loser)
        first_and_agents = self._too_large.get(loser.block)
        if first_and_agents is None:
            first_and_agents = self._too_large[loser.block] = len(self._rivals), set()
        first, agents = first_and_agents
        if loser.agent not in agents and len(agents) < _AGENTS_PER_BLOCK:
            agents.add(loser.agent)
            self._first_alike.append(first)
            if loser.block.is_pinned:
                for place, _ in seats_of(loser.block):
                    self._rivals_at.setdefault(place, []).append(len(self._rivals))
            self._rivals.append((loser, self.room))

    # What winners pay

    def critical_price(self, winner: Contestant) -> int:
        rival = self._rival_of(winner)
        if rival is None:
            return winner.reserve
        return max(winner.reserve, winner.price_ahead_of(rival))

    def _rival_of(self, winner: Contestant) -> Contestant | None:
        """The first rejected after it, of another agent, who would have got in without it."""
        first = self._rivals_before[winner.id]
        if winner.block.is_pinned:
            return self._rival_of_pinned(winner, first)
        # Of one that may be anywhere it depends on its block alone: who gets in is kept by block.
        for at in self._let_in_without(winner.block, first):
            rival = self._rivals[at][0]
            if not rival.is_of_agent(winner):
                return rival
        return None

    def _rival_of_pinned(self, winner: Contestant, first: int) -> Contestant | None:
        """
        The same for a winner in certain places. What it gives back depends on what these have
        free, which changes when another winner takes some of it. Between two such changes the
        counters that it gives back are the same, and who gets in is kept by these; only of rivals
        in the same places it is asked one by one.
        """
        block, rivals = winner.block, self._rivals
        places = [place for place, _ in seats_of(block)]
        beside = {at for place in places for at in self._rivals_at.get(place, ())}
        changes = {at for place in places for at in self._taken_at.get(place, ()) if at > first}
        for low, high in itertools.pairwise(sorted({first, *changes, len(rivals)})):
            met = rivals[low][1]
            returned = tuple(map(operator.add, need_of(met, block), gains_of(met, block)))
            alone = self._let_in_by_counters(returned, low, high)
            here = (at for at in sorted(beside) if low <= at < high)
            for at in heapq.merge(alone, here):
                rival, met = rivals[at]
                if rival.is_of_agent(winner):
                    continue
                if at not in beside or met.fits_without(block, rival.block):
                    return rival
        return None

    def _let_in_without(self, block: Block, first: int) -> Iterator[int]:
        """Positions of rivals, from `first` on, who would get in if somebody with `block` left."""

        def fits(position: int) -> bool:
            rival, met = self._rivals[position]
            return met.fits_without(block, rival.block)

        return self._who_fits(self._let_in.setdefault(block, _Seen()), fits, first)

    def _let_in_by_counters(self, returned: Counters, low: int, high: int) -> Iterator[int]:
        """
        Positions of rivals, from `low` up to `high`, who would get in with so much more of each
        block size, if nobody in the same place left.
        """

        def fits(position: int) -> bool:
            rival, met = self._rivals[position]
            return fits_with(met, returned, rival.block)

        examined = self._let_in_by.setdefault(returned, _Seen())
        return itertools.takewhile(lambda at: at < high, self._who_fits(examined, fits, low))

    def _who_fits(self, examined: _Seen, fits: Callable[[int], bool], first: int) -> Iterator[int]:
        """The positions from `first` on that fit; each is asked once, and its answer kept."""
        at = bisect_left(examined.let_in, first)
        while True:
            while at == len(examined.let_in) and len(examined.fits) < len(self._rivals):
                position = len(examined.fits)
                representative = self._first_alike[position]
                let_in = (
                    examined.fits[representative] if representative < position else fits(position)
                )
                examined.fits.append(let_in)
                if let_in:
                    examined.let_in.append(position)
                    at += position < first
            if at == len(examined.let_in):
                return
            yield examined.let_in[at]
            at += 1

    # What a loser would have had to bid

    def price_to_win(self, outsider: Contestant) -> int | None:
        block = outsider.block
        if block not in self._last_chance:
            fits = self._start.fits(block)
            self._last_chance[block] = self._places_before_full(block) if fits else None
        place = self._last_chance[block]
        if place is None:
            return None
        if place == len(self.accepted):
            return outsider.reserve  # it fits beside all: only its reserve kept it out
        return max(outsider.reserve, outsider.price_ahead_of(self.accepted[place]))

    def _places_before_full(self, block: Block) -> int:
        """The number of winners that are accepted before `block` no longer fits."""
        # What does not fit after one winner does not after the next either.
        return bisect_left(self.after, True, key=lambda room: not room.fits(block))


def clear_bids(start: Room, bids: Iterable[Contestant]) -> Greedy:
    """Clear a lot in which nobody has a lease that could be displaced."""
    result = Greedy(start)
    for bid in sorted(bids, key=lambda c: c.rank):
        result.consider(bid)
    return result
