"""GPUs of several lots, all or none: who wins them, what they pay, and that all of it is there."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.chain import CHAIN, Block, block_size
from bidplane.core.market import (
    Ask,
    Domain,
    Incumbent,
    Lot,
    RoundInput,
    RoundResult,
    Won,
    clear_round,
)
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.contested import clear
from bidplane.core.market.clearing.exact import clear_exactly
from bidplane.core.market.clearing.greedy import clear_bids
from bidplane.core.market.joint.capacity import Rooms, joint
from bidplane.core.market.joint.clearing import Joined
from bidplane.core.market.joint.components import Component
from bidplane.core.market.model import ONE
from bidplane.core.market.pricing.purses import Purses
from bidplane.core.market.round import admit
from effort import effort

from .contests import FLOOR
from .contests import rounds as single_lot_rounds
from .joint_contests import CHAINS, Contest, contests, packs_all, plain, rooms
from .joint_contests import rounds as joint_rounds

# Clearing


def wins(contest: Contest, one: Contestant, price: int) -> bool:
    """Whether `one` would have won had it offered `price`, everybody else the same."""
    free, field = contest
    tried = one._replace(price=price)
    return tried in clear(rooms(free), [*(c for c in field if c.id != one.id), tried]).accepted


@settings(max_examples=150, deadline=None)
@given(contests())
def test_a_set_fits_if_it_can_be_packed_and_so_does_every_part_of_it(contest: Contest) -> None:
    free, field = contest
    outcome = clear(rooms(free), field)
    assert packs_all(free, outcome.accepted)
    for loser in outcome.losers:
        assert not packs_all(free, [*outcome.accepted, loser])
    for some in itertools.combinations(outcome.accepted, max(0, len(outcome.accepted) - 1)):
        room = rooms(free)
        for one in some:
            assert room.fits(one.block)
            room = room.take(one.block)


@settings(max_examples=250, deadline=None)
@given(contests())
def test_the_price_wins_and_one_less_loses(contest: Contest) -> None:
    free, field = contest
    outcome = clear(rooms(free), field)
    for winner in outcome.accepted:
        price = outcome.critical_price(winner)
        assert winner.reserve <= price <= winner.price
        assert wins(contest, winner, price)
        if price > winner.reserve:
            assert not wins(contest, winner, price - 1)


@settings(max_examples=250, deadline=None)
@given(contests())
def test_a_loser_is_told_the_least_that_would_have_won(contest: Contest) -> None:
    free, field = contest
    outcome = clear(rooms(free), field)
    for loser in outcome.losers:
        price = outcome.price_to_win(loser)
        if price is None:
            assert not wins(contest, loser, 10**12)
        else:
            assert price > loser.price
            assert wins(contest, loser, price)
            assert not wins(contest, loser, price - 1)


@given(contests(), st.data())
def test_the_order_of_bids_does_not_matter(contest: Contest, data: st.DataObject) -> None:
    free, field = contest
    outcome = clear(rooms(free), field)
    other = clear(rooms(free), data.draw(st.permutations(field)))
    assert (outcome.accepted, outcome.losers) == (other.accepted, other.losers)


@settings(max_examples=150, deadline=None)
@given(contests())
def test_small_lots_are_cleared_to_the_optimum_together(contest: Contest) -> None:
    free, field = contest
    best = clear_exactly(rooms(free), field)
    assert best is not None

    def worth(some: list[Contestant]) -> int:
        return sum(c.key * sum(n for _, n in _sizes(c)) for c in some)

    sets = (list(some) for n in range(len(field) + 1) for some in itertools.combinations(field, n))
    assert worth(best.accepted) == max(worth(some) for some in sets if packs_all(free, some))
    for winner in best.accepted:
        price = best.critical_price(winner)
        assert winner.reserve <= price <= winner.price
        others = [c for c in field if c.id != winner.id]
        least = clear_exactly(rooms(free), [*others, winner._replace(price=price)])
        assert least is not None
        assert winner.id in [c.id for c in least.accepted]


def _sizes(contestant: Contestant) -> list[tuple[str, int]]:
    return [(lot, b.size) for lot in "abc" for b in plain(contestant, lot)]


# A whole round


@settings(max_examples=150, deadline=None)
@given(joint_rounds())
def test_nothing_is_sold_twice_and_all_of_it_or_none(given: RoundInput) -> None:
    result = clear_round(given)
    displaced = {d.lease for d in result.displaced} | {m.lease for m in result.moved}
    where = {
        device: (lot.name, domain.name)
        for lot in given.lots
        for domain in lot.domains
        for device in domain.free
    }
    for lease in given.incumbents:
        for part in (lease, *lease.also):
            where |= dict.fromkeys(part.devices, (part.lot, part.domain))
    held = [d for i in given.incumbents if i.id not in displaced for d in _devices(i)]
    held += [d for won in result.won for d in won.devices]
    held += [d for move in result.moved for d in move.devices]
    assert len(held) == len(set(held))
    asks = {ask.id: ask for ask in given.asks}
    for won in result.won:
        assert set(won.devices) <= set(where)
        lots = Counter(where[device][0] for device in won.devices)
        assert won.by_lot in ({}, dict(lots))
        assert len(won.devices) == won.gpus
        assert won.weight == GPU_WEIGHT * won.gpus
        sizes = sorted(_sizes_of(asks[won.ask]))
        assert sum(sizes) == won.gpus
        if asks[won.ask].one_node:
            sets = _blocks(won)
            assert len(sets) == asks[won.ask].blocks
            for devices in sets:
                assert len({device.partition("/")[0] for device in devices}) == 1
                assert len(devices) == won.gpus // len(sets)
            able = asks[won.ask].machines
            there = Counter(devices[0].partition("/")[0] for devices in sets)
            assert able is None or all(n <= able.get(node, 0) for node, n in there.items())
        else:
            assert sorted(map(len, _blocks(won))) == sizes
            for devices in _blocks(won):
                assert len({where[device] for device in devices}) == 1
        named = Counter({a.lot: 0 for a in (asks[won.ask], *asks[won.ask].also) if a.lot})
        assert set(named) <= set(lots)


def _devices(lease: Incumbent) -> list[str]:
    return [device for part in (lease, *lease.also) for device in part.devices]


def _sizes_of(ask: Ask) -> list[int]:
    found = []
    for need in (ask, *ask.also):
        one = [block_size(need.gpus, CHAIN) or 0]
        if need.spread:
            one = [n for n in (4, 2, 1) if need.gpus & n]
            found += one * (ask.blocks if ask.one_node else 1)
        else:
            found += one * (ask.blocks if ask.one_node else need.blocks)
    return found


def _blocks(won: Won) -> list[tuple[str, ...]]:
    ends = list(itertools.accumulate(won.parts or (len(won.devices),)))
    return [won.devices[a:b] for a, b in itertools.pairwise((0, *ends))]


@settings(max_examples=150, deadline=None)
@given(joint_rounds())
def test_every_bid_has_one_outcome_and_every_lease_too(given: RoundInput) -> None:
    result = clear_round(given)
    outcomes = [won.ask for won in result.won] + [lost.ask for lost in result.lost]
    assert sorted(outcomes) == sorted(ask.id for ask in given.asks)
    leases = [k.lease for k in result.kept] + [d.lease for d in result.displaced]
    leases += [m.lease for m in result.moved]
    assert sorted(leases) == sorted(i.id for i in given.incumbents)
    assert [lot.lot for lot in result.lots] == sorted(lot.name for lot in given.lots)
    for found in result.lots:
        assert 0 <= found.leased <= found.devices
        assert found.used == GPU_WEIGHT * found.leased


@settings(max_examples=150, deadline=None)
@given(joint_rounds())
def test_prices_are_between_reserve_and_bid(given: RoundInput) -> None:
    result = clear_round(given)
    asks = {ask.id: ask for ask in given.asks}
    base = {lot.name: lot.base for lot in given.lots}
    for won in result.won:
        gpus = won.by_lot or {won.lot: won.gpus}
        # All that it pays is no less than each lot's base price for what it has of it.
        assert won.price * won.gpus >= sum(base[lot] * n for lot, n in gpus.items())
        assert won.price <= asks[won.ask].price
    running = {i.id: i for i in given.incumbents}
    for kept in result.kept:
        assert kept.price <= running[kept.lease].price


@settings(max_examples=150, deadline=None)
@given(joint_rounds())
def test_each_fund_gets_back_what_it_pays_to_the_last(given: RoundInput) -> None:
    result = clear_round(given)
    leases = {i.id: i for i in given.incumbents}
    paid: Counter[str] = Counter()
    got: Counter[str] = Counter()
    for gone in result.displaced:
        funds = gone.funds or {leases[gone.lease].lot: gone.compensation}
        assert sum(funds.values()) == gone.compensation
        owed = {
            part.lot: part.compensation for part in (leases[gone.lease], *leases[gone.lease].also)
        }
        assert all(amount <= owed.get(lot, 0) for lot, amount in funds.items())
        assert gone.by
        paid.update(funds)
    for move in result.moved:
        paid[leases[move.lease].lot] += move.compensation
    for won in result.won:
        funds = won.funds or {won.lot: won.minimum}
        assert sum(funds.values()) == won.minimum
        got.update(funds)
    assert +paid == +got


@settings(max_examples=200, deadline=None)
@given(joint_rounds(), st.data())
def test_the_order_of_everything_does_not_matter(given: RoundInput, data: st.DataObject) -> None:
    shuffled = msgspec.structs.replace(
        given,
        lots=tuple(data.draw(st.permutations(given.lots))),
        asks=tuple(data.draw(st.permutations(given.asks))),
        incumbents=tuple(data.draw(st.permutations(given.incumbents))),
    )
    assert clear_round(shuffled) == clear_round(given)


@settings(max_examples=100, deadline=None)
@given(joint_rounds())
def test_a_saved_round_clears_again_to_the_byte(given: RoundInput) -> None:
    result = msgspec.json.encode(clear_round(given))
    saved = msgspec.json.decode(msgspec.json.encode(given), type=RoundInput)
    assert msgspec.json.encode(clear_round(saved)) == result


@settings(max_examples=150, deadline=None)
@given(single_lot_rounds())
def test_lots_that_nobody_joins_come_to_the_same_alone_and_together(given: RoundInput) -> None:
    given = msgspec.structs.replace(
        given, lots=tuple(msgspec.structs.replace(lot, exact=False) for lot in given.lots)
    )
    given = msgspec.structs.replace(given, available=dict.fromkeys("xyz", 10**9))
    admitted, refused = admit(given)
    lots = sorted(given.lots, key=lambda lot: lot.name)
    refused_here = [one for one in refused if one.loss.lot]
    together = Joined(
        Component(list(lots), list(admitted), list(given.incumbents), refused_here)
    ).with_moves(Purses(given.available, {}))
    alone = clear_round(given)
    lost = [loss for loss in alone.lost if loss.lot]
    assert _ordered(together) == _ordered(msgspec.structs.replace(alone, lost=tuple(lost)))


def _ordered(result: RoundResult) -> RoundResult:
    return msgspec.structs.replace(
        result,
        won=tuple(sorted(result.won, key=lambda one: one.ask)),
        lost=tuple(sorted(result.lost, key=lambda one: one.ask)),
        kept=tuple(sorted(result.kept, key=lambda one: one.lease)),
        displaced=tuple(sorted(result.displaced, key=lambda one: one.lease)),
        gpu_weight=GPU_WEIGHT,  # said of a whole round only
    )


@settings(max_examples=150, deadline=None)
@given(joint_rounds(), single_lot_rounds())
def test_who_is_in_other_lots_changes_nothing(joined: RoundInput, other: RoundInput) -> None:
    """What is not joined is as if the joined lots were not there, and the other way round."""

    def away(given: RoundInput) -> RoundInput:
        """Other lots, other agents, other names; everybody says where."""
        lots = [lot.name for lot in given.lots]
        asks = [a for a in given.asks if a.lot in lots and not a.otherwise]
        given = msgspec.structs.replace(given, asks=tuple(asks))
        text = msgspec.json.encode(given).decode()
        for lot in lots:
            text = text.replace(f'"lot":"{lot}"', f'"lot":"far-{lot}"')
            text = text.replace(f'"name":"{lot}"', f'"name":"far-{lot}"')
            text = text.replace(f'"{lot}":', f'"far-{lot}":')
        for name in ("bid-", "lease-"):
            text = text.replace(f'"{name}', f'"far-{name}')
        for agent in "xyz":
            text = text.replace(f'"agent":"{agent}"', f'"agent":"far-{agent}"')
            text = text.replace(f'"{agent}":', f'"far-{agent}":')
        return msgspec.json.decode(text, type=RoundInput)

    here = {lot.name for lot in joined.lots}
    asks = [a for a in joined.asks if all(need.lot in here for need in (a, *a.also))]
    joined = msgspec.structs.replace(joined, asks=tuple(asks))
    far = away(other)
    both = RoundInput(
        at=0,
        lots=(*joined.lots, *far.lots),
        asks=(*joined.asks, *far.asks),
        incumbents=(*joined.incumbents, *far.incumbents),
        available={**joined.available, **far.available},
    )
    result = clear_round(both)
    for part in (joined, far):
        by_itself = clear_round(part)
        names = {ask.id for ask in part.asks} | {lease.id for lease in part.incumbents}
        assert by_itself.won == tuple(w for w in result.won if w.ask in names)
        assert by_itself.lost == tuple(x for x in result.lost if x.ask in names)
        assert by_itself.kept == tuple(k for k in result.kept if k.lease in names)
        assert by_itself.displaced == tuple(d for d in result.displaced if d.lease in names)


# Stories


def lot(name: str, *sizes: int, base: int = 100) -> Lot:
    """One domain in each of the machines m0, m1, …"""
    domains = tuple(
        Domain(
            name=f"m{n}/nv",
            node=f"m{n}",
            size=size,
            free=tuple(f"m{n}/{name}{i}" for i in range(size)),
        )
        for n, size in enumerate(sizes)
    )
    return Lot(name=name, base=base, posted=base, domains=domains)


def ask(id: str, price: int, *needs: tuple[str, int], one_node: bool = False, **more: Any) -> Ask:
    (first, gpus), *others = needs
    common: dict[str, Any] = {"id": id, "agent": id, "owner": id, "price": price}
    return Ask(
        **common,
        gpus=gpus,
        lot=first,
        hold={"h100": 10, "l40": 10},
        also=tuple(Ask(**common, gpus=n, lot=name) for name, n in others),
        one_node=one_node,
        **more,
    )


def played(lots: list[Lot], *asks: Ask, running: tuple[Incumbent, ...] = ()) -> RoundResult:
    return clear_round(
        RoundInput(
            at=0,
            lots=tuple(lots),
            asks=asks,
            incumbents=running,
            available={one.agent: 1000 for one in asks},
        )
    )


def test_both_or_none_at_one_price_for_all_of_it() -> None:
    lots = [lot("h100", 8), lot("l40", 1, base=50)]
    result = played(lots, ask("both", 900, ("h100", 8), ("l40", 1)))
    (won,) = result.won
    assert won.by_lot == {"h100": 8, "l40": 1}
    # What each lot asks for, per GPU of all of it, rounded up: (8 × 100 + 50) / 9.
    assert won.price == 95
    # Somebody else has the L40: nothing is sold to it, and it is told where it is short.
    result = played(lots, ask("both", 900, ("h100", 8), ("l40", 1)), ask("one", 950, ("l40", 1)))
    (lost,) = result.lost
    assert (lost.ask, lost.reason, lost.missing) == ("both", BidReason.OUTBID, ("l40",))
    assert lost.price_to_win == 950
    (won,) = result.won
    assert won.price == 901  # what the other offered for each of its GPUs, and one more


def test_one_who_joins_lots_is_priced_by_its_rival_in_any_of_them() -> None:
    lots = [lot("h100", 8), lot("l40", 1)]
    asks = (ask("both", 900, ("h100", 8), ("l40", 1)), ask("one", 400, ("l40", 1), tie=1))
    (won,) = played(lots, *asks).won
    assert (won.ask, won.price) == ("both", 400)


def test_what_must_be_in_one_machine_waits_until_one_has_all() -> None:
    # m0 has the H100s, m1 the L40: enough in both lots, and in no machine.
    lots = [lot("h100", 8, 0), lot("l40", 0, 1)]
    (lost,) = played(lots, ask("pod", 900, ("h100", 2), ("l40", 1), one_node=True)).lost
    assert lost.reason is BidReason.NO_MACHINE_HAS_ALL
    (won,) = played(lots, ask("gang", 900, ("h100", 2), ("l40", 1))).won
    assert won.parts == (2, 1)
    lots = [lot("h100", 8, 2), lot("l40", 0, 1)]
    (won,) = played(lots, ask("pod", 900, ("h100", 2), ("l40", 1), one_node=True)).won
    assert won.devices == ("m1/h1000", "m1/h1001", "m1/l400")
    assert won.parts == ()


def test_others_make_way_for_what_must_be_in_one_machine() -> None:
    # Only m1 has an L40 beside its H100s: whoever can be elsewhere is.
    lots = [lot("h100", 4, 4), lot("l40", 0, 1)]
    result = played(
        lots,
        ask("first", 990, ("h100", 4)),
        ask("pod", 900, ("h100", 4), ("l40", 1), one_node=True),
    )
    assert {won.ask: won.domain for won in result.won} == {"first": "m0/nv", "pod": "m1/nv"}


def test_sets_for_several_pods_are_each_in_one_machine() -> None:
    lots = [lot("h100", 4, 4, 4), lot("l40", 1, 1, 0)]
    gang = ask("gang", 900, ("h100", 2), ("l40", 1), one_node=True, blocks=2)
    (won,) = played(lots, gang).won
    assert won.parts == (3, 3)
    assert won.devices == (
        *("m0/h1000", "m0/h1001", "m0/l400"),
        *("m1/h1000", "m1/h1001", "m1/l400"),
    )


def test_what_needs_a_nic_goes_where_there_is_one_though_another_machine_is_tighter() -> None:
    lots = [lot("h100", 2, 4, 8)]
    pod = ask("pod", 900, ("h100", 1), one_node=True)
    assert [won.domain for won in played(lots, pod).won] == ["m0/nv"]
    wired = msgspec.structs.replace(pod, machines={"m2": 1})
    plain = ask("plain", 800, ("h100", 1), one_node=True)
    found = {won.ask: won.domain for won in played(lots, wired, plain).won}
    assert found == {"pod": "m2/nv", "plain": "m0/nv"}
    # Who needs another NIC is not told that no machine has it because the first was not there.
    other = msgspec.structs.replace(wired, id="other", machines={"m1": 1})
    assert {won.ask: won.domain for won in played(lots, wired, other).won} == {
        "pod": "m2/nv",
        "other": "m1/nv",
    }


def test_a_machine_has_no_more_sets_than_it_has_nics_for() -> None:
    lots = [lot("h100", 8, 8)]
    gang = ask("gang", 900, ("h100", 1), one_node=True, blocks=3)
    gang = msgspec.structs.replace(gang, machines={"m0": 1, "m1": 2})
    (won,) = played(lots, gang).won
    assert Counter(device[:2] for device in won.devices) == {"m0": 1, "m1": 2}
    (lost,) = played(lots, msgspec.structs.replace(gang, machines={"m0": 1, "m1": 1})).lost
    assert lost.reason is BidReason.NO_MACHINE_HAS_ALL


def lease(id: str, price: int, *parts: tuple[str, int, int], owner: str = "") -> Incumbent:
    """Its GPUs are the first of m0's; each part says what its lot's fund owes."""
    first, *others = (
        Incumbent(
            id=id,
            agent=id,
            owner=owner or id,
            lot=name,
            domain="m0/nv",
            devices=tuple(f"m0/{name}{i}" for i in range(gpus)),
            price=price,
            weight=ONE,
            reserve=100,
            compensation=owed,
        )
        for name, gpus, owed in parts
    )
    return msgspec.structs.replace(first, also=tuple(others))


def without(lots: list[Lot], running: Incumbent) -> list[Lot]:
    """The lots, with what the lease has no longer free."""
    held = {device for part in (running, *running.also) for device in part.devices}
    return [
        msgspec.structs.replace(
            one,
            domains=tuple(
                msgspec.structs.replace(d, free=tuple(x for x in d.free if x not in held))
                for d in one.domains
            ),
        )
        for one in lots
    ]


def test_who_takes_any_part_of_a_lease_ends_all_of_it_and_pays_each_fund() -> None:
    running = lease("both", 300, ("h100", 8, 6), ("l40", 1, 3))
    lots = without([lot("h100", 8), lot("l40", 1)], running)
    result = played(lots, ask("one", 3000, ("l40", 1)), running=(running,))
    (gone,) = result.displaced
    assert (gone.compensation, gone.funds) == (9, {"h100": 6, "l40": 3})
    (won,) = result.won
    assert (won.minimum, won.funds, won.waits_for) == (9, {"h100": 6, "l40": 3}, ("both",))
    assert won.price == 2701  # for one GPU, what all nine of the lease are worth
    # What nobody took of it is there for the next round, once it has left.
    assert {lot.lot: lot.leased for lot in result.lots} == {"h100": 8, "l40": 1}


def test_a_lease_of_two_lots_stays_against_lower_bids_in_each() -> None:
    running = lease("both", 300, ("h100", 8, 6), ("l40", 1, 3))
    lots = without([lot("h100", 8), lot("l40", 1)], running)
    asks = (ask("one", 250, ("l40", 1), tie=5), ask("eight", 200, ("h100", 8), tie=6))
    result = played(lots, *asks, running=(running,))
    (kept,) = result.kept
    assert kept.price == 200  # the two together, for all nine
    assert {loss.ask: loss.price_to_win for loss in result.lost} == {"one": 2701, "eight": 338}


def test_a_second_machine_is_tried_when_the_first_is_taken() -> None:
    lots = [lot("h100", 2, 2), lot("l40", 1, 1)]
    asks = [ask(f"p{n}", 900 - n, ("h100", 2), ("l40", 1), one_node=True) for n in range(3)]
    result = played(lots, *asks)
    assert {won.ask: won.domain for won in result.won} == {"p0": "m0/nv", "p1": "m1/nv"}
    (lost,) = result.lost
    assert (lost.ask, lost.reason) == ("p2", BidReason.OUTBID)


def test_the_cheapest_machine_to_have_is_the_one_it_is_sent_to() -> None:
    lots = [lot("h100", 2, 2), lot("l40", 1, 1)]
    dear = lease("dear", 800, ("h100", 2, 1))
    cheap = msgspec.structs.replace(
        lease("cheap", 200, ("h100", 2, 1)), domain="m1/nv", devices=("m1/h1000", "m1/h1001")
    )
    lots = without(without(lots, dear), cheap)
    result = played(
        lots, ask("pod", 500, ("h100", 2), ("l40", 1), one_node=True), running=(dear, cheap)
    )
    assert [gone.lease for gone in result.displaced] == ["cheap"]
    assert result.won[0].price == 201


def crowd(seed: int) -> tuple[Rooms, list[Contestant]]:
    """Bids for two lots, some of them for certain domains, as bids for one machine are."""
    dice = random.Random(seed)
    free = {lot: {f"d{n}": dice.choice([3, 6, 8, 8]) for n in range(6)} for lot in ("a", "b")}
    field = []
    for n in range(120):
        needs: dict[str, Block] = {}
        for lot in dice.sample(["a", "b"], dice.choice([1, 2])):
            size = dice.choice(CHAINS[lot])
            if dice.random() < 0.4:
                needs[lot] = Block(0, seats=((f"d{dice.randrange(6)}", dice.choice([1, 2, 3])),))
            else:
                needs[lot] = Block(size, count=dice.choice([1, 1, 2]))
        agent = dice.choice(["", "x", "y"])
        price = FLOOR * dice.randint(1, 40)
        field.append(Contestant(f"c{n}", joint(needs), price, ONE, n % 3, FLOOR, agent))
    return rooms(free), field


@pytest.mark.explored
@pytest.mark.parametrize("seed", range(effort(30, 500)))
def test_of_many_bids_each_winner_is_asked_about_every_loser(seed: int) -> None:
    """What winners in certain places give back is kept by its counters, and is the same."""
    start, field = crowd(seed)
    outcome = clear_bids(start, field)
    room, met = start, {}
    accepted = {c.id for c in outcome.accepted}
    for c in sorted(field, key=lambda c: c.rank):
        met[c.id] = room
        room = room.take(c.block) if c.id in accepted else room
    for winner in outcome.accepted:
        able = (
            loser
            for loser in outcome.losers
            if loser.rank > winner.rank
            and not loser.is_of_agent(winner)
            and met[loser.id].fits_without(winner.block, loser.block)
        )
        rival = next(able, None)
        least = FLOOR if rival is None else max(FLOOR, winner.price_ahead_of(rival))
        assert outcome.critical_price(winner) == least
