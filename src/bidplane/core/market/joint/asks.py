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

A need for any GPUs of the machine (`spread`) has the best linked of them (`gathering`): where they
are free on one link in some machine it goes there before it is split.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from bidplane.api.bid import BidReason
from bidplane.core.devices.chain import Block
from bidplane.core.devices.placement import sizes_of
from bidplane.core.market.clearing.linked import Loose, gathered
from bidplane.core.market.joint.capacity import DomainGpus, Joint, joint
from bidplane.core.market.model import Ask, Domain, Lot
from bidplane.core.market.routing import Router

Set = tuple[DomainGpus, ...]  # what one machine gives, one need after the other
# Of each need, the lots that will do and its block there; or that any GPUs of these lots will.
Need = tuple[tuple[str, Block], ...] | Loose
Needs = tuple[Need, ...]

STEPS_MOST = 2000  # of the search inside one machine; it has few domains


class Joiner:
    """Routes the joint asks of one round, in the order it is asked."""

    def __init__(self, lots: Mapping[str, Lot], router: Router) -> None:
        self._lots = lots
        self._router = router
        self._machines: _Machines | None = None

    def route(self, ask: Ask) -> Joint | BidReason:
        """
        Return the blocks that the ask would be sold as; or the reason that it cannot be sold as it
        is.
        """
        if ask.one_node:
            return self._in_one_machine(ask)
        needs: list[dict[str, Block]] = []
        for need in (ask, *ask.also):
            shapes = self._router.shapes(need)
            if isinstance(shapes, BidReason):
                return shapes
            needs.append(shapes)
        return self._anywhere(needs)

    def _in_one_machine(self, ask: Ask) -> Joint | BidReason:
        needs: list[Need] = []
        for need in (ask, *ask.also):
            # Of sets in one machine, `blocks` counts the sets.
            one_set = msgspec.structs.replace(need, blocks=1)
            shapes = self._router.lots(one_set) if need.spread else self._router.shapes(one_set)
            if isinstance(shapes, BidReason):
                return shapes
            if isinstance(shapes, dict):
                needs.append(tuple(sorted(shapes.items())))
            else:
                needs.append(Loose(need.gpus, tuple(sorted(shapes))))
        if self._machines is None:
            self._machines = _Machines(self._lots, self._router)
        linked = tuple(map(_on_one_link, needs))
        routed = self._machines.route(linked, ask.blocks, ask.machines, only_free=True)
        if routed is None or linked == tuple(needs):
            spared = "" if ask.urgent else ask.agent
            routed = self._machines.route(tuple(needs), ask.blocks, ask.machines, spared=spared)
        return routed or BidReason.NO_MACHINE_HAS_ALL

    def take(self, block: Joint) -> None:
        """Count a joint block that is routed, so that later asks find that much less."""
        if block.sets and self._machines is not None:
            self._machines.take(block.sets)

    def _anywhere(self, needs: Sequence[Mapping[str, Block]]) -> Joint | BidReason:
        chosen: dict[str, Block] = {}
        for need_in in needs:
            lot = self._router.cheapest(need_in)
            chosen[lot] = _beside(chosen.get(lot), need_in[lot])
        block = joint(chosen)
        return block if self._router.holds(block) else BidReason.LARGER_THAN_EVERY_DOMAIN


def _on_one_link(need: Need) -> Need:
    if not isinstance(need, Loose):
        return need
    return tuple((lot, Block(need.gpus)) for lot in need.lots)


def _beside(first_need: Block | None, other_need: Block) -> Block:
    """The block that serves two needs of the same lot."""
    if first_need is None:
        return other_need
    largest, *smaller = sorted((*sizes_of(first_need), *sizes_of(other_need)), reverse=True)
    return Block(largest, rest=tuple(smaller))


class _Domain:
    """The GPUs that one machine has of one lot on one link."""

    def __init__(self, lot: str, domain: Domain) -> None:
        self.lot = lot
        self.name = domain.name
        self.node = domain.node or domain.name
        self.numa = domain.numa
        self.speed = domain.speed
        self.size = domain.size + domain.closed
        self.free = len(domain.free)
        self.held: list[tuple[int, int, str]] = []  # leases: key, GPUs, agent
        self.routed = 0  # GPUs that asks before were sent to

    @property
    def left_free(self) -> int:
        return self.free - self.routed

    def can_be_had(self, spared: str) -> int:
        """
        The GPUs that are free or could be freed. `spared`: the agent whose leases are not
        displaced.
        """
        leases = sum(gpus for _, gpus, agent in self.held if not spared or agent != spared)
        return self.free + leases - self.routed

    def key_to_displace(self, gpus: int, spared: str) -> int:
        """The highest key among the leases that must go to free so many GPUs."""
        missing, highest = gpus - max(0, self.left_free), 0
        for lease_key, count, agent in sorted(self.held):
            if missing <= 0:
                break
            if not spared or agent != spared:
                missing, highest = missing - count, lease_key
        return highest


class _Known:
    """The machines that no longer have what a need asks for, and its cost in the others."""

    def __init__(self, nodes: Sequence[str], passed: int = 0) -> None:
        self.passed = passed  # so many, the tightest first, have it free no longer
        self.costs = [(0, node) for node in sorted(nodes)]  # a heap: at least so much

    def copy(self) -> _Known:
        other = _Known((), self.passed)
        other.costs = list(self.costs)
        return other


class _Machines:
    """
    The machines, with what earlier needs learnt about them: the same needs come often and free
    capacity only shrinks, so a machine that was too small for a need is not tried again.
    """

    def __init__(self, lots: Mapping[str, Lot], router: Router) -> None:
        self._nodes: dict[str, list[_Domain]] = {}
        self._domains: dict[tuple[str, str], _Domain] = {}
        self._holders: set[str] = set()  # agents that have leases
        for name, lot in sorted(lots.items()):
            for lot_domain in sorted(lot.domains, key=lambda domain: domain.name):
                domain = self._domains[name, lot_domain.name] = _Domain(name, lot_domain)
                self._nodes.setdefault(domain.node, []).append(domain)
            for lease in router.contesting(name):
                for seat, devices in lease.seats.items() if not lease.share else ():
                    holding = lease.price * lease.weight, len(devices), lease.agent
                    self._domains[name, seat].held.append(holding)
                    self._holders.add(lease.agent)
        self._tightest = sorted(
            self._nodes, key=lambda node: (sum(d.free for d in self._nodes[node]), node)
        )
        self._known: dict[tuple[Needs, frozenset[str] | None, str], _Known] = {}

    def take(self, sets: Sequence[Set], *, sign: int = 1) -> None:
        """Count the GPUs of an ask that is routed there, so that later asks find that much less."""
        for place in (place for machine_set in sets for place in machine_set):
            self._domains[place.lot, place.domain].routed += sign * place.gpus

    def route(
        self,
        needs: Needs,
        count: int,
        most: Mapping[str, int] | None = None,
        *,
        only_free: bool = False,
        spared: str = "",
    ) -> Joint | None:
        """
        Return so many sets of the needs, each in one machine; None if no machines are that large,
        or have that much free. `most`: how many sets each machine may have; those that it does not
        name, none. `spared`: the agent whose leases are not displaced for it.
        """
        spared = spared if spared in self._holders else ""
        able = None if most is None else {node for node in self._nodes if most.get(node, 0) > 0}
        key = needs, None if able is None else frozenset(able), spared
        if key not in self._known:
            self._known[key] = _Known(self._tightest)
        progress = self._known[key]
        sets: list[Set] = []
        sets_by_node: Counter[str] = Counter()
        while len(sets) < count:
            if len(sets) == 1:
                progress = progress.copy()  # what its own sets take is given back below
            machine_set = self._free(needs, progress, able)
            if machine_set is None and not only_free:
                machine_set = self._displacing(needs, progress, able, spared)
                machine_set = machine_set or self._anywhere(needs, sets, able)
            if not machine_set:
                break
            sets.append(machine_set)
            node = self._domains[machine_set[0].lot, machine_set[0].domain].node
            sets_by_node[node] += 1
            if able is not None and most is not None and sets_by_node[node] >= most[node]:
                able.discard(node)
            self.take([machine_set])
        self.take(sets, sign=-1)
        return _of_sets(sets) if len(sets) == count else None

    def _free(self, needs: Needs, progress: _Known, able: AbstractSet[str] | None) -> Set | None:
        # Whoever needs no machine is counted, and not placed yet: it makes way, if it can.
        for node in self._tightest[progress.passed :]:
            domains = self._nodes[node]
            if able is None or node in able:
                machine_set = seated(needs, domains, [domain.left_free for domain in domains])
                if machine_set is not None:
                    return machine_set
            progress.passed += 1
        return None

    def _displacing(
        self, needs: Needs, progress: _Known, able: AbstractSet[str] | None, spared: str
    ) -> Set | None:
        while progress.costs:
            before, node = progress.costs[0]
            domains = self._nodes[node]
            machine_set = None
            if able is None or node in able:
                machine_set = seated(
                    needs, domains, [domain.can_be_had(spared) for domain in domains]
                )
            if machine_set is None:
                heapq.heappop(progress.costs)
                continue
            key = self._key(machine_set, spared)
            if key <= before:
                return machine_set
            heapq.heapreplace(progress.costs, (key, node))
        return None

    def _anywhere(
        self, needs: Needs, sets: Sequence[Set], able: AbstractSet[str] | None
    ) -> Set | None:
        """A machine that is large enough, whoever has it; beside the sets that it has already."""
        mine = dict(_pins(sets))
        for node in sorted(self._nodes if able is None else able):
            domains = self._nodes[node]
            room = [d.size - mine.get((d.lot, d.name), 0) for d in domains]
            if machine_set := seated(needs, domains, room):
                return machine_set
        return None

    def _key(self, machine_set: Set, spared: str) -> int:
        return max(
            self._domains[at].key_to_displace(n, spared) for at, n in _pins([machine_set]).items()
        )


def seated(needs: Needs, domains: Sequence[_Domain], room: Sequence[int]) -> Set | None:
    """
    The domains of one machine for each need, given the room of each domain: the tightest that will
    do, tried one after the other. None when there is no way, or none was found within the limit of
    steps.
    """
    spare = list(room)
    order = sorted(range(len(domains)), key=lambda i: (spare[i], domains[i].lot, domains[i].name))
    steps = STEPS_MOST

    def place(blocks: tuple[tuple[str, int], ...], then: Callable[[], Set | None]) -> Set | None:
        """The blocks of one need, each in a domain of its lot."""
        nonlocal steps
        if not blocks:
            return then()
        (lot, size), *later = blocks
        tried: set[int] = set()
        for i in order:
            # Of domains with as much room, one stands for all.
            if domains[i].lot != lot or spare[i] < size or spare[i] in tried:
                continue
            steps -= 1
            if steps < 0:
                return None
            tried.add(spare[i])
            spare[i] -= size
            seats = place(tuple(later), then)
            spare[i] += size
            if seats is not None:
                return (DomainGpus(lot, domains[i].name, size), *seats)
        return None

    def from_need(at: int) -> Set | None:
        if at == len(needs):
            return ()
        need = needs[at]
        if isinstance(need, Loose):
            return loosely(need, at)
        for lot, block in need:
            blocks = tuple((lot, size) for size in sizes_of(block))
            seats = place(blocks, lambda: from_need(at + 1))
            if seats is not None:
                return seats
        return None

    def loosely(need: Loose, at: int) -> Set | None:
        """The best linked GPUs that leave the other needs what they need."""
        nonlocal steps
        for choice in gathered(need, domains, spare):
            steps -= 1
            if steps < 0:
                return None
            for i, gpus in choice:
                spare[i] -= gpus
            seats = from_need(at + 1)
            for i, gpus in choice:
                spare[i] += gpus
            if seats is not None:
                return (
                    *(DomainGpus(domains[i].lot, domains[i].name, n) for i, n in choice),
                    *seats,
                )
        if at + 1 == len(needs):
            return None  # what was gathered last was all there is
        return singly(need, at, need.gpus, 0)

    def singly(need: Loose, at: int, gpus: int, first: int) -> Set | None:
        """Every way to have so many GPUs of the domains from `first` on."""
        nonlocal steps
        if gpus == 0:
            return from_need(at + 1)
        for i in range(first, len(domains)):
            if domains[i].lot not in need.lots:
                continue
            for n in range(min(gpus, spare[i]), 0, -1):
                steps -= 1
                if steps < 0:
                    return None
                spare[i] -= n
                seats = singly(need, at, gpus - n, i + 1)
                spare[i] += n
                if seats is not None:
                    return (DomainGpus(domains[i].lot, domains[i].name, n), *seats)
        return None

    return from_need(0)


def _pins(sets: Sequence[Set]) -> dict[tuple[str, str], int]:
    """By lot and domain, how many GPUs of it."""
    pins: dict[tuple[str, str], int] = {}
    for lot, domain, gpus in (place for machine_set in sets for place in machine_set):
        pins[lot, domain] = pins.get((lot, domain), 0) + gpus
    return pins


def _of_sets(sets: Sequence[Set]) -> Joint:
    seats: dict[str, list[tuple[str, int]]] = {}
    for (lot, domain), gpus in sorted(_pins(sets).items()):
        seats.setdefault(lot, []).append((domain, gpus))
    needs = {lot: Block(0, seats=tuple(domain_gpus)) for lot, domain_gpus in seats.items()}
    return joint(needs, tuple(sets))
