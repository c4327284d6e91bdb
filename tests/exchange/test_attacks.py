"""
Ways to cheat the exchange, each played to its end: none of them pays.

Money is counted over everything the attackers own, so that moving it between their own
pockets gains nothing. Refills are off: whatever a wallet has, it began with.
"""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.lease import Phase
from bidplane.core.market import Ask, Domain, Lot, RoundInput, clear_round
from bidplane.core.market.clearing import preemption
from bidplane.core.market.model import ONE
from bidplane.exchange.snapshot import AgentView
from bidplane.ledger import wallets
from bidplane.ledger.records import Lease, wallet_of

from .market import Market
from .words import CREDIT, PRICE, agent, bid, gpus, pool


def funded(market: Market, *agents: AgentView, credits: int = 1000) -> None:
    """Agents without a refill, each with the same credits."""
    market.round(agents=tuple(msgspec.structs.replace(a, refill=0) for a in agents))
    with market.ledger.commit(round(market.now * 1000)) as commit:
        for a in agents:
            wallets.fund(commit, uid=a.uid, amount=credits * CREDIT, key="start")


def wealth(market: Market, *names: str) -> int:
    return sum(market.balance(name) for name in names)


def base(market: Market) -> int:
    return market.round(after=0).result.lots[0].base


def rent(market: Market, *bids: str) -> int:
    """What was really used: GPU time at the price it was charged at."""
    found = [market.lease(b) for b in bids]
    return sum(lease.charged - lease.compensation for lease in found)


def preempt_in_turn(market: Market, first: str, second: str, turns: int) -> list[str]:
    """Each of the two displaces the other, again and again."""
    made: list[str] = []
    for n in range(turns):
        name = f"b{n}"
        market.round(bid(name, (first, second)[n % 2], 4, int(1.5**n * PRICE)), after=20)
        if made:
            market.leave(made[-1])
        made.append(name)
        market.claim(name)
        assert market.lease(name).phase is Phase.ACTIVE
    market.leave(made[-1])
    return made


def test_an_owner_that_preempts_itself_is_paid_nothing(market: Market) -> None:
    funded(market, agent("eve-1", owner="eve"), agent("eve-2", owner="eve"))
    fund, before = market.fund(), wealth(market, "eve-1", "eve-2")
    made = preempt_in_turn(market, "eve-1", "eve-2", 10)
    assert [market.lease(b).compensation for b in made] == [0] * 10
    assert wealth(market, "eve-1", "eve-2") == before - rent(market, *made) < before
    assert market.fund() >= fund


def test_two_owners_that_preempt_each_other_drain_no_fund(market: Market) -> None:
    funded(market, agent("eve"), agent("mallory"))
    fund, before = market.fund(), wealth(market, "eve", "mallory")
    made = preempt_in_turn(market, "eve", "mallory", 10)
    paid = sum(market.lease(b).compensation for b in made)
    assert paid > 0, "nobody was compensated: this shows nothing"
    assert market.fund() > fund  # the levies stay in it
    assert wealth(market, "eve", "mallory") == before - rent(market, *made)
    # Together they paid for every second they used, and for each win at least its minimum.
    for b in made:
        lease = market.lease(b)
        assert lease.compensation <= lease.charged
        assert lease.charged >= lease.minimum


def test_coming_only_to_be_displaced_does_not_pay(market: Market) -> None:
    """Squat at the floor price and wait for somebody who pays to get in."""
    funded(market, agent("squatter"), agent("chat"))
    before = market.balance("squatter")
    market.round(bid("b0", "squatter", 4, PRICE))
    market.claim("b0")
    market.round(bid("b1", "chat", 4, 10 * PRICE), after=300)
    market.leave("b0")
    lease = market.lease("b0")
    assert 0 < lease.compensation <= lease.charged
    assert market.balance("squatter") <= before


def test_a_pumped_base_price_evicts_nobody_and_costs_the_incumbent_nothing(market: Market) -> None:
    funded(market, agent("trainer"), agent("eve"))
    market.round(bid("b0", "trainer", 4, 10 * PRICE))
    market.claim("b0")
    # Bids that are high, and too low to displace: they go unserved, and lift the base.
    for n in range(600):
        market.round(*([bid("b1", "eve", 4, 12 * PRICE)] if n == 0 else []))
    lease = market.lease("b0")
    assert base(market) > pool().floor, "nothing was pumped: this shows nothing"
    assert lease.phase is Phase.ACTIVE
    # Its price is what keeps the rival out, never the base.
    assert lease.price <= 10 * PRICE
    market.round(bids=(), after=1)
    market.round(after=60)
    assert market.lease("b0").price == pool().floor


@pytest.mark.parametrize("rounds_per_second", [1, 20])
def test_the_base_price_cannot_be_pumped_by_more_rounds(
    market: Market, rounds_per_second: int
) -> None:
    funded(market, agent("trainer"), agent("eve"))
    market.round(bid("b0", "trainer", 4, 10 * PRICE))
    market.claim("b0")
    market.round(bid("b1", "eve", 4, 12 * PRICE))
    for _ in range(30 * rounds_per_second):
        market.round(after=1 / rounds_per_second)
    # 1/160 of itself a second, times how far use is above its target: 8 of 92 hundredths.
    floor = pool().floor
    assert floor < base(market) <= int(floor * (1 + 8 / 92 / 160) ** 31) + 31


def test_a_fall_in_use_lets_the_base_price_fall_again(market: Market) -> None:
    test_a_pumped_base_price_evicts_nobody_and_costs_the_incumbent_nothing(market)
    high = base(market)
    market.leave("b0")
    market.round(after=600)
    assert base(market) < high


def test_who_comes_late_never_does_better_than_who_came_early() -> None:
    """Sniping: in a sealed round the same bid, made later, wins no more and pays no less."""
    dice, changed = random.Random(3), 0
    for _ in range(300):
        asks = [
            Ask(
                id=f"b{i}",
                agent=f"a{i}",
                owner=f"a{i}",
                gpus=dice.choice([1, 2, 4, 8]),
                price=100 * dice.randint(1, 6),
                tie=dice.randint(10, 20),
                hold={"h100": 1},
            )
            for i in range(10)
        ]
        price: dict[int, int | None] = {}
        for tie in (5, 30):
            late = [msgspec.structs.replace(asks[0], tie=tie), *asks[1:]]
            won = {w.ask: w.price for w in clear_round(round_of(late)).won}
            price[tie] = won.get("b0")
        if price[30] is not None:
            early = price[5]
            assert early is not None
            assert early <= price[30]
        changed += price[5] != price[30]
    assert changed > 5


def round_of(asks: list[Ask], *lots: Lot) -> RoundInput:
    return RoundInput(
        at=0, lots=lots or (lot("h100"),), asks=tuple(asks), available={a.agent: 100 for a in asks}
    )


def lot(name: str, domains: int = 1) -> Lot:
    return Lot(
        name=name,
        base=100,
        posted=100,
        domains=tuple(
            Domain(name=f"{name}-{d}", size=8, free=tuple(f"{name}/{d}/{i}" for i in range(8)))
            for d in range(domains)
        ),
    )


def test_waiting_for_the_rival_to_win_first_costs_more(market: Market) -> None:
    """Sniping over rounds: a running lease ranks above its bid, so late is dearer."""
    funded(market, agent("trainer"), agent("eve"))
    market.round(bid("b0", "trainer", 4, PRICE, created=1))
    market.claim("b0")
    report = market.round(bid("b1", "eve", 4, PRICE + PRICE // 10, created=2), after=30)
    assert report.bids["b1"].phase == "Waiting"
    sealed = clear_round(
        round_of(
            [
                Ask(id=b, agent=b, owner=b, gpus=8, price=p, tie=t, hold={"h100": 1})
                for b, p, t in (("b0", PRICE, 1), ("b1", PRICE + PRICE // 10, 2))
            ]
        )
    )
    assert [won.ask for won in sealed.won] == ["b1"]


def test_bids_that_may_go_anywhere_spread_over_equal_pools() -> None:
    """Herding: forty bids, four pools of ten blocks; each pool gets ten."""
    lots = [lot(f"p{n}", domains=10) for n in range(4)]
    holds = {item.name: 1 for item in lots}
    asks = [
        Ask(id=f"b{i:02}", agent=f"a{i}", owner=f"a{i}", gpus=8, price=500, tie=i, hold=holds)
        for i in range(40)
    ]
    won = clear_round(round_of(asks, *lots)).won
    assert [sum(w.lot == item.name for w in won) for item in lots] == [10, 10, 10, 10]


def test_credits_that_are_held_count_toward_the_carry_over_cap(market: Market) -> None:
    """Laundering: what is locked in holds is still the wallet's when the refill looks."""
    market.change(devices=gpus(8), agents=(agent("hoarder", refill=100),))
    market.round()
    for hour in range(6):
        # All of it in holds: bids so high that they take the wallet whole.
        market.round(bid(f"b{hour}", "hoarder", 1, 2000 * CREDIT), after=1)
        market.round(after=3600)
    wallet = market.ledger.account(wallet_of("uid-hoarder"))
    assert wallet is not None
    assert wallet.posted <= 200 * CREDIT


def float_of_two(market: Market) -> None:
    devices = tuple(d for n in range(5) for d in gpus(8, node=f"n{n}"))
    market.change(pools=(msgspec.structs.replace(pool(), float_percent=5),), devices=devices)


def test_hoarding_the_float_costs_what_it_keeps_from_others(market: Market) -> None:
    """Buy all of it in every minute and claim none: each is paid for, and the price rises."""
    float_of_two(market)
    funded(market, agent("eve"), agent("chat"))
    before, sold = market.balance("eve"), 0
    for minute in range(5):
        market.round(after=61)
        wallet = market.ledger.account(wallet_of("uid-eve"))
        assert wallet is not None
        for n in range(3):
            found = market.engine.desk.buy(
                wallet,
                pool="h100",
                max_price=PRICE,
                key=f"{minute}/{n}",
                now=round(market.now * 1000),
            )
            sold += isinstance(found, Lease)
    market.round(after=61)
    assert market.ledger.live_leases() == []
    assert sold == 10
    # At least ten seconds of each, at more than a round would have asked.
    assert before - market.balance("eve") >= 10 * -(-105_000 * 10 // 3600)


def test_buying_at_once_is_no_way_around_being_outbid(market: Market) -> None:
    """What the float sold has no lead in its first epoch: a bid just above its own displaces it."""
    float_of_two(market)
    funded(market, agent("eve"), agent("chat"), agent("rest"))
    rest = msgspec.structs.replace(bid("rest", "rest", 38, PRICE), spread=True)
    market.round(msgspec.structs.replace(rest, term_seconds=3600))
    market.claim("rest")
    market.round()
    wallet = market.ledger.account(wallet_of("uid-eve"))
    assert wallet is not None
    leases = [
        market.engine.desk.buy(
            wallet, pool="h100", max_price=PRICE, key=str(n), now=round(market.now * 1000)
        )
        for n in range(2)
    ]
    market.round(claimed=market.world.claimed | {x.id for x in leases if isinstance(x, Lease)})
    report = market.round(bid("b1", "chat", 1, PRICE + 1))
    assert report.bids["b1"].phase == "Won"
    assert len(report.result.displaced) == 1


def test_two_owners_that_make_each_other_move_drain_no_fund(market: Market) -> None:
    """One pays, the other is paid; what they used together they paid for."""
    eve, mallory = agent("eve"), msgspec.structs.replace(agent("mallory"), movable=True)
    market.change(devices=(*gpus(8, node="n1"), *gpus(8, node="n2")))
    funded(market, eve, mallory)
    fund, before = market.fund(), wealth(market, "eve", "mallory")
    made, moved = [], 0
    for turn in range(4):
        names = [f"m{turn}-{n}" for n in range(3)]
        market.round(*(bid(name, "mallory", 4, PRICE) for name in names))
        market.claim(*names)
        nodes = [market.lease(name).node for name in names]
        market.leave(next(n for n, node in zip(names, nodes, strict=True) if nodes.count(node) > 1))
        market.change(bids=())
        report = market.round(bid(f"e{turn}", "eve", 8, PRICE), after=61)
        moved += len(report.result.moved)
        made += [*names, f"e{turn}"]
        for lease in market.ledger.live_leases():
            if lease.reason == "Moved":
                market.leave(lease.bid_uid)
        market.claim(f"e{turn}")
        market.leave(*(lease.bid_uid for lease in market.ledger.live_leases()))
        market.change(bids=(), left=frozenset(), claimed=frozenset())
        market.round(after=61)
    assert moved == 4, "nobody moved: this shows nothing"
    assert market.fund() > fund
    assert wealth(market, "eve", "mallory") == before - rent(market, *made)


@given(st.integers(0, 600), st.integers(0, 3600), st.integers(0, 10**6))
def test_who_has_won_never_ranks_lower_than_it_won_with(
    notice: int, restart: int, waited: int
) -> None:
    """No flip: the same price, and at least the weight its bid had."""
    gained = preemption.age(waited)
    assert preemption.incumbent_weight(notice, restart, gained) >= ONE + gained


def test_a_tie_is_the_time_of_the_bid_and_fits_64_bits(market: Market) -> None:
    """Within a second a hash decides. The columns count ties in 64 bits, until the year 2106."""
    last = 2**32 - 2
    times = [0, 1, last - 1, last]
    market.change(bids=tuple(bid(f"b{n}", "chat", 1, PRICE, created=n) for n in times))
    ties = {ask.id: ask.tie for ask in market.engine_input().asks}
    in_order = [ties[f"b{n}"] for n in times]
    assert in_order == sorted(in_order)
    assert in_order[-1] < 2**64
