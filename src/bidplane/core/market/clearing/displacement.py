"""
The least worth set of running leases whose leaving lets one bid in.

A lease is in its seat: what it gives back depends on its places alone, and the places of
different leases add up. So a set is, for each place, how many units are freed there, and the
least worth way to free so many is a small table (`_ways`). Of these, the cheapest that together
give the counters what the bid lacks is searched: first one place that gives all of it, then
several (depth first, with a bound). Leases of several places are tried in all their subsets
while they are few.

The search is exact up to `NODES_MOST` steps and `SPANNING_MOST` leases of several places. Beyond,
the best that was seen is taken. It counts steps, never the time.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.capacity import Counters, Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.supply import (
    Place,
    counters,
    free_at,
    gain,
    gains_of,
    least,
    minus,
    need_of,
    plus,
    seats_of,
    units_by_place,
)
from bidplane.core.market.joint.capacity import Rooms

NODES_MOST = 300
SPANNING_MOST = 5  # of so many leases of several places all subsets are tried; 32 in all

Ids: TypeAlias = tuple[str, ...]
LeaseSet: TypeAlias = tuple[int, Ids]  # its worth, and who is in it


# Far below a micro-credit, the worth of each lease has a digit of its own, the earlier the higher:
# so of two leases one is always worth less, and of two sets where there are so few leases.
FINE = 1 << 48
FEW = 47


class Worths:
    """The worth of contestants, and the tables of their seats; shared by all states of a round."""

    def __init__(self, size_of: Callable[[Block], int], leases: Iterable[Contestant] = ()) -> None:
        self._size_of = size_of
        self._sizes: dict[Block, int] = {}
        self.with_places = True  # some bids want certain places
        earliest_last = sorted(leases, key=lambda c: (c.tie, c.id), reverse=True)
        few = len(earliest_last) <= FEW
        self.digit = {c.id: 1 << n if few else n for n, c in enumerate(earliest_last)}
        self._ways: dict[tuple[Place, Ids], list[tuple[int, int, Ids]]] = {}
        self._kinds: dict[tuple[int, int], tuple[State, Kinds]] = {}

    def size(self, contestant: Contestant) -> int:
        block = contestant.block
        if block not in self._sizes:
            self._sizes[block] = self._size_of(block)
        return self._sizes[block]

    def worth(self, contestant: Contestant) -> int:
        """The worth of a bid or a lease, in fine units."""
        worth = contestant.key * self.size(contestant) * FINE
        return worth + self.digit.get(contestant.id, 0)

    def kinds(self, state: State) -> Kinds:
        """The leases in their seats, by what their leaving gives."""
        room = state.room
        key = id(state.seats), id(room if isinstance(room, Rooms) else room.free)
        if key not in self._kinds:
            by_kind: dict[object, dict[str, Contestant]] = {}
            by_place: dict[Place, list[Contestant]] = {}
            for lease in sorted(state.seats.leases.values(), key=self.worth):
                kind = self.size(lease), gains_of(room, lease.block)
                by_kind.setdefault(kind, {}).setdefault(lease.agent, lease)
                for place, _ in seats_of(lease.block):
                    by_place.setdefault(place, []).append(lease)
            cheapest = [list(leases.values()) for leases in by_kind.values()]
            self._kinds[key] = state, Kinds(cheapest, by_place)
        return self._kinds[key][1]

    def ways(self, place: Place, leases: Sequence[Contestant]) -> list[tuple[int, int, Ids]]:
        """The least worth ways to free units of a place: how many, their worth, which leases."""
        key = place, tuple(lease.id for lease in leases)
        if key not in self._ways:
            by_units: dict[int, LeaseSet] = {0: (0, ())}
            for lease in leases:
                units, worth = dict(seats_of(lease.block))[place], self.worth(lease)
                for freed, (total, ids) in list(by_units.items()):
                    more = total + worth, tuple(sorted((*ids, lease.id)))
                    if freed + units not in by_units or more < by_units[freed + units]:
                        by_units[freed + units] = more
            ways: list[tuple[int, int, Ids]] = []
            for freed in sorted(by_units, reverse=True):
                total, ids = by_units[freed]
                if freed and (not ways or total < ways[-1][1]):
                    ways.append((freed, total, ids))
            self._ways[key] = ways
        return self._ways[key]


class Kinds(NamedTuple):
    """The leases in their seats: of those alike each agent's least worth one; and by place."""

    by_kind: list[list[Contestant]]
    by_place: dict[Place, list[Contestant]]


class SeatedLeases:
    """The running leases that are in their seats."""

    def __init__(self, leases: Mapping[str, Contestant]) -> None:
        self.leases = leases
        self.lowest_key = min((lease.key for lease in leases.values()), default=None)
        self.by_place: dict[Place, tuple[Contestant, ...]] = {}
        self.spanning: list[Contestant] = []
        for lease in leases.values():
            places = seats_of(lease.block)
            if len(places) == 1:
                place = places[0][0]
                self.by_place[place] = (*self.by_place.get(place, ()), lease)
            else:
                self.spanning.append(lease)

    def without(self, gone: Iterable[str]) -> SeatedLeases:
        """Return the seats once these leases have left them."""
        leaving = set(gone)
        return SeatedLeases({id: lease for id, lease in self.leases.items() if id not in leaving})


class Closure(NamedTuple):
    """
    The room that a displacement does not open: what it leaves over is sold only to bids that
    outrank the displaced.
    """

    key: int  # the highest of the displaced
    low: Counters  # what is left for the others
    places: Mapping[Place, int]  # the same by place


class State(NamedTuple):
    """A moment of a clearing."""

    room: Room  # what is left beside the leases in their seats, and the bids that won
    seats: SeatedLeases
    closures: tuple[Closure, ...] = ()

    def spare(self, key: int) -> Counters:
        """The counters for a bid with such a key."""
        spare = counters(self.room)
        for closure in self.closures:
            if closure.key >= key:
                spare = least(spare, closure.low)
        return spare

    def free(self, place: Place, key: int) -> int:
        """The free units of a place for a bid with such a key."""
        free = free_at(self.room, place)
        for closure in self.closures:
            if closure.key >= key and place in closure.places:
                free = min(free, closure.places[place])
        return free

    def fits(self, block: Block, key: int) -> bool:
        """Return whether a block fits without anybody leaving."""
        if not self.room.fits(block):
            return False
        closed = [closure for closure in self.closures if closure.key >= key]
        if not closed:
            return True
        need = minus(counters(self.room), counters(self.room.take(block)))
        return all(
            min(minus(closure.low, need)) >= 0
            and all(closure.places.get(place, n) >= n for place, n in seats_of(block))
            for closure in closed
        )


class _Row(NamedTuple):
    """One way to free units of one place."""

    worth: int
    ids: Ids
    gains: Counters
    place: Place


class Search:
    """The sets of leases that a bid may displace at one state, had it such a key."""

    def __init__(self, sizes: Worths, state: State, bid: Contestant, key: int) -> None:
        self._sizes = sizes
        self._state = state
        self._bid = bid
        self._key = key
        self._pins = dict(seats_of(bid.block))
        need = need_of(state.room, bid.block)
        self._lack = minus(need, state.spare(key))
        self._plain: list[_Row] | None = None
        self._spanning = sorted(
            filter(self._may, state.seats.spanning), key=lambda c: (sizes.worth(c), c.id)
        )

    def _may(self, lease: Contestant) -> bool:
        return lease.key < self._key and not self._bid.spares(lease)

    def least_worth(self, limit: int, leaving: tuple[Contestant, ...] = ()) -> LeaseSet | None:
        """
        The least worth set that lets the bid in, if it is worth less than `limit`. `leaving`: those
        that leave anyway, and are not counted.
        """
        best: LeaseSet | None = None
        for together in self._spanning_sets(leaving):
            worth = sum(map(self._sizes.worth, together))
            if worth >= limit:
                continue
            rest = self._cheapest((*leaving, *together), limit - worth)
            if rest is not None:
                ids = (*rest[1], *(lease.id for lease in together))
                best, limit = (worth + rest[0], tuple(sorted(ids))), worth + rest[0]
        return best

    def _spanning_sets(self, leaving: tuple[Contestant, ...]) -> Iterator[tuple[Contestant, ...]]:
        able = [lease for lease in self._spanning if lease not in leaving]
        yield ()
        if len(able) <= SPANNING_MOST:
            for n in range(1, len(able) + 1):
                yield from itertools.combinations(able, n)
        else:
            yield from ((lease,) for lease in able)
            yield from (tuple(able[:n]) for n in range(2, SPANNING_MOST + 1))

    def _cheapest(self, leaving: tuple[Contestant, ...], limit: int) -> LeaseSet | None:
        """The least worth set of leases of one place each, beside those."""
        freed = units_by_place(lease.block for lease in leaving)
        lack = self._lack
        rows = [r for r in self._rows() if r.place not in freed] if freed else self._rows()
        for place in freed.keys() - self._pins.keys():
            lack = minus(lack, gain(self._state.room, place, freed[place]))
            rows = sorted((*rows, *self._rows_at(place, freed[place], leaving)))
        if not self._pins:
            return _cover(lack, rows, limit)
        return self._with_pins(lack, rows, freed, leaving, limit)

    def _rows(self) -> list[_Row]:
        if self._plain is None:
            rows: list[_Row] = []
            for place in self._state.seats.by_place:
                if place not in self._pins:
                    rows += self._rows_at(place, 0, ())
            self._plain = sorted(rows)
        return self._plain

    def _rows_at(self, place: Place, freed: int, leaving: tuple[Contestant, ...]) -> Iterator[_Row]:
        """The ways to free more of a place of which so much is free anyway."""
        room = self._state.room
        before = gain(room, place, freed) if freed else None
        for units, worth, ids in self._ways(place, leaving):
            gains = gain(room, place, freed + units)
            gains = gains if before is None else minus(gains, before)
            if self._pins or any(g > 0 and n > 0 for g, n in zip(gains, self._lack, strict=True)):
                yield _Row(worth, ids, gains, place)

    def _ways(
        self, place: Place, leaving: tuple[Contestant, ...]
    ) -> Sequence[tuple[int, int, Ids]]:
        leases = self._state.seats.by_place.get(place, ())
        able = [lease for lease in leases if self._may(lease) and lease not in leaving]
        return self._sizes.ways(place, able) if able else ()

    def _with_pins(
        self,
        lack: Counters,
        rows: Sequence[_Row],
        freed: Mapping[Place, int],
        leaving: tuple[Contestant, ...],
        limit: int,
    ) -> LeaseSet | None:
        """A bid that wants certain places: enough leaves each of them, whatever else does."""
        choices: list[list[_Row]] = []
        for place, units_asked in self._pins.items():
            already = freed.get(place, 0)
            at_place = []
            for units, worth, ids in ((0, 0, ()), *self._ways(place, leaving)):
                if self._state.free(place, self._key) + already + units >= units_asked:
                    more = already + units - units_asked
                    at_place.append(_Row(worth, ids, gain(self._state.room, place, more), place))
            choices.append(sorted(at_place))
        best: LeaseSet | None = None
        for chosen in itertools.islice(itertools.product(*choices), NODES_MOST):
            worth = sum(row.worth for row in chosen)
            if worth >= limit:
                continue
            short = lack
            for row in chosen:
                short = minus(short, row.gains)
            rest = _cover(short, rows, limit - worth)
            if rest is not None:
                ids = (*rest[1], *(id for row in chosen for id in row.ids))
                best, limit = (worth + rest[0], tuple(sorted(ids))), worth + rest[0]
        return best


def _cover(lack: Counters, rows: Sequence[_Row], limit: int) -> LeaseSet | None:
    """
    The cheapest rows of different places that together give what is lacking, if they are worth less
    than `limit`. `rows`: the cheapest first.
    """
    if max(lack) <= 0:
        return (0, ()) if limit > 0 else None
    units_asked = [k for k, n in enumerate(lack) if n > 0]
    best: LeaseSet | None = None
    for row in rows:
        if row.worth >= limit:
            break
        if all(row.gains[k] >= lack[k] for k in units_asked):
            best, limit = (row.worth, row.ids), row.worth
            break
    able = [row for row in rows if row.worth < limit]
    ratios = {k: _best_ratio(able, k) for k in units_asked}
    if any(ratio is None for ratio in ratios.values()):
        return best
    return _Cover(able, {k: r for k, r in ratios.items() if r}).search(lack, best, limit)


def _best_ratio(rows: Iterable[_Row], k: int) -> tuple[int, int] | None:
    """The worth and the gain of the row that gives a counter most for its worth."""
    best: tuple[int, int] | None = None
    for row in rows:
        gained = row.gains[k]
        if gained > 0 and (best is None or row.worth * best[1] < best[0] * gained):
            best = row.worth, gained
    return best


class _Cover:
    """The search for several rows: of the largest size that is lacking, one row after the other."""

    def __init__(self, rows: Sequence[_Row], ratios: Mapping[int, tuple[int, int]]) -> None:
        self._rows = rows
        self._ratios = ratios
        self._nodes = NODES_MOST
        self._best: LeaseSet | None = None
        self._limit = 0

    def search(self, lack: Counters, best: LeaseSet | None, limit: int) -> LeaseSet | None:
        self._best, self._limit = best, limit
        if self._at_least(lack) < limit:
            self._dig(lack, 0, frozenset(), 0, ())
        return self._best

    def _at_least(self, lack: Counters) -> int:
        """No rows that give what is lacking are worth less than this."""
        return max(
            (-(-lack[k] * worth // gained) for k, (worth, gained) in self._ratios.items()
             if lack[k] > 0),
            default=0,
        )  # fmt: skip

    def _dig(
        self, lack: Counters, start: int, used: frozenset[Place], worth: int, ids: Ids
    ) -> None:
        top = next(k for k, n in enumerate(lack) if n > 0)
        for i in range(start, len(self._rows)):
            row = self._rows[i]
            total = worth + row.worth
            if total >= self._limit or self._nodes <= 0:
                return
            if row.gains[top] <= 0 or row.place in used:
                continue
            self._nodes -= 1
            remainder = minus(lack, row.gains)
            if max(remainder) <= 0:
                self._best, self._limit = (total, tuple(sorted((*ids, *row.ids)))), total
                return
            if total + self._at_least(remainder) < self._limit:
                same = remainder[top] > 0
                self._dig(
                    remainder, i + 1 if same else 0, used | {row.place}, total, (*ids, *row.ids)
                )


def closed_after(
    before: State,
    leaving: Sequence[Contestant],
    entering: Sequence[Contestant],
    after: Room,
    *,
    with_places: bool,
) -> tuple[Closure, ...]:
    """
    The closures once these leases have left and these bids have entered. `with_places`: some want
    certain places.
    """
    spare = counters(before.room)
    freed = units_by_place(lease.block for lease in leaving)
    gains = (0,) * len(spare)
    for place, units in freed.items():
        gains = plus(gains, gain(before.room, place, units))
    changed = []
    for closure in before.closures:
        closed = [bid for bid in entering if bid.key <= closure.key]
        if closed:
            closure = _less(closure, before, closed, leaving, gains)
        changed.append(closure)
    if leaving:
        low = least(spare, counters(after))
        places = {place: free_at(before.room, place) for place in freed} if with_places else {}
        new = Closure(max(lease.key for lease in leaving), low, places)
        changed = [closure for closure in changed if not _is_within(new, closure)]
        changed.append(new)
    return tuple(changed)


def _is_within(new: Closure, old: Closure) -> bool:
    """Return whether a closure closes all that an older one does."""
    return (
        new.key >= old.key
        and all(map(operator.le, new.low, old.low))
        and all(new.places.get(place, n + 1) <= n for place, n in old.places.items())
    )


def _less(
    closure: Closure,
    before: State,
    closed: Sequence[Contestant],
    leaving: Sequence[Contestant],
    gains: Counters,
) -> Closure:
    """A closure once bids have entered that it holds for."""
    room = before.room
    for lease in leaving:
        room = room.give(lease.block)
    need = (0,) * len(gains)
    for bid in closed:
        remainder = room.take(bid.block)
        need = plus(need, minus(counters(room), counters(remainder)))
        room = remainder
    low = tuple(
        min(n + g - t, n) if g else n - t for n, g, t in zip(closure.low, gains, need, strict=True)
    )
    freed = units_by_place(lease.block for lease in leaving)
    pinned = units_by_place(bid.block for bid in closed)
    places = {
        place: min(n, n + freed.get(place, 0) - pinned.get(place, 0))
        for place, n in closure.places.items()
    }
    return Closure(closure.key, low, places)
