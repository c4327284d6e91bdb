"""A whole round: nothing is sold twice, nobody pays more than offered, all of it replays."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.bid import BidReason
from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices import ranges
from bidplane.core.devices.chain import FRACTIONS, PARTS, block_size
from bidplane.core.market import (
    Ask,
    Domain,
    Incumbent,
    Lost,
    Lot,
    RoundInput,
    RoundResult,
    Won,
    clear_round,
)
from bidplane.core.market.pricing.explain import explain, explain_win

from .contests import rounds


@settings(max_examples=300, deadline=None)
@given(rounds())
def test_nothing_is_sold_twice(given: RoundInput) -> None:
    result = clear_round(given)
    displaced = {d.lease for d in result.displaced}
    for_sale: set[tuple[str, int]] = set()  # each step of each device
    for found in given.lots:
        for domain in found.domains:
            for_sale |= {(device, n) for device in domain.free for n in steps(ranges.WHOLE)}
            for_sale |= {(d, n) for d, kinds in domain.cut.items() for n in steps(kinds[PARTS])}
    for_sale |= {slot for i in given.incumbents for slot in slots(i)}
    held = [slot for i in given.incumbents if i.id not in displaced for slot in slots(i)]
    held += [slot for won in result.won for slot in slots(won)]
    assert len(held) == len(set(held))
    assert set(held) <= for_sale


def slots(holder: Incumbent | Won) -> list[tuple[str, int]]:
    places = holder.places or [ranges.WHOLE] * len(holder.devices)
    return [(d, n) for d, found in zip(holder.devices, places, strict=True) for n in steps(found)]


def steps(held: ranges.Ranges) -> range | list[int]:
    """Every twentieth of a GPU, which is what all parts here begin and end at."""
    return [n for start, end in ranges.pairs(held) for n in range(start, end, 60)]


@settings(max_examples=300, deadline=None)
@given(rounds())
def test_every_bid_has_one_outcome_and_every_lease_too(given: RoundInput) -> None:
    result = clear_round(given)
    outcomes = [won.ask for won in result.won] + [lost.ask for lost in result.lost]
    assert sorted(outcomes) == sorted(ask.id for ask in given.asks)
    kept = [k.lease for k in result.kept]
    leases = kept + [d.lease for d in result.displaced]
    assert sorted(leases) == sorted(i.id for i in given.incumbents)


@settings(max_examples=300, deadline=None)
@given(rounds())
def test_prices_are_between_reserve_and_bid(given: RoundInput) -> None:
    result = clear_round(given)
    asks = {ask.id: ask for ask in given.asks}
    base = {lot.name: lot.base for lot in given.lots}
    chain = {lot.name: lot.chain for lot in given.lots}
    for won in result.won:
        ask = (asks[won.ask], *asks[won.ask].otherwise)[won.option]
        assert base[won.lot] <= won.price <= ask.price
        assert won.gpus == len(won.devices)
        if ask.share:
            assert won.gpus == ask.gpus * ask.blocks
            assert won.weight == won.gpus * round(GPU_WEIGHT * float(won.share))
        elif ask.spread:
            assert won.gpus == ask.gpus
        elif ask.whole_domain:
            size = {
                domain.size for lot in given.lots for domain in lot.domains if lot.name == won.lot
            }
            assert won.gpus == ask.blocks * max(size)
            assert won.gpus >= ask.blocks * ask.gpus
        else:
            assert won.gpus == ask.blocks * (block_size(ask.gpus, chain[won.lot]) or 0)
    incumbents = {i.id: i for i in given.incumbents}
    for kept in result.kept:
        assert kept.price <= incumbents[kept.lease].price


@settings(max_examples=300, deadline=None)
@given(rounds())
def test_whoever_is_displaced_is_compensated_by_who_caused_it(given: RoundInput) -> None:
    result = clear_round(given)
    asks = {ask.id: ask for ask in given.asks}
    incumbents = {i.id: i for i in given.incumbents}
    for lot in given.lots:
        paid = [d for d in result.displaced if incumbents[d.lease].lot == lot.name]
        owed = sum(won.minimum for won in result.won if won.lot == lot.name)
        assert sum(d.compensation for d in paid) == owed
    for gone in result.displaced:
        assert gone.by, "nobody is displaced for nothing"
        lease = incumbents[gone.lease]
        assert gone.compensation in (0, lease.compensation)
        owners = {asks[ask].owner for ask in gone.by}
        if lease.owner not in owners:
            assert gone.compensation == lease.compensation
        if owners == {lease.owner}:
            assert gone.compensation == 0


@settings(max_examples=200, deadline=None)
@given(rounds())
def test_a_wallet_is_never_promised_twice(given: RoundInput) -> None:
    asks = {ask.id: ask for ask in given.asks}
    for agent, available in given.available.items():
        won = [won for won in clear_round(given).won if asks[won.ask].agent == agent]
        assert sum(one.hold + one.minimum for one in won) <= available


@settings(max_examples=200, deadline=None)
@given(rounds(), st.data())
def test_the_order_of_the_input_does_not_matter(given: RoundInput, data: st.DataObject) -> None:
    shuffled = msgspec.structs.replace(
        given,
        lots=tuple(data.draw(st.permutations(given.lots))),
        asks=tuple(data.draw(st.permutations(given.asks))),
        incumbents=tuple(data.draw(st.permutations(given.incumbents))),
    )
    assert clear_round(given) == clear_round(shuffled)


@given(rounds())
def test_a_saved_round_replays_to_the_same_result(given: RoundInput) -> None:
    saved = msgspec.json.encode(given)
    result = clear_round(given)
    assert clear_round(msgspec.json.decode(saved, type=RoundInput)) == result
    assert msgspec.json.decode(msgspec.json.encode(result), type=RoundResult) == result


@settings(max_examples=200, deadline=None)
@given(rounds())
def test_what_was_just_won_is_not_lost_to_the_same_bids(given: RoundInput) -> None:
    result = clear_round(given)
    if result.displaced:
        return  # winners then wait, outside the contest
    asks = {ask.id: ask for ask in given.asks}
    won = {win.ask for win in result.won}
    sold = {device for win in result.won for device in win.devices}
    where = {x: d.name for lot in given.lots for d in lot.domains for x in d.free}
    running = [
        Incumbent(
            id=f"new-{win.ask}",
            agent=asks[win.ask].agent,
            owner=asks[win.ask].owner,
            lot=win.lot,
            domain=win.domain,
            devices=win.devices,
            price=(asks[win.ask], *asks[win.ask].otherwise)[win.option].price,
            weight=1075,  # the least an incumbent can have
            reserve=1,
            compensation=0,
            gang={
                domain: tuple(x for x in win.devices if where[x] == domain)
                for domain in win.domains
            }
            if not win.share
            else {},
            share=win.share,
            places=win.places,
        )
        for win in result.won
    ]
    taken: dict[str, ranges.Ranges] = {}
    for win in result.won:
        for device, places in zip(win.devices, win.places, strict=False):
            taken[device] = ranges.union((taken.get(device, ()), places))
    lots = tuple(
        msgspec.structs.replace(
            lot,
            # Only what was won is contestable: the others' weights are not at issue here.
            domains=tuple(
                msgspec.structs.replace(
                    d,
                    free=tuple(x for x in d.free if x not in sold),
                    cut={
                        device: {
                            PARTS: ranges.minus(
                                d.cut.get(device, {}).get(PARTS, ranges.WHOLE),
                                taken.get(device, ()),
                            )
                        }
                        for device in {*d.cut, *(x for x in d.free if x in taken)}
                    },
                )
                for d in lot.domains
            ),
        )
        for lot in given.lots
    )
    again = clear_round(
        msgspec.structs.replace(
            given,
            lots=lots,
            asks=tuple(ask for ask in given.asks if ask.id not in won),
            incumbents=tuple(running),
        )
    )
    # A bid that was routed elsewhere, or that the wallet could not cover, is another bid.
    changed = {loss.ask: loss.lot for loss in result.lost if loss.reason in _CONTESTED}
    if all(_lot_of(again, ask) == lot for ask, lot in changed.items()):
        rivals = {by for gone in again.displaced for by in gone.by}
        assert rivals.isdisjoint(changed)


_CONTESTED = (BidReason.OUTBID, BidReason.NO_FREE_BLOCK)


def _lot_of(result: RoundResult, ask: str) -> str:
    found = [w.lot for w in result.won if w.ask == ask]
    found += [loss.lot for loss in result.lost if loss.ask == ask]
    return found[0]


def lot(free: int, *, name: str = "h100", base: int = 100) -> Lot:
    devices = tuple(f"{name}/{i}" for i in range(free))
    domain = Domain(name=f"{name}-d0", size=8, free=devices)
    return Lot(name=name, base=base, posted=base, domains=(domain,))


def ask(
    id: str, gpus: int, price: int, *, pool: str = "h100", owner: str = "bob", hold: int = 10
) -> Ask:
    return Ask(
        id=id,
        agent=id,
        owner=owner,
        gpus=gpus,
        price=price,
        lot=pool,
        tie=10,
        hold={"h100": hold, "a100": hold},
    )


def running(id: str, gpus: int, price: int, *, compensation: int = 7) -> Incumbent:
    return Incumbent(
        id=id,
        agent=id,
        owner="ann",
        lot="h100",
        domain="h100-d0",
        devices=tuple(f"{id}/{i}" for i in range(gpus)),
        price=price,
        weight=1280,
        reserve=100,
        compensation=compensation,
    )


def play(lots: list[Lot], asks: list[Ask], leases: tuple[Incumbent, ...] = ()) -> RoundResult:
    return clear_round(
        RoundInput(
            at=0,
            lots=tuple(lots),
            asks=tuple(asks),
            incumbents=leases,
            available={a.agent: 100 for a in asks},
        )
    )


def reasons(result: RoundResult) -> dict[str, BidReason]:
    return {loss.ask: loss.reason for loss in result.lost}


def test_an_odd_ask_is_sold_as_the_next_block_up() -> None:
    assert [w.gpus for w in play([lot(8)], [ask("three", 3, 200)]).won] == [4]


def test_refusals_have_names() -> None:
    empty = msgspec.structs.replace(lot(0, name="a100"), domains=())
    poor = ask("poor", 1, 200, hold=101)
    result = play(
        [lot(8), empty],
        [
            ask("nine", 9, 200),
            ask("lost", 1, 200, pool="nowhere"),
            ask("early", 1, 200, pool="a100"),
            ask("low", 1, 99),
            poor,
        ],
    )
    assert reasons(result) == {
        "nine": BidReason.LARGER_THAN_EVERY_DOMAIN,
        "lost": BidReason.NO_SUCH_POOL,
        "early": BidReason.NO_DEVICES,
        "low": BidReason.BELOW_RESERVE,
        "poor": BidReason.WALLET_TOO_SMALL,
    }
    assert {loss.ask: loss.short for loss in result.lost if loss.short} == {"poor": 1}
    assert {loss.ask: loss.price_to_win for loss in result.lost}["low"] == 100
    messages = {loss.ask: explain(loss) for loss in result.lost}
    assert messages["lost"] == (
        "there is no pool nowhere; name one of a100 and h100, or none to let the exchange choose"
    )


def test_the_largest_block_is_one_that_the_domains_have() -> None:
    domain = Domain(name="h100-d0", size=4, free=tuple(f"h100/{i}" for i in range(4)))
    four = msgspec.structs.replace(lot(4), domains=(domain,), chain=(8, 4, 2, 1))
    (loss,) = play([four], [ask("six", 6, 200)]).lost
    assert loss.reason is BidReason.LARGER_THAN_EVERY_DOMAIN
    assert loss.largest == 4
    assert "blocks of up to 4 GPUs are sold" in explain(loss)


def test_of_several_needs_the_one_whose_pool_is_missing_is_named() -> None:
    first = msgspec.structs.replace(ask("pair", 1, 200), lot="")
    other = msgspec.structs.replace(ask("pair", 1, 200), lot="nowhere")
    (loss,) = play([lot(8)], [msgspec.structs.replace(first, also=(other,))]).lost
    assert (loss.reason, loss.no_such_pool) == (BidReason.NO_SUCH_POOL, "nowhere")


def test_one_gpu_is_not_several() -> None:
    alone = Lost(ask="b", reason=BidReason.NO_FREE_BLOCK, lot="h100", price=1, gpus=1)
    assert "a block of 1 GPU in h100" in explain(alone)
    assert explain_win(1, 1, 100_000, "h100") == "won 1 GPU in h100 at 0.10 per GPU-hour"


def test_a_loser_is_told_what_would_have_won() -> None:
    result = play([lot(4)], [ask("rich", 4, 2_310_000), ask("z-poor", 4, 2_100_000)])
    assert explain(result.lost[0]) == (
        "Outbid: your maximum of 2.10 credits per GPU-hour lost to 2.32. To win now, set"
        " bidplane.dev/max-price to 2.32."
    )
    assert result.lost[0].price_to_win == 2_310_001


def test_a_bid_without_a_pool_goes_where_it_gains_most() -> None:
    lots = [lot(8, base=200), lot(8, name="a100", base=300)]
    assert play(lots, [ask("b", 1, 400, pool="")]).won[0].lot == "h100"
    even = [lot(8), lot(8, name="a100")]
    assert play(even, [ask("b", 1, 400, pool="")]).won[0].lot == "a100"


def test_a_bid_without_a_pool_goes_where_its_block_can_be_had() -> None:
    # The cheaper pool has a GPU, but no two together that any price would free.
    cheap, dear = lot(1, name="cheap"), lot(8, name="dear", base=300)
    assert play([cheap, dear], [ask("b", 2, 400, pool="")]).won[0].lot == "dear"
    # Displacing costs more there than a free block does here.
    full = play([lot(0), dear], [ask("b", 2, 400, pool="")], (running("trainer", 8, 290),))
    assert (full.won[0].lot, full.displaced) == ("dear", ())


def test_bids_without_a_pool_do_not_all_herd_to_one() -> None:
    lots = [lot(2, name="a"), lot(2, name="b", base=150)]
    result = play(lots, [ask(f"bid-{n}", 2, 400, pool="") for n in range(2)])
    assert {won.lot for won in result.won} == {"a", "b"}


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(200, 900)), min_size=2, max_size=6),
    st.integers(200, 900),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_offering_more_does_not_lead_to_another_lot(bids, instead, here, there) -> None:
    lots = [lot(here, name="a"), lot(there, name="b", base=150)]
    leases = (
        msgspec.structs.replace(running("trainer", 4, 180), lot="a", domain="a-d0"),
        msgspec.structs.replace(running("tuner", 4, 140), lot="b", domain="b-d0"),
    )

    def lot_of_the_first(offered: int) -> str:
        asks = [ask(f"bid-{n}", gpus, price, pool="") for n, (gpus, price) in enumerate(bids)]
        asks[0] = ask("bid-0", bids[0][0], offered, pool="")
        result = play(lots, asks, leases)
        won = {award.ask: award.lot for award in result.won}
        return (won | {loss.ask: loss.lot for loss in result.lost})["bid-0"]

    assert lot_of_the_first(bids[0][1]) == lot_of_the_first(instead)


def test_the_best_bid_is_not_led_away_by_those_that_were_routed_before_it() -> None:
    lots = [lot(2, name="b"), lot(0, name="a")]
    bids = [ask("best", 2, 900, pool=""), *(ask(f"bid-{n}", 2, 110, pool="") for n in range(5))]
    leases = (msgspec.structs.replace(running("pinned", 2, 950), lot="a", domain="a-d0"),)
    assert [won.ask for won in play(lots, bids, leases).won] == ["best"]


def test_a_better_bid_displaces_and_waits_for_the_devices() -> None:
    result = play([lot(0)], [ask("chat", 2, 1200)], (running("trainer", 8, 200),))
    assert [(d.lease, d.compensation, d.by) for d in result.displaced] == [
        ("trainer", 7, ("chat",))
    ]
    won = result.won[0]
    assert (won.waits_for, won.minimum, won.price) == (("trainer",), 7, 1001)


def test_a_bid_not_worth_the_restart_does_not_displace() -> None:
    result = play([lot(0)], [ask("chat", 2, 999)], (running("trainer", 8, 200),))
    assert not result.displaced
    assert result.lost[0].price_to_win == 1001
    assert result.kept[0].price == 200  # 999 × 2 / 8 / 1.25, rounded up


def test_with_a_free_domain_nobody_is_displaced() -> None:
    result = play([lot(4)], [ask("chat", 4, 900)], (running("trainer", 4, 200),))
    assert not result.displaced
    assert result.won[0].waits_for == ()


def test_a_preemptor_that_cannot_pay_the_compensation_displaces_nobody_and_is_told() -> None:
    result = play([lot(0)], [ask("chat", 8, 900, hold=94)], (running("trainer", 8, 200),))
    assert not result.displaced
    (lost,) = result.lost
    assert (lost.reason, lost.short, lost.compensation) == (BidReason.WALLET_TOO_SMALL, 1, 7)
    assert "includes 0.000007 of compensation" in explain(lost)
    paid = play([lot(0)], [ask("chat", 8, 900, hold=93)], (running("trainer", 8, 200),))
    assert [won.minimum for won in paid.won] == [7]


def test_whoever_cannot_pay_is_left_out_and_the_next_is_served() -> None:
    asks = [ask("chat", 8, 900, hold=94), ask("small", 8, 800)]
    result = play([lot(0)], asks, (running("trainer", 8, 200),))
    assert [won.ask for won in result.won] == ["small"]
    assert result.won[0].price == 251, "a bid without money lifted the price"
    assert reasons(result) == {"chat": BidReason.WALLET_TOO_SMALL}


def test_a_preemptor_owes_for_all_that_it_displaces_together() -> None:
    leases = (running("one", 4, 200), running("two", 4, 200))
    assert play([lot(0)], [ask("chat", 8, 900, hold=86)], leases).won[0].minimum == 14
    assert not play([lot(0)], [ask("chat", 8, 900, hold=87)], leases).won


def test_who_ranks_first_takes_what_is_free_and_who_displaces_pays() -> None:
    leases = (running("trainer", 4, 200),)
    result = play([lot(4)], [ask("first", 4, 900), ask("second", 4, 800)], leases)
    assert {won.ask: won.minimum for won in result.won} == {"first": 0, "second": 7}


def test_bids_that_lose_keep_no_money_from_others_of_their_agent() -> None:
    poor = [
        msgspec.structs.replace(ask("large", 8, 900, hold=80), agent="x"),
        msgspec.structs.replace(ask("small", 1, 300, hold=80), agent="x"),
    ]
    result = clear_round(
        RoundInput(at=0, lots=(lot(4),), asks=tuple(poor), incumbents=(), available={"x": 100})
    )
    assert [won.ask for won in result.won] == ["small"]


def test_an_agent_wins_with_as_many_bids_as_its_wallet_covers_the_highest_first() -> None:
    asks = [msgspec.structs.replace(ask(f"b{n}", 1, 300 + n, hold=30), agent="x") for n in range(6)]
    result = clear_round(
        RoundInput(at=0, lots=(lot(8),), asks=tuple(asks), incumbents=(), available={"x": 100})
    )
    assert [won.ask for won in result.won] == ["b3", "b4", "b5"]
    assert set(reasons(result).values()) == {BidReason.WALLET_TOO_SMALL}


def test_a_budget_pays_the_compensation_too() -> None:
    given = RoundInput(
        at=0,
        lots=(lot(0),),
        asks=(msgspec.structs.replace(ask("chat", 8, 900, hold=60), budget="job"),),
        incumbents=(running("trainer", 8, 200),),
        available={"chat": 100},
        budgets={"job": 66},
    )
    assert reasons(clear_round(given)) == {"chat": BidReason.BUDGET_SPENT}
    assert clear_round(msgspec.structs.replace(given, budgets={"job": 67})).won


def test_agents_of_one_owner_owe_each_other_nothing() -> None:
    result = play([lot(0)], [ask("chat", 8, 900, owner="ann")], (running("trainer", 8, 200),))
    assert result.displaced[0].compensation == 0
    assert result.won[0].minimum == 0


def test_a_rising_base_price_evicts_nobody() -> None:
    dear = msgspec.structs.replace(lot(0), base=10_000)
    result = play([dear], [], (running("trainer", 8, 200),))
    assert [(k.lease, k.price) for k in result.kept] == [("trainer", 100)]


def test_either_or_goes_where_it_gains_most() -> None:
    """Eight of the one, else sixteen of the other; one of the two, never both."""
    lots = [lot(8), machines("a100", 2)]

    def won(h100: int, a100: int) -> tuple[str, int]:
        first = ask("b", 8, h100)
        second = msgspec.structs.replace(ask("b", 8, a100, pool="a100"), blocks=2)
        result = play(lots, [msgspec.structs.replace(first, otherwise=(second,))])
        assert len(result.won) == 1
        return result.won[0].lot, result.won[0].option

    assert won(900, 400) == ("h100", 0)  # 8 × 800 against 16 × 300
    assert won(300, 400) == ("a100", 1)
    assert won(300, 200) == ("h100", 0)  # equal: the first is preferred


def test_either_or_falls_back_when_the_first_cannot_be_had() -> None:
    lots = [lot(0), machines("a100", 2)]
    first = ask("b", 8, 900)
    second = ask("b", 8, 400, pool="a100")
    result = play(lots, [msgspec.structs.replace(first, otherwise=(second,))])
    assert (result.won[0].lot, result.won[0].option) == ("a100", 1)


def machines(name: str, count: int) -> Lot:
    domains = tuple(
        Domain(name=f"{name}-{d}", size=8, free=tuple(f"{name}/{d}/{i}" for i in range(8)))
        for d in range(count)
    )
    return Lot(name=name, base=100, posted=100, domains=domains)


def test_a_gang_wins_all_its_blocks_or_none() -> None:
    gang = msgspec.structs.replace(ask("gang", 8, 400), blocks=2)
    won = play([machines("h100", 2)], [gang]).won[0]
    assert (won.gpus, won.domains) == (16, ("h100-0", "h100-1"))
    result = play([machines("h100", 2)], [gang, ask("small", 1, 500)])
    assert [w.ask for w in result.won] == ["small"]
    too_large = msgspec.structs.replace(ask("gang", 8, 400), blocks=3)
    result = play([machines("h100", 2)], [too_large])
    assert reasons(result) == {"gang": BidReason.LARGER_THAN_EVERY_DOMAIN}


def test_gpus_anywhere_are_sold_as_they_are() -> None:
    anywhere = msgspec.structs.replace(ask("b", 13, 400), spread=True)
    won = play([machines("h100", 2)], [anywhere]).won[0]
    assert (won.gpus, len(set(won.devices))) == (13, 13)


def test_a_share_is_sold_only_where_gpus_are_divided() -> None:
    half = msgspec.structs.replace(ask("b", 1, 400), share="1/2")
    assert reasons(play([lot(8)], [half])) == {"b": BidReason.SHAPE_NOT_SOLD}
    divided = msgspec.structs.replace(lot(1), leaves=FRACTIONS)
    result = play([divided], [msgspec.structs.replace(half, id=f"b{n}") for n in range(3)])
    assert [won.devices for won in result.won] == [("h100/0",), ("h100/0",)]


def test_a_gang_that_runs_is_displaced_as_one() -> None:
    pool = machines("h100", 2)
    bare = msgspec.structs.replace(
        pool, domains=tuple(msgspec.structs.replace(d, free=()) for d in pool.domains)
    )
    by_domain = {d.name: d.free for d in pool.domains}
    gang = msgspec.structs.replace(
        running("gang", 16, 200),
        domain="h100-0",
        devices=tuple(device for free in by_domain.values() for device in free),
        gang=by_domain,
    )
    result = play([bare], [ask("chat", 8, 900)], (gang,))
    assert [d.lease for d in result.displaced] == ["gang"]
    assert result.won[0].minimum == 7


def test_a_small_pool_can_be_cleared_to_the_optimum() -> None:
    asks = [ask("one", 1, 500), ask("eight", 8, 400)]
    assert [w.ask for w in play([lot(8)], asks).won] == ["one"]
    best = play([msgspec.structs.replace(lot(8), exact=True)], asks)
    assert [(w.ask, w.price) for w in best.won] == [("eight", 100)]
