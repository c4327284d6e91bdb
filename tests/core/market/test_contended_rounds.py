"""
Random contended markets, held against an oracle that imports nothing of the market: it packs by
trying every domain, and clears by following the rules of docs/market-rules.md one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple
from unittest import mock

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bidplane.api.bid import BidReason
from bidplane.core.market import Ask, Domain, Incumbent, Lot, RoundInput, RoundResult, clear_round
from bidplane.core.market.clearing import greedy as clearing

BASE = 100
WEIGHTS = (1024, 1024, 1100, 1280, 1536)


class Party(NamedTuple):
    """A bid, or a lease in its domain."""

    id: str
    agent: str
    owner: str
    size: int
    price: int
    weight: int
    tie: int
    money: int  # of a bid what it holds, of a lease what it is owed
    domain: int = -1
    urgent: bool = False

    @property
    def rank(self) -> tuple[int, int, str]:
        return (-self.price * self.weight, self.tie, self.id)


class World(NamedTuple):
    domains: tuple[int, ...]
    bids: tuple[Party, ...]
    leases: tuple[Party, ...]
    wallets: dict[str, int]


class Outcome(NamedTuple):
    won: dict[str, int]  # by bid, what it pays for leases that it displaces
    gone: dict[str, str]  # by displaced lease, who pays
    poor: frozenset[str]


# The oracle


@lru_cache(maxsize=200_000)
def packs(free: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    if not sizes:
        return True
    return any(
        room >= sizes[0]
        and packs(tuple(sorted((*free[:i], room - sizes[0], *free[i + 1 :]))), sizes[1:])
        for i, room in enumerate(free)
    )


def fits(world: World, parties: Iterable[Party]) -> bool:
    free, sizes = list(world.domains), []
    for party in parties:
        if party.domain >= 0:
            free[party.domain] -= party.size
        else:
            sizes.append(party.size)
    if min(free) < 0:
        return False
    return packs(tuple(sorted(free)), tuple(sorted(sizes, reverse=True)))


def spares(bid: Party, lease: Party) -> bool:
    return bid.agent == lease.agent and bid.urgent <= lease.urgent


def fits_beside_own(world: World, inside: list[Party], bid: Party) -> bool:
    beside = list(inside)
    for lease in sorted(world.leases, key=lambda lease: lease.rank):
        if spares(bid, lease) and lease not in beside and fits(world, [*beside, lease]):
            beside.append(lease)
    return fits(world, [*beside, bid])


def yields(world: World, inside: list[Party], lease: Party) -> bool:
    """Whether a bid of another agent would push out a lease of its own if `lease` stayed."""
    bids = [party for party in inside if party.domain < 0]
    kept = [party for party in inside if party.domain >= 0]
    for agent in {bid.agent for bid in bids} - {lease.agent}:
        own = [other for other in world.leases if other.agent == agent and other not in inside]
        seated: list[Party] = []
        beside = [lease]
        for mine in sorted(own, key=lambda party: (not party.urgent, party.rank)):
            if not fits(world, [*inside, *seated, mine]):
                continue
            seated.append(mine)
            if fits(world, [*inside, *beside, mine]):
                beside.append(mine)
                continue
            tight = (
                bid
                for n, bid in enumerate(bids)
                if not fits(world, [*kept, *beside, mine, *bids[: n + 1]])
            )
            if spares(next(tight), mine):
                return True
    return False


def greedy(world: World, out: set[str]) -> list[Party]:
    """Who is accepted, in that order; `out`: bids that take no part."""
    inside: list[Party] = []
    waiting: list[Party] = []
    bids = [bid for bid in world.bids if bid.id not in out and bid.price >= BASE]
    for party in sorted([*bids, *world.leases], key=lambda party: party.rank):
        if not fits(world, [*inside, party]):
            continue
        if not may_enter(world, inside, party):
            waiting.append(party)
            continue
        inside.append(party)
        again = True
        while again:
            again = False
            for late in waiting:
                if fits(world, [*inside, late]) and may_enter(world, inside, late):
                    waiting.remove(late)
                    inside.append(late)
                    again = True
                    break
    return inside


def may_enter(world: World, inside: list[Party], party: Party) -> bool:
    if party.domain < 0:
        return fits_beside_own(world, inside, party)
    return not yields(world, inside, party)


def who_pays(world: World, inside: list[Party]) -> dict[str, str]:
    """By displaced lease, the bid after which it had no seat."""
    seated = [lease for lease in world.leases if lease not in inside]
    stay = [lease for lease in world.leases if lease in inside]
    payers: dict[str, str] = {}
    bids: list[Party] = []
    for bid in (party for party in inside if party.domain < 0):
        bids.append(bid)
        if fits(world, [*stay, *bids, *seated]):
            continue
        # Those it spares leave last and return first; the others by rank.
        spared = [lease for lease in seated if spares(bid, lease)]
        others = [lease for lease in seated if lease not in spared]
        order = sorted(spared, key=attrgetter("rank")) + sorted(others, key=attrgetter("rank"))
        left = list(order)
        while left and not fits(world, [*stay, *bids, *left]):
            left.pop()
        for lease in order[len(left) :]:
            if fits(world, [*stay, *bids, *left, lease]):
                left.append(lease)
            else:
                payers[lease.id] = bid.id
        seated = left
    return payers


def oracle(world: World) -> Outcome:
    out = {bid.id for bid in world.bids if bid.money > world.wallets[bid.agent]}
    while True:
        inside = greedy(world, out)
        payers = who_pays(world, inside)
        leases = {lease.id: lease for lease in world.leases}
        left, won, short = dict(world.wallets), {}, ""
        for bid in sorted((p for p in inside if p.domain < 0), key=lambda bid: bid.rank):
            won[bid.id] = sum(
                leases[lease].money
                for lease, payer in payers.items()
                if payer == bid.id and leases[lease].owner != bid.owner
            )
            if bid.money + won[bid.id] > left[bid.agent]:
                short = bid.id
                break
            left[bid.agent] -= bid.money + won[bid.id]
        if not short:
            gone = {lease.id for lease in world.leases if lease not in inside}
            assert gone == set(payers), "somebody left, and nobody pays for it"
            poor = frozenset(o for o in out if _by_id(world, o).price >= BASE)
            return Outcome(won, payers, poor)
        out.add(short)


def _by_id(world: World, id: str) -> Party:
    return next(bid for bid in world.bids if bid.id == id)


def at_price(world: World, id: str, price: int, wallet: int | None = None) -> World:
    bid = _by_id(world, id)
    bids = tuple(b._replace(price=price) if b.id == id else b for b in world.bids)
    wallets = world.wallets if wallet is None else {**world.wallets, bid.agent: wallet}
    return world._replace(bids=bids, wallets=wallets)


# The market that is judged


def played(world: World, *, is_exact: bool = False) -> RoundResult:
    devices = {d: [f"{d}/{n}" for n in range(size)] for d, size in enumerate(world.domains)}
    leases = []
    for lease in world.leases:
        mine = tuple(devices[lease.domain].pop() for _ in range(lease.size))
        leases.append(
            Incumbent(
                id=lease.id,
                agent=lease.agent,
                owner=lease.owner,
                lot="a",
                domain=f"d{lease.domain}",
                devices=mine,
                price=lease.price,
                weight=lease.weight,
                reserve=1,
                compensation=lease.money,
                tie=lease.tie,
                urgent=lease.urgent,
            )
        )
    domains = tuple(
        Domain(name=f"d{d}", size=size, free=tuple(devices[d]))
        for d, size in enumerate(world.domains)
    )
    asks = tuple(
        Ask(
            id=bid.id,
            agent=bid.agent,
            owner=bid.owner,
            gpus=bid.size,
            price=bid.price,
            weight=bid.weight,
            tie=bid.tie,
            lot="a",
            hold={"a": bid.money},
            urgent=bid.urgent,
        )
        for bid in world.bids
    )
    return clear_round(
        RoundInput(
            at=0,
            lots=(Lot(name="a", base=BASE, posted=BASE, domains=domains, exact=is_exact),),
            asks=asks,
            incumbents=tuple(leases),
            available=dict(world.wallets),
        )
    )


OWNERS = {"x": "p", "y": "p", "z": "q", "w": "r"}


@st.composite
def worlds(draw: st.DrawFn, *, rich: bool = False) -> World:
    """Full, or nearly: few GPUs are free, and more is bid for than there is."""
    domains = draw(st.sampled_from([(8,), (4, 4), (8, 4), (4, 2, 2), (2, 2, 2), (3, 1), (1, 1)]))
    leases: list[Party] = []
    for d, size in enumerate(domains):
        left = size
        while left and draw(st.integers(0, 5)):
            gpus = draw(st.sampled_from([s for s in (1, 2, 4, 8) if s <= left]))
            left -= gpus
            agent = draw(st.sampled_from(sorted(OWNERS)))
            leases.append(
                Party(
                    f"lease-{len(leases)}",
                    agent,
                    OWNERS[agent],
                    gpus,
                    BASE * draw(st.integers(1, 9)),
                    draw(st.sampled_from(WEIGHTS)),
                    len(leases),
                    draw(st.integers(0, 60)),
                    d,
                    draw(st.integers(0, 6)) == 0,
                )
            )
    bids = []
    # Half of the time two agents have all bids: several each, beside several leases.
    bidders = draw(st.sampled_from([sorted(OWNERS), ["x", "z"]]))
    for n in range(draw(st.integers(1, 6))):
        agent = draw(st.sampled_from(bidders))
        sizes = [s for s in (1, 1, 2, 4, 8) if s <= max(domains)]
        bids.append(
            Party(
                f"bid-{n}",
                agent,
                OWNERS[agent],
                draw(st.sampled_from(sizes)),
                BASE * draw(st.integers(1, 14)),
                draw(st.sampled_from(WEIGHTS[:3])),
                100 + n,
                draw(st.integers(1, 60)),
                urgent=draw(st.integers(0, 6)) == 0,
            )
        )
    most = st.just(10**9) if rich else st.sampled_from([30, 70, 150, 10**9])
    wallets = {agent: draw(most) for agent in OWNERS}
    return World(domains, tuple(bids), tuple(leases), wallets)


@settings(max_examples=400, deadline=None)
@given(worlds())
def test_winners_and_what_they_pay_for_the_displaced_are_as_the_rules_say(world: World) -> None:
    result, expected = played(world), oracle(world)
    assert {won.ask: won.minimum for won in result.won} == expected.won
    assert {gone.lease for gone in result.displaced} == set(expected.gone)
    for gone in result.displaced:
        assert expected.gone[gone.lease] in gone.by
    poor = {loss.ask for loss in result.lost if loss.reason is BidReason.WALLET_TOO_SMALL}
    assert poor == expected.poor
    event("somebody is displaced" if expected.gone else "nobody is")
    event("somebody is poor" if expected.poor else "nobody is poor")


def has_poor_sibling(world: World, result: RoundResult, id: str) -> bool:
    """Whether money for the bid's agent would go to another of its bids first."""
    poor = {loss.ask for loss in result.lost if loss.reason is BidReason.WALLET_TOO_SMALL}
    agent = _by_id(world, id).agent
    return any(bid.id in poor and bid.id != id for bid in world.bids if bid.agent == agent)


@settings(max_examples=400, deadline=None)
@given(worlds())
def test_the_price_that_is_told_wins_and_one_less_does_not(world: World) -> None:
    result = played(world)
    for loss in result.lost:
        if loss.reason is BidReason.WALLET_TOO_SMALL or has_poor_sibling(world, result, loss.ask):
            continue
        if loss.price_to_win is None:
            event("no price")
            assert loss.ask not in oracle(at_price(world, loss.ask, 10**9, 10**12)).won
            continue
        event("a price")
        assert loss.ask in oracle(at_price(world, loss.ask, loss.price_to_win, 10**12)).won
        less = at_price(world, loss.ask, loss.price_to_win - 1, 10**12)
        assert loss.ask not in oracle(less).won


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_whoever_has_what_it_is_told_is_missing_wins_at_that_price(world: World) -> None:
    spent = dict.fromkeys(world.wallets, 0)
    result = played(world)
    bids = {bid.id: bid for bid in world.bids}
    for won in result.won:
        spent[bids[won.ask].agent] += won.hold + won.minimum
    for loss in result.lost:
        if loss.price_to_win is None or loss.reason is BidReason.WALLET_TOO_SMALL:
            continue
        if has_poor_sibling(world, result, loss.ask):
            continue
        bid = bids[loss.ask]
        # What it holds grows with its price.
        hold = -(-bid.money * loss.price_to_win // bid.price)
        left = world.wallets[bid.agent] - spent[bid.agent]
        tried = at_price(world, loss.ask, loss.price_to_win, left + loss.short)
        tried = tried._replace(
            bids=tuple(b._replace(money=hold) if b.id == bid.id else b for b in tried.bids)
        )
        own = [b for b in tried.bids if b.agent == bid.agent and b.id != bid.id]
        if not any(b.id in {won.ask for won in result.won} for b in own):
            assert loss.ask in oracle(tried).won


@settings(max_examples=300, deadline=None)
@given(worlds(rich=True), st.integers(1, 2000))
def test_offering_more_never_loses(world: World, more: int) -> None:
    for id in oracle(world).won:
        higher = at_price(world, id, _by_id(world, id).price + more)
        assert id in {won.ask for won in played(higher).won}


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_the_highest_bid_that_can_pay_is_never_locked_out(world: World) -> None:
    """Unless what is in its way outranks it, or is its own agent's."""
    best = min(world.bids, key=lambda bid: bid.rank)
    world = world._replace(wallets={**world.wallets, best.agent: 10**9})
    above = [lease for lease in world.leases if lease.rank < best.rank]
    own = [lease for lease in world.leases if spares(best, lease) and lease not in above]
    if fits(world, [*above, *own, best]):
        assert best.id in {won.ask for won in played(world).won}


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_no_bid_lifts_what_its_own_agent_pays(world: World) -> None:
    result = played(world)
    agents = {bid.id: bid.agent for bid in (*world.bids, *world.leases)}
    paid = {won.ask: won.price for won in result.won} | {k.lease: k.price for k in result.kept}
    for agent in OWNERS:
        lost = {loss.ask for loss in result.lost if agents[loss.ask] == agent}
        alone = played(world._replace(bids=tuple(bid for bid in world.bids if bid.id not in lost)))
        without = {won.ask: won.price for won in alone.won}
        without |= {kept.lease: kept.price for kept in alone.kept}
        mine = {id for id in paid if agents[id] == agent}
        assert {id: paid[id] for id in mine} == {id: without[id] for id in mine}


@settings(max_examples=400, deadline=None)
@given(worlds())
def test_no_agent_loses_a_lease_when_nobody_else_bids(world: World) -> None:
    """Whatever runs beside it, and however it ranks."""
    for agent in OWNERS:
        bids = tuple(b for b in world.bids if b.agent == agent and not b.urgent)
        own = {lease.id for lease in world.leases if lease.agent == agent}
        for is_exact in (False, True):
            result = played(world._replace(bids=bids), is_exact=is_exact)
            gone = {displaced.lease for displaced in result.displaced}
            assert not gone & own
        event("a stranger leaves" if gone else "nobody leaves")


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_no_agent_loses_a_lease_in_a_large_lot_when_nobody_else_bids(world: World) -> None:
    """A lot with so many contestants that nobody yields: the bid waits, and is told why."""
    with mock.patch.object(clearing, "_GUARDED_MOST", 0):
        for agent in OWNERS:
            bids = tuple(b for b in world.bids if b.agent == agent and not b.urgent)
            own = {lease.id for lease in world.leases if lease.agent == agent}
            result = played(world._replace(bids=bids))
            assert not own & {displaced.lease for displaced in result.displaced}
            outcomes = [won.ask for won in result.won] + [lost.ask for lost in result.lost]
            assert sorted(outcomes) == sorted(bid.id for bid in bids)


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_nobody_pays_above_its_bid_or_below_the_base_price(world: World) -> None:
    result = played(world)
    for won in result.won:
        assert BASE <= won.price <= _by_id(world, won.ask).price
    bids = {lease.id: lease.price for lease in world.leases}
    for kept in result.kept:
        assert kept.price <= bids[kept.lease]


def test_the_worlds_are_contended() -> None:
    """A guard against a strategy that draws nothing of interest."""
    world = World(
        (8,),
        (Party("bid-0", "x", "p", 1, 1000, 1024, 100, 10),),
        (Party("lease-0", "z", "q", 8, 100, 1280, 0, 50, 0),),
        dict.fromkeys(OWNERS, 60),
    )
    assert oracle(world).won == {"bid-0": 50}
    assert oracle(world._replace(wallets=dict.fromkeys(OWNERS, 59))).poor == {"bid-0"}
    assert msgspec.json.encode(played(world)) == msgspec.json.encode(played(world))
