"""
The winners of a lot and their prices: greedy with skip, critical prices.

Contestants are taken in the order of their key (price × weight). Each is accepted if it
fits beside those accepted before it, else it is rejected and the next is tried.

A winner pays its *critical price*: the least it could have bid and still won. Let e be
a contestant rejected after winner i, and A the accepted set that e met. If A − i + e
fits, then without i, e would have got in; and with e in, i no longer fits, because
A + e did not. So i must stay ahead of the first such e, and of no other: the ones
before it would be rejected without i too. This needs nothing of `Room` but that every
subset of a fitting set fits.

One agent's bids and leases do not compete with each other:

* A bid must fit beside those leases of its own agent that still have room, unless it is more
  urgent than they are. Where an own lease keeps it out, it is tried again, the highest ranked
  first, after each later acceptance: that one may have displaced the own lease. So a bid has
  the same chances at a higher price, and more; offering more never loses.
* Where an accepted bid, an own lease and a lower ranked lease of a stranger do not all fit, the
  stranger's lease yields, though it outranks the own lease: the bid takes the place of what it
  outranks and does not spare. The own lease may still lose to a stranger's bid, or to a lease
  beside which it would not fit without its agent's bid either.
* A rejected bid of i's own agent is not one that i must stay ahead of. A rejected bid changes
  nothing for others, so this is i's critical price in the round without that bid.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.model import ONE


class Contestant(NamedTuple):
    """A bid or a running lease, as clearing sees it."""

    id: str
    block: Block
    price: int
    weight: int
    tie: int
    reserve: int  # the least it may be charged
    agent: str = ""  # whose leases it spares, and whose bids do not lift its price
    is_lease: bool = False
    urgent: bool = False

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

    def is_of_agent(self, other: Contestant) -> bool:
        return bool(self.agent) and self.agent == other.agent

    def spares(self, lease: Contestant) -> bool:
        """
        Return True if this bid may not displace the lease: it is of its own agent, and no less
        urgent.
        """
        return self.is_of_agent(lease) and self.urgent <= lease.urgent


class _Seen:
    """The rivals, up to some position, who would fit if a winner with a certain block left."""

    def __init__(self) -> None:
        self.let_in: list[int] = []
        self.fits: list[bool] = []  # of each rival that was looked at


# Rivals with one block that met the same: the first, and the first of another agent. Of a third
# nobody is asked, since a winner is of one agent.
_AGENTS_PER_BLOCK = 2

# Where an agent has lost a lease and won with a bid, who yields depends on who else is there. Among
# so many contestants at most, prices are found by clearing again; beyond, by the rule above, which
# may ask for more than the least that wins, up to the bid.
_CLEARED_AGAIN_MOST = 32
# Among more contestants nobody yields, because the search takes too long (over 60 s for 1,000): a
# bid that would cost its own agent a lease waits.
_GUARDED_MOST = 128


class Clearing:
    """The outcome for one lot. Built by `clear`; asks what-if questions of itself."""

    _withheld: frozenset[str] = frozenset()  # bids that wait so that their agents' leases stay

    def __init__(
        self, start: Room, field: Iterable[Contestant] = (), guarded: frozenset[str] = frozenset()
    ) -> None:
        """`guarded`: the agents whose leases others may have to yield to."""
        self._start = start
        self._guarded = guarded
        self._yielded: dict[str, str] = {}  # by rejected lease, the agent it yielded to
        self.room = start  # what is left after everybody accepted
        # In the order of acceptance: of rank, but for bids that an own lease kept out at first.
        self.accepted: list[Contestant] = []
        self.after: list[Room] = []  # what was left after each of them, if it was recorded
        self.losers: list[Contestant] = []  # in rank order
        # The rejected with what each met; of those with one block that met the same, only two.
        self._rivals: list[tuple[Contestant, Room]] = []
        self._first_alike: list[int] = []  # of each rival, the first with its block and room
        # For what is left now: the first rival with the block, and the agents recorded.
        self._too_large: dict[Block, tuple[int, set[str]]] = {}
        self._let_in: dict[Block, _Seen] = {}
        # By id, of each accepted one: its place among them, and how many rivals there were before.
        self._place: dict[str, int] = {}
        self._rivals_before: dict[str, int] = {}
        # Those accepted late, with the one whose acceptance pushed out the lease they waited for.
        self._late: dict[str, Contestant] = {}
        # Bids that fit, but for an own lease; leases that fit, but yielded to another agent's.
        self._behind_own: list[Contestant] = []
        self._last_chance: dict[tuple[Block, str, bool], int | None] = {}
        self.own_leases: dict[str, list[Contestant]] = {}  # by agent, in rank order
        for lease in sorted((c for c in field if c.is_lease and c.agent), key=lambda c: c.rank):
            self.own_leases.setdefault(lease.agent, []).append(lease)

    # Who wins

    def consider(self, contestant: Contestant) -> None:
        """Accept the next in rank order, or reject it."""
        block = contestant.block
        if block in self._too_large or not self.room.fits(block):
            self._reject(contestant)
        elif not self._fits_beside_own(contestant, self.room):
            self._behind_own.append(contestant)
            self.losers.append(contestant)
            self._first_alike.append(len(self._rivals))
            self._rivals.append((contestant, self._with_own(contestant, self.room)))
        elif owner := self._yields_to(contestant):
            self._yielded[contestant.id] = owner
            self._behind_own.append(contestant)
            self.losers.append(contestant)
            self._first_alike.append(len(self._rivals))
            self._rivals.append((contestant, self._with_all_of(owner)))
        else:
            self._accept(contestant)
            self._reconsider(contestant)

    def _accept(self, contestant: Contestant) -> None:
        self._place[contestant.id] = len(self.accepted)
        self._rivals_before[contestant.id] = len(self._rivals)
        self.accepted.append(contestant)
        self.room = self.room.take(contestant.block)
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
            self._rivals.append((loser, self.room))

    def _reconsider(self, trigger: Contestant) -> None:
        """Accept those who waited for a lease that has no more room, now that `trigger` is in."""
        again = True
        while again and self._behind_own:
            again = False
            self._behind_own = [c for c in self._behind_own if self.room.fits(c.block)]
            for waiting in self._behind_own:
                if self._fits_beside_own(waiting, self.room) and not self._yields_to(waiting):
                    self._behind_own.remove(waiting)
                    self.losers.remove(waiting)
                    self._yielded.pop(waiting.id, None)
                    self._late[waiting.id] = trigger
                    self._accept(waiting)
                    again = True
                    break

    def _fits_beside_own(self, bid: Contestant, room: Room, until: int | None = None) -> bool:
        """Return True if a bid fits `room` beside its agent's leases; see `_with_own`."""
        if bid.is_lease or bid.agent not in self.own_leases:
            return room.fits(bid.block)
        return self._with_own(bid, room, until).fits(bid.block)

    def _with_own(self, bid: Contestant, room: Room, until: int | None = None) -> Room:
        """
        `room` less those leases that the bid spares and that still have room there. `until`: how
        many of the accepted are in `room`, if not all so far.
        """
        until = len(self.accepted) if until is None else until
        for lease in self.own_leases.get(bid.agent, ()):
            if not bid.spares(lease) or self._place.get(lease.id, until) < until:
                continue
            if room.fits(lease.block):
                room = room.take(lease.block)
        return room

    def _yields_to(self, lease: Contestant) -> str:
        """The guarded agent that would lose a lease by its own bid if `lease` stayed; or none."""
        for agent in sorted(self._guarded - {lease.agent}) if lease.is_lease else ():
            before, after, beside = self.room, self.room.take(lease.block), [lease]
            for own in self._pending(agent):
                if not before.fits(own.block):
                    continue
                before = before.take(own.block)
                if after.fits(own.block):
                    after = after.take(own.block)
                    beside.append(own)
                elif self._is_own_fault(own, beside):
                    return agent
        return ""

    def _pending(self, agent: str) -> list[Contestant]:
        """Its leases that are not accepted yet; what spares a later one spares those before it."""
        own = [c for c in self.own_leases[agent] if c.id not in self._place]
        return sorted(own, key=lambda c: not c.urgent)

    def _with_all_of(self, agent: str) -> Room:
        room = self.room
        for lease in self._pending(agent):
            if room.fits(lease.block):
                room = room.take(lease.block)
        return room

    def _is_own_fault(self, own: Contestant, beside: Sequence[Contestant]) -> bool:
        """Return whether the first bid that leaves `own` no room beside those leases spares it."""
        room, bids = self.room, [c for c in self.accepted if not c.is_lease]
        for bid in bids:
            room = room.give(bid.block)
        for lease in (*beside, own):
            room = room.take(lease.block)
        for bid in bids:
            if not room.fits(bid.block):
                return bid.spares(own)
            room = room.take(bid.block)
        return False

    def agents_with_lost_leases(self) -> frozenset[str]:
        """The agents that won with a bid and lost a lease which that bid spares."""
        return frozenset(bid.agent for bid in self.bids_beside_lost_leases())

    def bids_beside_lost_leases(self) -> list[Contestant]:
        """The accepted bids whose agents lost a lease that the bid spares."""
        lost: dict[str, list[Contestant]] = {}
        for lease in self.losers:
            if lease.is_lease and lease.agent:
                lost.setdefault(lease.agent, []).append(lease)
        return [
            bid
            for bid in self.accepted
            if not bid.is_lease and any(bid.spares(lease) for lease in lost.get(bid.agent, ()))
        ]

    def withhold(self, bids: Iterable[Contestant]) -> None:
        """Count bids that took no part, to spare their agents' leases, among the losers."""
        for bid in bids:
            self._withheld |= {bid.id}
            insort(self.losers, bid, key=lambda c: c.rank)

    # What winners pay

    def critical_price(self, winner: Contestant) -> int:
        """The least `winner` could have bid and still won; never below its reserve."""
        if self._guarded and len(self.accepted) + len(self.losers) <= _CLEARED_AGAIN_MOST:
            return self._price_by_clearing_again(winner)
        rival = self._rival_of(winner)
        if rival is None:
            return winner.reserve
        return max(winner.reserve, winner.price_ahead_of(rival))

    def _price_by_clearing_again(self, winner: Contestant) -> int:
        rivals = [c for c in self.losers if not c.is_of_agent(winner)]
        others = [c for c in (*self.accepted, *rivals) if c.id != winner.id]

        def wins_at(price: int) -> bool:
            tried = clear(self._start, [*others, winner._replace(price=price)])
            return winner.id in tried._place

        prices = {winner.price_ahead_of(c) for c in others if c.rank > winner.rank}
        tries = sorted({p for p in prices if winner.reserve < p < winner.price} | {winner.reserve})
        least = bisect_left(tries, True, key=wins_at)
        return tries[least] if least < len(tries) else winner.price

    def _rival_of(self, winner: Contestant) -> Contestant | None:
        """The first rejected after it, of another agent, who would have got in without it."""
        first = self._rivals_before[winner.id]
        if winner.block.is_pinned:  # what it gives back depends on what its domain has by then
            fits: dict[int, bool] = {}
            for at in range(first, len(self._rivals)):
                rival, met = self._rivals[at]
                representative = self._first_alike[at]
                if representative not in fits:
                    fits[representative] = met.fits_without(winner.block, rival.block)
                if fits[representative] and self._lifts(rival, winner):
                    return rival
            return None
        # Of one that may be anywhere it depends on its block alone: who gets in is kept by block.
        for at in self._let_in_without(winner.block, first):
            rival = self._rivals[at][0]
            if self._lifts(rival, winner):
                return rival
        return None

    def _lifts(self, rival: Contestant, winner: Contestant) -> bool:
        if winner.is_lease and winner.agent and winner.agent == self._yielded.get(rival.id):
            return False
        return not rival.is_of_agent(winner) and rival.id not in self._late

    def _let_in_without(self, block: Block, first: int) -> Iterator[int]:
        """Positions of rivals, from `first` on, who would get in if somebody with `block` left."""
        examined = self._let_in.setdefault(block, _Seen())
        at = bisect_left(examined.let_in, first)
        while True:
            while at == len(examined.let_in) and len(examined.fits) < len(self._rivals):
                position = len(examined.fits)
                rival, met = self._rivals[position]
                representative = self._first_alike[position]
                fits = (
                    examined.fits[representative]
                    if representative < position
                    else met.fits_without(block, rival.block)
                )
                examined.fits.append(fits)
                if fits:
                    examined.let_in.append(position)
                    at += position < first
            if at == len(examined.let_in):
                return
            yield examined.let_in[at]
            at += 1

    # What a loser would have had to bid

    def price_to_win(self, outsider: Contestant) -> int | None:
        """The least that `outsider`, which is not accepted, would have won with."""
        if outsider.id in self._withheld:
            return None
        key = outsider.block, self._agent_key(outsider), outsider.urgent
        if key not in self._last_chance:
            self._last_chance[key] = self._latest_place(outsider)
        place = self._last_chance[key]
        if place is None:
            return None
        if place == len(self.accepted):
            return outsider.reserve  # it fits beside all: only its reserve kept it out
        winner = self.accepted[place]
        trigger = self._late.get(winner.id)
        if trigger is not None and not self._waits_for(trigger, outsider, place):
            # A late winner is accepted together with its trigger: `outsider` must come before.
            winner = trigger
        return max(outsider.reserve, outsider.price_ahead_of(winner))

    def _waits_for(self, trigger: Contestant, outsider: Contestant, place: int) -> bool:
        """
        Return whether `outsider` too would be accepted late, by `trigger`. Late ones are taken in
        the order of rank, so that it need only outrank the late winner.
        """
        at = self._place[trigger.id]
        return at < place and not self._fits_at(outsider, at)

    def _agent_key(self, outsider: Contestant) -> str:
        return outsider.agent if outsider.agent in self.own_leases else ""

    def _latest_place(self, outsider: Contestant) -> int | None:
        """The latest place among the accepted at which `outsider` still fits; None if at none."""
        if not self._start.fits(outsider.block):
            return None
        latest = self._places_before_full(outsider.block)
        own = [c for c in self.own_leases.get(outsider.agent, ()) if outsider.spares(c)]
        if not own:
            return latest
        if all(lease.id in self._place for lease in own):
            # They stay wherever it comes: what does not fit at one place, does not at a later.
            if not self._fits_at(outsider, 0):
                return None
            if self._fits_at(outsider, latest):
                return latest
            return (
                bisect_left(range(latest), True, key=lambda n: not self._fits_at(outsider, n)) - 1
            )
        for place in range(latest, -1, -1):
            if self._fits_at(outsider, place):
                return place
        return None

    def _fits_at(self, outsider: Contestant, place: int) -> bool:
        """Return True if `outsider` would have been accepted after the first `place` winners."""
        rooms = self.after
        room = rooms[place - 1] if place else self._start
        return self._fits_beside_own(outsider, room, place)

    def _places_before_full(self, block: Block) -> int:
        """The number of winners that are accepted before `block` no longer fits."""
        # What does not fit after one winner does not after the next either.
        return bisect_left(self.after, True, key=lambda room: not room.fits(block))

    def own_in_the_way(self, outsider: Contestant) -> tuple[str, ...]:
        """Leases of its own agent that keep a bid out which no price lets win."""
        if not self._start.fits(outsider.block) or self.price_to_win(outsider) is not None:
            return ()
        if outsider.id in self._withheld:
            own = self.own_leases[outsider.agent]
            return tuple(lease.id for lease in own if outsider.spares(lease))
        room, blocking = self._start.take(outsider.block), []
        for lease in self.own_leases[outsider.agent]:
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


def clear(start: Room, contestants: Iterable[Contestant]) -> Clearing:
    """Clear a lot. `start`: the room that the contestants compete for, with none of them placed."""
    field = sorted(contestants, key=lambda c: c.rank)
    if len(field) > _GUARDED_MOST:
        return _clear_many(start, field)
    guarded: frozenset[str] = frozenset()
    while True:
        result = _considered(start, field, guarded)
        # Nobody can have to yield to an agent whose leases all stay: most rounds guard none.
        lost = result.agents_with_lost_leases()
        if lost <= guarded:
            return result
        guarded |= lost


def _considered(
    start: Room, field: Iterable[Contestant], guarded: frozenset[str] = frozenset()
) -> Clearing:
    result = Clearing(start, field, guarded)
    for contestant in field:
        result.consider(contestant)
    return result


def _clear_many(start: Room, field: list[Contestant]) -> Clearing:
    """
    Clear a lot in which nobody yields, because finding out who must would take too long. A bid
    that would cost its own agent a lease waits instead, as one whose own lease is in the way.
    """
    withheld: dict[str, Contestant] = {}
    harmless: set[str] = set()  # bids without which their agent's leases would be lost, too
    while True:
        result = _considered(start, [c for c in field if c.id not in withheld])
        suspects = {c.id: c for c in result.bids_beside_lost_leases() if c.id not in harmless}
        if not suspects:
            result.withhold(withheld.values())
            return result
        without = _considered(
            start, [c for c in field if c.id not in withheld and c.id not in suspects]
        )
        lost = {c.id for c in without.losers if c.is_lease}
        saved = {c.agent for c in result.losers if c.is_lease and c.id not in lost}
        guilty = {id: bid for id, bid in suspects.items() if bid.agent in saved}
        withheld |= guilty
        harmless |= suspects.keys() - guilty.keys()
