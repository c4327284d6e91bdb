"""
A lot with running leases, cleared by `displacing`, and the prices there.

The price of a winner, or the price that a loser is told, is the least over the states of the round
without it: at each, what it must outrank and be worth more than to be served there, and ahead of
whoever came next. Of a loser, whose absence changes nothing, these are the round's own states. Of a
winner they are those of the round played again without it, from its turn on; the bids that its
agent has and does not win with must not make it pay more, so it pays the lesser of with and
without them. A lot plays only so many bids again (`ARRIVALS_MOST`), because that costs time: from
there on a winner pays what the states played so far show, which may be more than the least, and
never more than it bid.

The rent of a lease is the least with which it would keep its seat: what the bids that could not
have what is free would have given for it, alone or together, or the worth of a lease that they
displaced in its stead. Bids of its own agent lift nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property

from bidplane.core.devices.chain import Block
from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.displacement import FINE, Search, SeatedLeases, State, Worths
from bidplane.core.market.clearing.displacing import (
    Course,
    Crowd,
    Moment,
    Try,
    best_group,
    representatives,
    together,
)
from bidplane.core.market.clearing.greedy import Clearing, clear_bids
from bidplane.core.market.clearing.supply import seated, size_of
from bidplane.core.market.joint.capacity import Rooms

ARRIVALS_MOST = 500_000  # divided by the contestants
TRIED_MOST = 24  # in a lot with so few bids, a price is tried as well
STATES_MOST = 48  # of a round with more, prices look only at states near the one that decides
STATES_NEAR = 8
# So much looking at states for all prices of a lot, by the number of contestants; beyond, a price
# looks at the last state alone.
LOOKS_MOST = 4000
# So many attempts that a lease withstood are looked at for all rents of a lot, divided by the
# contestants; of each lease the highest ranked ones, and at least so many.
THREATS_MOST = 6_000_000
THREATS_LEAST = 3
_ENDLESS = 1 << 300


class Contested(Clearing):
    """The outcome for bids and running leases. Built by `clear`."""

    def __init__(self, start: Room, field: Iterable[Contestant]) -> None:
        ranked = sorted(field, key=lambda c: c.rank)
        leases = {c.id: c for c in ranked if c.is_lease}
        super().__init__(start, leases.values())
        self._bids = [c for c in ranked if not c.is_lease]
        self._sizes = Worths(lambda block: size_of(block, start), leases.values())
        self._sizes.with_places = isinstance(start, Rooms) or any(
            bid.block.is_pinned for bid in self._bids
        )
        room = seated(start, [lease.block for lease in leases.values()])
        self._course = Course(
            self._sizes, State(room, SeatedLeases(leases)), frozenset(self.own_leases)
        )
        for bid in self._bids:
            self._course.arrive(bid)
        self._course.end()
        state = self._course.state
        self.room = state.room
        self.takers = self._course.takers
        winners = {c.id for c in self._course.accepted} | state.seats.leases.keys()
        self.accepted = [c for c in ranked if c.id in winners]
        self.losers = [c for c in ranked if c.id not in winners]
        self._arrivals_left = ARRIVALS_MOST // max(1, len(ranked))
        self._looks_left = LOOKS_MOST
        self._look = 1 + len(ranked) // 16  # what one look costs
        threats = THREATS_MOST // max(1, len(ranked)) // max(1, len(leases))
        self._threats_most = max(THREATS_LEAST, threats)
        self._needs: dict[tuple[int, Block, str, bool], tuple[State, int | None]] = {}
        self._searches: dict[int, Search] = {}
        self._crowds: dict[int, Crowd] = {}

    def critical_price(self, winner: Contestant) -> int:
        return self._rent(winner) if winner.is_lease else self._paid[winner.id]

    def price_to_win(self, outsider: Contestant) -> int | None:
        price = self._least(outsider, self._course.moments)
        if price is None:
            return None
        if self._is_small:
            price = self._tried(outsider, self._without(outsider, frozenset()), price)
        return max(outsider.reserve, price)

    # Winners

    @cached_property
    def _paid(self) -> dict[str, int]:
        winners = [c for c in self.accepted if not c.is_lease]
        lowest = self._course.moments[0].state.seats.lowest_key
        if winners and (lowest is None or lowest >= self._bids[0].key):
            room = self._course.moments[0].state.room
            plain = clear_bids(room, self._bids)  # nobody can be displaced
            return {c.id: plain.critical_price(c) for c in winners}
        return self._shared({c.id: self._price(c) for c in winners}, winners)

    def _price(self, winner: Contestant) -> int:
        losers = {c.id for c in self.losers if c.is_of_agent(winner) and not c.is_lease}
        price = self._price_without(winner, frozenset())
        if losers and price > winner.reserve:
            price = min(price, self._price_without(winner, frozenset(losers)))
        return price

    def _price_without(self, winner: Contestant, siblings: frozenset[str]) -> int:
        """The least that wins if neither the winner nor these siblings were there."""
        moment = self._course.moments[self._course.arrivals[winner.id]]
        course = self._course.from_moment(moment)
        course.waiting = [bid for bid in course.waiting if bid.id not in siblings]
        at = self._place[winner.id]
        for bid in self._bids[at + 1 :]:
            if self._arrivals_left <= 0:
                break
            if bid.id not in siblings:
                self._arrivals_left -= 1
                course.arrive(bid)
        else:
            course.end()
        if not course.moments:  # at least it is ahead of whoever comes next
            following = self._bids[at + 1] if at + 1 < len(self._bids) else None
            course.moments.append(moment._replace(lead=following, is_alone=True))
        price = self._least(winner, course.moments)
        price = winner.price if price is None else min(price, winner.price)
        if self._is_small:
            price = self._tried(winner, self._without(winner, siblings), price)
        return max(winner.reserve, price)

    # By trying

    @property
    def _is_small(self) -> bool:
        """Return whether prices are tried too: with a group that forms later, some win for less."""
        return len(self._bids) <= TRIED_MOST and any(
            attempt.waiting_count for attempt in self._course.tries
        )

    def _without(self, outsider: Contestant, siblings: frozenset[str]) -> list[Contestant]:
        return [bid for bid in self._bids if bid.id != outsider.id and bid.id not in siblings]

    def _tried(self, outsider: Contestant, rivals: Sequence[Contestant], price: int) -> int:
        """The least price that wins among those rivals, given one that does."""
        if price <= outsider.reserve or not self._wins(outsider, rivals, price - 1):
            return price
        prices = range(outsider.reserve, price)
        return prices[bisect_left(prices, True, key=lambda p: self._wins(outsider, rivals, p))]

    def _wins(self, outsider: Contestant, rivals: Sequence[Contestant], price: int) -> bool:
        tried = outsider._replace(price=price)
        first = self._course.moments[0]
        course = self._course.from_moment(first)
        for bid in sorted([*rivals, tried], key=lambda c: c.rank):
            course.arrive(bid)
        return any(bid.id == outsider.id for bid in course.accepted)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {bid.id: n for n, bid in enumerate(self._bids)}

    def _shared(self, paid: dict[str, int], winners: Sequence[Contestant]) -> dict[str, int]:
        """
        The prices, raised where one agent's bids displaced more together than they would pay: the
        cheapest first, none above its bid.
        """
        by_agent: dict[str, list[Contestant]] = {}
        for winner in winners:
            if winner.agent:
                by_agent.setdefault(winner.agent, []).append(winner)
        for bids in by_agent.values():
            missing = self._displaced_by(bids) - sum(
                paid[bid.id] * bid.weight * self._sizes.size(bid) for bid in bids
            )
            if len(bids) < 2 or missing <= 0:
                continue
            self._raise(paid, bids, missing)
        return paid

    def _displaced_by(self, bids: Iterable[Contestant]) -> Fraction:
        """The worth that bids displaced; of a seat that they share with others, their part."""
        mine, total = {bid.id for bid in bids}, Fraction(0)
        leases = {c.id: c for c in self.losers if c.is_lease}
        for lease, sizes in self.takers.items():
            part = sum(size for bid, size in sizes.items() if bid in mine)
            worth = leases[lease].key * self._sizes.size(leases[lease])
            total += Fraction(worth * part, sum(sizes.values()))
        return total

    def _raise(self, paid: dict[str, int], bids: list[Contestant], missing: Fraction) -> None:
        """Raise the lowest keys to one level, as far as the bids allow."""

        def total(level: int) -> int:
            return sum(
                (self._at_level(paid[bid.id], bid, level) - paid[bid.id])
                * bid.weight * self._sizes.size(bid)
                for bid in bids
            )  # fmt: skip

        low, high = 0, max(bid.key for bid in bids)
        while low < high:
            middle = (low + high) // 2
            if total(middle) >= missing:
                high = middle
            else:
                low = middle + 1
        for bid in bids:
            paid[bid.id] = self._at_level(paid[bid.id], bid, low)

    @staticmethod
    def _at_level(price: int, bid: Contestant, level: int) -> int:
        return max(price, min(bid.price, -(-level // bid.weight)))

    # The least price that wins

    def _least(self, outsider: Contestant, moments: Sequence[Moment]) -> int | None:
        best: int | None = None
        for moment in self._looked_at(outsider, moments):
            ahead = 0 if moment.lead is None else outsider.price_ahead_of(moment.lead)
            own = moment.lead is not None and moment.lead.id == outsider.id
            if own or (best is not None and ahead >= best):
                continue
            key = self._need(outsider, moment.state)
            if key is not None:
                price = max(ahead, -(-key // outsider.weight))
                best = price if best is None else min(best, price)
            if (best is not None and ahead >= best) or self._looks_left <= 0:
                continue
            limit = _ENDLESS if best is None else best * outsider.weight
            key = self._need_in_group(outsider, moment, limit)
            if key is not None:
                price = max(ahead, -(-key // outsider.weight))
                best = price if best is None else min(best, price)
            if (best is None or ahead < best) and self._joins(outsider, moment, ahead):
                best = ahead
        return best

    def _looked_at(self, outsider: Contestant, moments: Sequence[Moment]) -> list[Moment]:
        """
        The moments to look at, the last first: of many states those around the one from which on
        being served costs more than being ahead of whoever comes next.
        """
        if self._looks_left <= 0:
            return [moments[-1]]
        last: dict[int, int] = {id(moment.state): n for n, moment in enumerate(moments)}
        states = list(last.values())
        if len(states) <= STATES_MOST:
            return list(reversed(moments))

        def is_late(n: int) -> bool:
            moment = moments[n]
            if moment.lead is None:
                return True
            key = self._need(outsider, moment.state)
            return key is None or key > outsider.price_ahead_of(moment.lead) * outsider.weight

        at = bisect_left(states, True, key=is_late)
        near = states[max(0, at - STATES_NEAR) : at + STATES_NEAR]
        return [moments[n] for n in reversed([*near, len(moments) - 1])]

    def _joins(self, outsider: Contestant, moment: Moment, price: int) -> bool:
        """Return whether whose turn it is would take a seat together with the outsider."""
        lead, state = moment.lead, moment.state
        lowest = state.seats.lowest_key
        if lead is None or lowest is None or lowest >= lead.key or moment.is_alone:
            return False
        ahead = outsider._replace(price=price)
        bids = [*(bid for bid in moment.waited if bid.id != outsider.id), ahead, lead]
        group = best_group(self._sizes, state, bids)
        return group is not None and ahead in group.bids

    def _need(self, outsider: Contestant, state: State) -> int | None:
        """The least key that is served at a state; None if none is."""
        agent = outsider.agent if outsider.agent in self.own_leases else ""
        kind = id(state), outsider.block, agent, outsider.urgent
        if kind not in self._needs:
            self._looks_left -= self._look
            self._needs[kind] = state, self._find_need(outsider, state)
        return self._needs[kind][1]

    def _find_need(self, outsider: Contestant, state: State) -> int | None:
        free = self._need_for_free(outsider.block, state)
        if free == 0:
            return 0
        size = self._sizes.size(outsider)
        leases = state.seats.leases.values()
        able = {lease.key for lease in leases if not outsider.spares(lease)}
        steps = sorted({0, *able, *(closure.key for closure in state.closures)})

        def worth(n: int) -> int:
            """The least that must be displaced, had it a key just above the n-th step."""
            search = Search(self._sizes, state, outsider, steps[n] + 1)
            chosen = search.least_worth(_ENDLESS)
            return _ENDLESS if chosen is None else chosen[0]

        def suffices(n: int) -> bool:
            return n + 1 == len(steps) or worth(n) // (size * FINE) + 1 <= steps[n + 1]

        n = bisect_left(range(len(steps)), True, key=suffices)
        displaced = worth(n)
        if displaced >= _ENDLESS:
            return free
        alone = max(steps[n] + 1, displaced // (size * FINE) + 1)
        return alone if free is None else min(free, alone)

    @staticmethod
    def _need_for_free(block: Block, state: State) -> int | None:
        """The least key that has what is free; None if it is too little."""
        if not state.room.fits(block):
            return None
        keys = sorted({closure.key for closure in state.closures})
        n = bisect_left(range(len(keys)), True, key=lambda n: state.fits(block, keys[n]))
        # It fits beside the closures from the n-th up, and needs to outrank those below.
        return keys[n - 1] + 1 if n else 0

    def _need_in_group(self, outsider: Contestant, moment: Moment, limit: int) -> int | None:
        """The least key below `limit` that shares a seat with those that wait above it."""
        waited = [bid for bid in moment.waited if bid.id != outsider.id]
        if not waited:
            return None
        self._looks_left -= self._look
        crowd = Crowd([*waited, outsider])
        size_of_all = sum(map(self._sizes.size, crowd.bids))
        best: int | None = None
        for lease in representatives(self._sizes, moment.state, crowd):
            least = self._sizes.worth(lease) // (size_of_all * FINE) + 1
            if max(lease.key + 1, least) >= limit or waited[0].key < max(lease.key + 1, least):
                continue
            if not outsider.spares(lease):
                need = self._need_beside(outsider, waited, lease, moment.state)
                if need is not None and need < limit:
                    best = limit = need
        return best

    def _need_beside(
        self,
        outsider: Contestant,
        waited: Sequence[Contestant],
        lease: Contestant,
        state: State,
    ) -> int | None:
        """The least key that takes a lease's seat together with those that wait."""
        closed = {c.key for c in state.closures if c.key > lease.key}
        keys = sorted({lease.key, *closed})

        def needed(n: int) -> int | None:
            """The least key above the n-th with which the group as it is then is worth enough."""
            tried = outsider._replace(price=keys[n] + 1, weight=1)
            members = together(state, lease, Crowd([*waited, tried]))
            if tried not in members or len(members) < 2:
                return None
            size = sum(map(self._sizes.size, members))
            least = self._sizes.worth(lease) // (size * FINE) + 1
            if any(member.key < least for member in members if member is not tried):
                return None
            return max(keys[n] + 1, least)

        # The higher its key, the less is closed to it.
        first = bisect_left(range(len(keys)), True, key=lambda n: needed(n) is not None)
        options = (needed(n) for n in range(first, min(len(keys), first + 2)))
        return min((key for key in options if key is not None), default=None)

    # Rents

    def _rent(self, lease: Contestant) -> int:
        size = self._sizes.size(lease)
        worth, looked_at = 0, 0
        for attempt in self._tries:
            if attempt.bid.key * size <= worth or looked_at >= self._threats_most:
                break
            if not attempt.bid.is_of_agent(lease):
                looked_at += 1
                worth = max(worth, self._threat(lease, attempt, worth))
        price = -(-worth // (lease.weight * size))
        return max(lease.reserve, min(price, lease.price))

    @cached_property
    def _tries(self) -> list[Try]:
        return sorted(self._course.tries, key=lambda t: -t.bid.key)

    def _threat(self, lease: Contestant, attempt: Try, worth: int) -> int:
        """
        The worth below which the lease would have been displaced by an attempt; 0 if not above
        `worth`.
        """
        bid, digit = attempt.bid, self._sizes.digit[lease.id]
        most = bid.key * self._sizes.size(lease)
        if not attempt.waiting_count:
            search = self._searches.get(id(attempt))
            if search is None:
                search = Search(self._sizes, attempt.state, bid, bid.key)
                self._searches[id(attempt)] = search
            rest = search.least_worth(attempt.limit - worth * FINE, (lease,))
            return 0 if rest is None else min(most, -((digit + rest[0] - attempt.limit) // FINE))
        crowd = self._crowds.get(id(attempt))
        if crowd is None:
            crowd = self._crowds[id(attempt)] = Crowd([*attempt.waited, bid])
        members = together(attempt.state, lease._replace(price=0), crowd, without=lease.agent)
        if bid not in members:
            return 0
        size = sum(map(self._sizes.size, members))
        offered = min(member.key for member in members) * size * FINE
        if attempt.share is not None:
            offered = min(offered, -(-attempt.share * size // 1))
        return min(most, -((digit - offered) // FINE))


def clear(start: Room, contestants: Iterable[Contestant]) -> Clearing:
    """Clear a lot, or lots together. `start`: with none of the contestants placed."""
    field = list(contestants)
    if any(c.is_lease for c in field):
        return Contested(start, field)
    return clear_bids(start, field)
