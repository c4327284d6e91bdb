"""
The winners of a lot in which running leases compete too: displacement by worth.

A contestant's *key* is price × weight, its *worth* is key × GPUs. To outrank is to have the higher
key. Leases start in their seats, and bids are taken in rank order. A bid

* takes what is free; else
* takes, alone, the least worth set of leases that lets it in (`displacement`), if it outranks each
  of them and is worth more than all; else
* takes one lease's seat together with waiting bids ranked above it: of those that outrank it the
  largest first, if the lowest key among them × all their GPUs is more than the lease's worth.

After each displacement the bids that wait are tried again, the highest first. Wins stand. A bid
that has not won changes nothing. What a displaced lease leaves over is sold in that round only to
bids that outrank it, or several small bids would displace a large lease and then pay the floor
(`displacement.Closure`). So the worth of what runs never falls, and offering more never loses.

A bid takes no lease of its own agent, unless it is the more urgent.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.capacity import Counters, Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.displacement import (
    FINE,
    Closure,
    Search,
    State,
    Worths,
    closed_after,
)
from bidplane.core.market.clearing.supply import (
    Place,
    counters,
    free_at,
    gains_of,
    minus,
    need_of,
    plus,
    seats_of,
)


class Moment(NamedTuple):
    """A state, whose turn it was then, and the bids that waited."""

    lead: Contestant | None  # None: the end
    state: State
    waiting: Sequence[Contestant]
    waiting_count: int  # the list may have grown since
    is_alone: bool = True  # whoever's turn it was needed nobody to join it

    @property
    def waited(self) -> Sequence[Contestant]:
        return self.waiting[: self.waiting_count]


class Try(NamedTuple):
    """A bid that could not have what is free; what a lease had to withstand."""

    bid: Contestant
    state: State
    waiting: Sequence[Contestant]
    waiting_count: int  # of these, it could have joined so many; 0: it was alone
    limit: int  # a lease is displaced if with it, the set is worth less: in fine units
    share: Fraction | None = None  # of a group that took another lease: its worth per size

    @property
    def waited(self) -> Sequence[Contestant]:
        return self.waiting[: self.waiting_count]


class SharedSeat(NamedTuple):
    """Several bids that take one lease's seat together."""

    per_size: Fraction  # the lease's worth
    lease: Contestant
    bids: list[Contestant]


class Course:
    """The course of a clearing: bids arrive in rank order, from some moment on."""

    def __init__(self, sizes: Worths, state: State, holders: frozenset[str]) -> None:
        """`holders`: the agents that have leases, and whose bids are not like others'."""
        self._sizes = sizes
        self.state = state
        self._holders = holders
        self.waiting: list[Contestant] = []
        self.accepted: list[Contestant] = []
        self.moments: list[Moment] = []
        self.tries: list[Try] = []
        self.takers: dict[str, dict[str, int]] = {}
        self.arrivals: dict[str, int] = {}  # by bid: the moment of its arrival
        self._hopeless: set[tuple[Block, str, bool]] = set()  # at this state, whatever their key
        self._full: set[tuple[Block, bool]] = set()  # no group has room for one more
        self._was_alone = True  # the last one tried was served without others

    def from_moment(self, moment: Moment) -> Course:
        """Return another course that begins at a moment of this one."""
        other = Course(self._sizes, moment.state, self._holders)
        other.waiting = list(moment.waited)
        return other

    def arrive(self, bid: Contestant) -> None:
        """Take the next bid in rank order."""
        at = self.arrivals[bid.id] = len(self.moments)
        self._remember(bid)
        lowest = self._try(bid, len(self.waiting))
        self.moments[at] = self.moments[at]._replace(is_alone=self._was_alone)
        if lowest is None:
            self.waiting.append(bid)
        elif lowest >= 0:
            self._retry(lowest)

    def end(self) -> None:
        self._remember(None)

    def _remember(self, lead: Contestant | None) -> None:
        self.moments.append(Moment(lead, self.state, self.waiting, len(self.waiting)))

    def _kind(self, bid: Contestant) -> tuple[Block, str, bool]:
        return bid.block, bid.agent if bid.agent in self._holders else "", bid.urgent

    def _try(self, bid: Contestant, above: int) -> int | None:
        """
        Serve a bid if it can be. Return None if not, -1 if it took what was free, else the highest
        key that it displaced. `above`: how many of those that wait rank above it.
        """
        kind = self._kind(bid)
        self._was_alone = True
        if kind not in self._hopeless:
            if self.state.fits(bid.block, bid.key):
                return self._take([bid], ())
            limit = worth = self._sizes.worth(bid)
            chosen = None
            lowest = self.state.seats.lowest_key
            if lowest is not None and lowest < bid.key:
                chosen = Search(self._sizes, self.state, bid, bid.key).least_worth(worth)
                limit = worth if chosen is None else chosen[0]
            self.tries.append(Try(bid, self.state, (), 0, limit))
            if chosen is not None:
                return self._take([bid], chosen[1])
            self._hopeless.add(kind)
        self._was_alone = False
        if not above or (bid.block, bid.urgent) in self._full:
            return None
        group = self._group(bid, above)
        if group is None:
            return None
        return self._take(sorted(group.bids, key=lambda c: c.rank), (group.lease.id,))

    def _take(self, bids: Sequence[Contestant], ids: Sequence[str]) -> int:
        """Let bids in, and the leases out that they displace; the highest key of these."""
        before = self.state
        leases = [before.seats.leases[id] for id in ids]
        room = before.room
        for lease in leases:
            room = room.give(lease.block)
        for bid in bids:
            room = room.take(bid.block)
        closures: tuple[Closure, ...] = ()
        if leases or before.closures:
            with_places = self._sizes.with_places
            closures = closed_after(before, leases, bids, room, with_places=with_places)
        seats = before.seats.without(ids) if leases else before.seats
        self.state = State(room, seats, closures)
        self.accepted += bids
        joined = {bid.id for bid in bids}
        if any(bid.id in joined for bid in self.waiting):
            self.waiting = [bid for bid in self.waiting if bid.id not in joined]
        for lease in leases:
            self.takers[lease.id] = {bid.id: self._sizes.size(bid) for bid in bids}
        if not leases:
            return -1
        self._hopeless.clear()
        self._full.clear()
        return max(lease.key for lease in leases)

    def _retry(self, key: int) -> None:
        """Try those that wait again, after leases with keys up to `key` were displaced."""
        while self.waiting and self.waiting[0].key > key:  # else nothing has opened for anybody
            for n, bid in enumerate(self.waiting):
                state, waiting = self.state, self.waiting
                need = self._try(bid, n)
                if need is not None:
                    self.moments.append(Moment(bid, state, waiting, n, self._was_alone))
                    key = min(key, need) if need >= 0 else key
                    break
            else:
                return

    # Groups

    def _group(self, bid: Contestant, above: int) -> SharedSeat | None:
        """The lease that a bid takes together with those that wait above it."""
        crowd = Crowd([*self.waiting[:above], bid])
        group, has_room = _best_group(self._sizes, self.state, crowd)
        if has_room:
            share = group.per_size if group else None
            self.tries.append(Try(bid, self.state, self.waiting, above, 0, share))
        else:
            self._full.add((bid.block, bid.urgent))
        return group


def best_group(sizes: Worths, state: State, bids: Sequence[Contestant]) -> SharedSeat | None:
    """The least worth lease whose seat the last of the bids takes together with others of them."""
    return _best_group(sizes, state, Crowd(bids))[0]


def _best_group(sizes: Worths, state: State, crowd: Crowd) -> tuple[SharedSeat | None, bool]:
    """The same, and whether some seat has room for a bid like the last, whoever has that seat."""
    last = crowd.bids[-1]
    best: SharedSeat | None = None
    most = sum(map(sizes.size, crowd.bids))
    leases = list(representatives(sizes, state, crowd))
    for lease in leases:
        worth = sizes.worth(lease)
        if lease.key >= last.key or last.key * most * FINE <= worth or last.spares(lease):
            continue
        members = together(state, lease._replace(price=0), crowd)
        size = sum(map(sizes.size, members))
        if last not in members or last.key * size * FINE <= worth:
            continue
        group = SharedSeat(Fraction(worth, size), lease, members)
        if best is None or group.per_size < best.per_size:
            best = group
    anybody = last._replace(agent="")
    alike = Crowd([*crowd.bids[:-1], anybody])
    has_room = best is not None or any(
        anybody in together(state, lease._replace(price=0), alike) for lease in leases
    )
    return best, has_room


def representatives(sizes: Worths, state: State, crowd: Crowd) -> Iterator[Contestant]:
    """
    The leases that are worth looking at: of those whose leaving gives the same, the least worth,
    and before it those that some of the bids spare.
    """
    table = sizes.kinds(state)
    for leases in table.by_kind:
        for lease in leases:
            yield lease
            if lease.agent not in crowd.agents:
                break
    for place in crowd.places:
        yield from table.by_place.get(place, ())


class Crowd:
    """Bids that could share a seat, in rank order, by the size of what they want."""

    def __init__(self, bids: Iterable[Contestant]) -> None:
        self.bids = list(bids)
        self.agents = {bid.agent for bid in self.bids if bid.agent}
        self.places = sorted({place for bid in self.bids for place, _ in seats_of(bid.block)})
        self.lowest_key = min((bid.key for bid in self.bids), default=0)
        by_size: dict[tuple[int, int, int], list[Contestant]] = {}
        for bid in self.bids:
            by_size.setdefault(_largest(bid.block), []).append(bid)
        self.by_size = [
            (by_size[size], {bid.block for bid in by_size[size]}) for size in sorted(by_size)
        ]


def together(
    state: State, lease: Contestant, crowd: Crowd, *, without: str = ""
) -> list[Contestant]:
    """
    The bids that share a lease's seat, beside what is free: the largest first. `without`: an agent
    whose bids do not.
    """
    filled = _Filling(state, lease, [c for c in state.closures if c.key >= crowd.lowest_key])
    for bids, blocks in crowd.by_size:
        for bid in bids:
            if bid.key <= lease.key or bid.spares(lease) or (without and bid.agent == without):
                continue
            filled.add(bid)
            if blocks <= filled.too_large:
                break
    return filled.bids


@lru_cache(maxsize=4096)
def _largest(block: Block) -> tuple[int, int, int]:
    lots = getattr(block, "lots", ()) or (("", block),)
    size = max(max((n for _, n in part.seats), default=part.size) for _, part in lots)
    gpus = sum(part.gpus or sum(n for _, n in part.seats) for _, part in lots)
    return -size, -gpus, -max(part.units for _, part in lots)


class _Filling:
    """A seat that bids fill one after the other."""

    def __init__(self, state: State, lease: Contestant, closures: Sequence[Closure]) -> None:
        self._before = state.room
        self._spare = plus(counters(state.room), gains_of(state.room, lease.block))
        self._freed = dict(seats_of(lease.block))
        self._room: Room | None = None  # needed once somebody wants a certain place
        self._closures = [self._opened(closure) for closure in closures]
        self._lease = lease
        self.too_large: set[Block] = set()
        self.bids: list[Contestant] = []

    def _opened(self, closure: Closure) -> Closure:
        """A closure once the lease has left."""
        gains = minus(self._spare, counters(self._before))
        places = {p: n + self._freed.get(p, 0) for p, n in closure.places.items()}
        return closure._replace(low=plus(closure.low, gains), places=places)

    def add(self, bid: Contestant) -> None:
        block = bid.block
        if block in self.too_large:
            return
        pins = dict(seats_of(block))
        need = self._taken(block) if pins else need_of(self._before, block)
        if need is None or not all(map(operator.ge, self._spare, need)):
            self.too_large.add(block)
            return
        closed = [closure for closure in self._closures if bid.key <= closure.key]
        for closure in closed:
            if not all(map(operator.ge, closure.low, need)):
                return  # closed to it, and perhaps not to the next
            if any(closure.places.get(place, n) < n for place, n in pins.items()):
                return
        if closed:
            self._closures = [
                closure if bid.key > closure.key else _taken_from(closure, need, pins)
                for closure in self._closures
            ]
        self._spare = minus(self._spare, need)
        if pins and self._room is not None:
            self._room = self._room.take(block)
        self.bids.append(bid)

    def _taken(self, block: Block) -> Counters | None:
        """The need of a block that wants certain places; None if they are not free."""
        if self._room is None:
            self._room = self._before.give(self._lease.block)
        if any(free_at(self._room, place) < n for place, n in seats_of(block)):
            return None
        return minus(counters(self._room), counters(self._room.take(block)))


def _taken_from(closure: Closure, need: Counters, pins: Mapping[Place, int]) -> Closure:
    places = {place: n - pins.get(place, 0) for place, n in closure.places.items()}
    return closure._replace(low=minus(closure.low, need), places=places)
