"""Bids against running leases: who wins at once, what it pays for that, what a loser is told."""

from __future__ import annotations

import msgspec
import pytest

from bidplane.api.bid import BidPhase, BidReason
from bidplane.api.lease import Phase
from bidplane.ledger import verify
from bidplane.ledger.records import AccountKind, TransferKind, lease_id

from .market import Market
from .words import CREDIT, agent, bid, gpus


def held_and_contested(market: Market) -> None:
    """A lease of all GPUs at 1.00, and a rival that waits with as much."""
    market.round(bid("b1", "trainer", 4, CREDIT))
    market.claim("b1")
    market.round(bid("w", "chat", 4, CREDIT))
    market.round(after=120)


@pytest.mark.parametrize(("devices", "size"), [(1, 1), (4, 4), (8, 2), (8, 8)])
@pytest.mark.parametrize("rivals", [1, 5])
def test_a_high_bid_wins_in_the_round_it_arrives_though_others_wait(
    market: Market, devices: int, size: int, rivals: int
) -> None:
    agents = tuple(agent(name, refill=1000) for name in ("trainer", "chat", "prod"))
    market.change(agents=agents, devices=gpus(devices))
    holders = [f"b{n}" for n in range(devices // size)]
    market.round(*(bid(name, "trainer", size, CREDIT) for name in holders))
    market.claim(*holders)
    waiting = [bid(f"w{n}", "chat", size, CREDIT) for n in range(rivals)]
    market.round(*waiting)
    market.round(after=120)
    report = market.round(bid("high", "prod", size, 100 * CREDIT))
    assert report.bids["high"].phase is BidPhase.WON, report.bids["high"].message


@pytest.mark.parametrize(("size", "rent"), [(1, 240_000), (8, 1_920_000)])
def test_a_rival_lifts_the_rent_by_what_it_offers_for_all_of_the_lease(
    market: Market, size: int, rent: int
) -> None:
    """Eight GPUs at 2.00: one GPU at 2.40 is 0.24 for each of them, less what running ranks."""
    agents = tuple(agent(name, refill=1000) for name in ("trainer", "chat", "poor"))
    poor = msgspec.structs.replace(agents[2], refill=1000, cap=1000)
    market.change(agents=(*agents[:2], poor), devices=gpus(8))
    market.round(bid("b1", "trainer", 8, 2 * CREDIT))
    market.claim("b1")
    market.round(bid("own", "trainer", 8, 2 * CREDIT), bid("p", "poor", 8, 2 * CREDIT), after=120)
    assert market.lease("b1").price == 100_000, "its own bids and those without money lift nothing"
    market.round(bid("r", "chat", size, 2_400_000, created=round(market.now)))
    weight = market.engine_input().incumbents[0].weight
    assert market.lease("b1").price == -(-rent * 1280 // weight)
    assert weight in (1279, 1280)


def test_whoever_displaces_pays_the_compensation_on_top_of_its_rent(market: Market) -> None:
    held_and_contested(market)
    before = {name: market.balance(name) for name in ("trainer", "chat")}
    market.round(bid("b2", "chat", 4, 4 * CREDIT))
    owed = market.lease("b1").compensation
    assert owed > 0
    chat = market.lease("b2")
    assert before["chat"] - market.balance("chat") == owed == chat.charged
    assert chat.meter(round(market.now * 1000)).balance == 0, "it was counted as rent paid ahead"
    market.leave("b1")
    market.claim("b2")
    market.leave("b2", after=100)
    chat = market.lease("b2")
    assert chat.charged - owed >= 400 * 100_000 // 3600, "its own time was not charged in full"


def test_the_fund_neither_gains_nor_loses_by_a_displacement_and_needs_no_seed(
    market: Market,
) -> None:
    held_and_contested(market)
    before = market.fund()
    transfers = market.ledger.transfers_of("fund/h100")
    assert before == sum(made.amount for made in transfers if made.kind is TransferKind.LEVY)
    market.round(bid("b2", "chat", 4, 4 * CREDIT))
    assert market.lease("b1").compensation > 0
    kinds = [account.kind for account in market.ledger.accounts() if account.seeded]
    assert AccountKind.FUND not in kinds
    market.ledger.close()
    assert verify(market.path).is_sound


def test_a_wallet_that_cannot_pay_the_compensation_is_told_how_much_is_missing(
    market: Market,
) -> None:
    poor = msgspec.structs.replace(agent("poor"), refill=101_000, cap=CREDIT)  # an epoch, no more
    market.change(agents=(agent("trainer", refill=1000), agent("chat", refill=1000), poor))
    held_and_contested(market)
    report = market.round(bid("b2", "poor", 4, 1_500_000))
    told = report.bids["b2"]
    assert (told.phase, told.reason) == (BidPhase.WAITING, BidReason.WALLET_TOO_SMALL)
    assert "compensat" in told.message
    assert not report.result.displaced
    # The next in rank that can pay is served instead.
    report = market.round(bid("b3", "chat", 4, 1_400_000))
    assert [gone.lease for gone in report.result.displaced] == [lease_id("b1")]
    assert report.bids["b3"].phase is BidPhase.WON


def test_two_who_take_turns_pay_no_less_than_one_who_stays(market: Market) -> None:
    agents = tuple(agent(name, refill=1000) for name in ("trainer", "chat"))
    market.change(agents=agents)
    held = "b0"
    market.round(bid(held, "trainer", 4, CREDIT))
    market.claim(held)
    for turn in range(1, 8):
        market.round(after=89)
        name = f"b{turn}"
        price = int(CREDIT * 1.3**turn)
        market.round(bid(name, ("trainer", "chat")[turn % 2], 4, price))
        assert market.lease(name).phase.value == "Pending", turn
        market.leave(held)
        market.claim(name)
        held = name
    market.leave(held, after=89)
    used = sum(
        4 * lease.price * (lease.released_at - lease.active_at) // 3_600_000
        for lease in (market.lease(f"b{n}") for n in range(8))
    )
    paid = sum(1000 * CREDIT - market.balance(name) for name in ("trainer", "chat"))
    staying = 4 * 100_000 * (7 * 90) // 3600
    assert paid >= staying
    assert used


def test_a_bid_displaces_a_stranger_and_not_the_lowest_lease_of_its_own_agent(
    market: Market,
) -> None:
    """The lease of the stranger ranks between the two; the bid pays for it."""
    market.round(
        agents=(agent("a", refill=1000), agent("b", refill=1000)),
        devices=(*gpus(4, node="n1"), *gpus(4, node="n2")),
    )
    market.round(bid("lowest", "a", 4, CREDIT), bid("between", "b", 4, 2 * CREDIT))
    market.claim("lowest", "between")
    report = market.round(bid("high", "a", 4, 20 * CREDIT), after=61.0)
    assert report.bids["high"].phase == "Won"
    assert market.lease("lowest").phase is Phase.ACTIVE
    between = market.lease("between")
    assert between.phase is Phase.DRAINING
    assert between.compensation > 0
    # The least with which it outranks `between`, whose weight is 1.25 and a little.
    assert 2 * CREDIT < market.lease("high").price < 3 * CREDIT
