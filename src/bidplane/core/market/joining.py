"""
Asks for GPUs of several lots, all or none: which lots, and if it must be one machine, which.

Like a bid that names no pool, it is routed before clearing: each of its needs to the lot where
it costs least to enter. One that must be in one machine is routed to a machine, and then
competes for that one's GPUs alone, as a running lease competes where it is. Counting stays
exact that way: whether devices of two lots are ever free *beside each other* is no sum over
lots, and a search for it would not be the same for every subset. So it is never accepted and
then has no place; but it may lose where it is, though another machine would have done. The
next round routes it anew. "One less would have lost" holds for the machine it was routed to.

Routed: where all of it is free, the tightest machine first; else where the highest ranked
lease it would displace ranks lowest; else wherever it would fit if nobody were there. An ask
that needs devices beside which nobody sells goes only to machines that have them free.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from bidplane.api.bid import BidReason
from bidplane.core.chain import Block
from bidplane.core.market.model import Ask, Lot
from bidplane.core.market.rooms import Joint, Place, joint
from bidplane.core.market.routing import Router
from bidplane.core.placement import sizes_of

Set = tuple[Place, ...]  # what one machine gives, one need after the other
Needs = tuple[tuple[tuple[str, Block], ...], ...]  # of each need, the lots that will do

STEPS_MOST = 2000  # of the search inside one machine; it has few domains


class Joiner:
    """Routes the joint asks of one round, in the order it is asked."""

    def __init__(self, lots: Mapping[str, Lot], router: Router) -> None:
        self._lots = lots
        self._router = router
        self._machines: _Machines | None = None

    def route(self, ask: Ask) -> Joint | BidReason:
        """What the ask would be sold as; or why it cannot be sold as it is."""
        needs: list[dict[str, Block]] = []
        for need in (ask, *ask.also):
            # Of sets in one machine, `blocks` counts the sets.
            one = msgspec.structs.replace(need, blocks=1) if ask.one_node else need
            shapes = self._router.shapes(one)
            if isinstance(shapes, BidReason):
                return shapes
            if ask.one_node and need.spread:  # anywhere in the machine: it is pinned in any case
                shapes = dict.fromkeys(shapes, Block(1, count=need.gpus))
            needs.append(shapes)
        if ask.one_node:
            if self._machines is None:
                self._machines = _Machines(self._lots, self._router)
            found = self._machines.route(needs, ask.blocks, ask.machines)
            return found or BidReason.NO_MACHINE_HAS_ALL
        return self._anywhere(needs)

    def take(self, block: Joint) -> None:
        """It goes there: who comes after it finds that much less."""
        if block.sets and self._machines is not None:
            self._machines.take(block.sets)

    def _anywhere(self, needs: Sequence[Mapping[str, Block]]) -> Joint | BidReason:
        chosen: dict[str, Block] = {}
        for need_in in needs:
            lot = self._router.cheapest(need_in)
            chosen[lot] = _beside(chosen.get(lot), need_in[lot])
        made = joint(chosen)
        return made if self._router.holds(made) else BidReason.LARGER_THAN_EVERY_DOMAIN


def _beside(one: Block | None, other: Block) -> Block:
    """Two needs that come to the same lot."""
    if one is None:
        return other
    first, *rest = sorted((*sizes_of(one), *sizes_of(other)), reverse=True)
    return Block(first, rest=tuple(rest))


class _Domain:
    """What one machine has of one lot on one link."""

    def __init__(self, lot: str, name: str, node: str, size: int, free: int) -> None:
        self.lot = lot
        self.name = name
        self.node = node
        self.size = size
        self.free = free
        self.held: list[tuple[int, int]] = []  # leases that can be displaced: key, GPUs
        self.routed = 0  # GPUs that asks before were sent to

    @property
    def left_free(self) -> int:
        return self.free - self.routed

    @property
    def can_be_had(self) -> int:
        return self.free + sum(gpus for _, gpus in self.held) - self.routed

    def key_to_displace(self, gpus: int) -> int:
        """Of the leases it takes to have so many, the highest."""
        missing, key = gpus - max(0, self.left_free), 0
        for held, count in sorted(self.held):
            if missing <= 0:
                break
            missing, key = missing - count, held
        return key


class _Known:
    """Which machines no longer have what some need asks for, and what it costs in the others."""

    def __init__(self, nodes: Sequence[str], passed: int = 0) -> None:
        self.passed = passed  # so many, the tightest first, have it free no longer
        self.costs = [(0, node) for node in sorted(nodes)]  # a heap: at least so much

    def copy(self) -> _Known:
        other = _Known((), self.passed)
        other.costs = list(self.costs)
        return other


class _Machines:
    """
    What is asked for comes again and again, and what is left only shrinks: so each machine that
    was found to be too small for a need is not looked at again.
    """

    def __init__(self, lots: Mapping[str, Lot], router: Router) -> None:
        self._nodes: dict[str, list[_Domain]] = {}
        self._domains: dict[tuple[str, str], _Domain] = {}
        for name, lot in sorted(lots.items()):
            for one in sorted(lot.domains, key=lambda domain: domain.name):
                node = one.node or one.name
                domain = _Domain(name, one.name, node, one.size + one.closed, len(one.free))
                self._domains[name, one.name] = domain
                self._nodes.setdefault(node, []).append(domain)
            for lease in router.contesting(name):
                for seat, devices in lease.seats.items() if not lease.share else ():
                    held = lease.price * lease.weight, len(devices)
                    self._domains[name, seat].held.append(held)
        self._tightest = sorted(
            self._nodes, key=lambda node: (sum(d.free for d in self._nodes[node]), node)
        )
        self._known: dict[tuple[Needs, frozenset[str] | None], _Known] = {}

    def take(self, sets: Sequence[Set], *, sign: int = 1) -> None:
        """An ask goes there: who comes after it finds that much less."""
        for place in (place for found in sets for place in found):
            self._domains[place.lot, place.domain].routed += sign * place.gpus

    def route(
        self,
        needs: Sequence[Mapping[str, Block]],
        count: int,
        most: Mapping[str, int] | None = None,
    ) -> Joint | None:
        """
        So many sets of the needs, each in one machine; None if no machines are that large.
        `most`: how many sets each machine may have; those that it does not name, none.
        """
        wanted: Needs = tuple(tuple(sorted(need.items())) for need in needs)
        able = None if most is None else {node for node in self._nodes if most.get(node, 0) > 0}
        key = wanted, None if able is None else frozenset(able)
        if key not in self._known:
            self._known[key] = _Known(self._tightest)
        known = self._known[key]
        sets: list[Set] = []
        had: Counter[str] = Counter()
        while len(sets) < count:
            if len(sets) == 1:
                known = known.copy()  # what its own sets take is given back below
            found = (
                self._free(wanted, known, able)
                or self._displacing(wanted, known, able)
                or self._anywhere(wanted, sets, able)
            )
            if not found:
                break
            sets.append(found)
            node = self._domains[found[0].lot, found[0].domain].node
            had[node] += 1
            if able is not None and most is not None and had[node] >= most[node]:
                able.discard(node)
            self.take([found])
        self.take(sets, sign=-1)
        return _of_sets(sets) if len(sets) == count else None

    def _free(self, needs: Needs, known: _Known, able: AbstractSet[str] | None) -> Set | None:
        # Whoever needs no machine is counted, and not placed yet: it makes way, if it can.
        for node in self._tightest[known.passed :]:
            domains = self._nodes[node]
            if able is None or node in able:
                found = seated(needs, domains, [domain.left_free for domain in domains])
                if found is not None:
                    return found
            known.passed += 1
        return None

    def _displacing(self, needs: Needs, known: _Known, able: AbstractSet[str] | None) -> Set | None:
        while known.costs:
            before, node = known.costs[0]
            domains = self._nodes[node]
            found = None
            if able is None or node in able:
                found = seated(needs, domains, [domain.can_be_had for domain in domains])
            if found is None:
                heapq.heappop(known.costs)
                continue
            key = self._key(found)
            if key <= before:
                return found
            heapq.heapreplace(known.costs, (key, node))
        return None

    def _anywhere(
        self, needs: Needs, sets: Sequence[Set], able: AbstractSet[str] | None
    ) -> Set | None:
        """A machine that is large enough, whoever has it; beside the sets that it has already."""
        mine = dict(_pins(sets))
        for node in sorted(self._nodes if able is None else able):
            domains = self._nodes[node]
            room = [d.size - mine.get((d.lot, d.name), 0) for d in domains]
            if found := seated(needs, domains, room):
                return found
        return None

    def _key(self, found: Set) -> int:
        return max(self._domains[at].key_to_displace(n) for at, n in _pins([found]).items())


def seated(needs: Needs, domains: Sequence[_Domain], room: Sequence[int]) -> Set | None:
    """
    Where each need could be in one machine, given what each of its domains has room for: the
    tightest that will do, tried one after the other. None when there is no way, or none was
    found in the steps there are.
    """
    left = list(room)
    order = sorted(range(len(domains)), key=lambda i: (left[i], domains[i].lot, domains[i].name))
    steps = STEPS_MOST

    def place(rest: tuple[tuple[str, int], ...], then: Callable[[], Set | None]) -> Set | None:
        """The blocks of one need, each in a domain of its lot."""
        nonlocal steps
        if not rest:
            return then()
        (lot, size), *others = rest
        tried: set[int] = set()
        for i in order:
            # Of domains with as much room, one stands for all.
            if domains[i].lot != lot or left[i] < size or left[i] in tried:
                continue
            steps -= 1
            if steps < 0:
                return None
            tried.add(left[i])
            left[i] -= size
            found = place(tuple(others), then)
            left[i] += size
            if found is not None:
                return (Place(lot, domains[i].name, size), *found)
        return None

    def from_need(at: int) -> Set | None:
        if at == len(needs):
            return ()
        for lot, block in needs[at]:
            blocks = tuple((lot, size) for size in sizes_of(block))
            found = place(blocks, lambda: from_need(at + 1))
            if found is not None:
                return found
        return None

    return from_need(0)


def _pins(sets: Sequence[Set]) -> dict[tuple[str, str], int]:
    """By lot and domain, how many GPUs of it."""
    pins: dict[tuple[str, str], int] = {}
    for lot, domain, gpus in (place for found in sets for place in found):
        pins[lot, domain] = pins.get((lot, domain), 0) + gpus
    return pins


def _of_sets(sets: Sequence[Set]) -> Joint:
    seats: dict[str, list[tuple[str, int]]] = {}
    for (lot, domain), gpus in sorted(_pins(sets).items()):
        seats.setdefault(lot, []).append((domain, gpus))
    needs = {lot: Block(0, seats=tuple(found)) for lot, found in seats.items()}
    return joint(needs, tuple(sets))
