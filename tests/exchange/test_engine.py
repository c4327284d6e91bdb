"""The engine, one round at a time: what a story of bids comes to, in leases and in money."""

from __future__ import annotations

import msgspec

from bidplane.api.bid import BidPhase, BidReason
from bidplane.api.lease import Phase
from bidplane.core.market import RoundInput, RoundResult, clear_round
from bidplane.core.market.clearing import preemption
from bidplane.ledger import statement
from bidplane.ledger.records import REVENUE, lease_id, wallet_of

from .market import Market
from .words import CREDIT, MILLI, PRICE, agent, bid, gpus, pool


def test_a_bid_wins_is_claimed_and_pays_by_the_second(market: Market) -> None:
    report = market.round(bid("b1", "trainer", 2, PRICE))
    assert report.bids["b1"].phase is BidPhase.WON
    assert report.bids["b1"].lease == f"lease-{lease_id('b1')}"
    market.claim("b1", after=5)
    market.leave("b1", after=20)
    paid = 20 * 2 * 100_000 // 3600 + 1  # 20 s, two GPUs, at the floor price
    assert market.balance("trainer") == 10 * CREDIT - paid
    assert market.round().bids["b1"].phase is BidPhase.ENDED


def test_the_story_of_trainer_and_chat(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    report = market.round(bid("b2", "chat", 2, 3 * PRICE), after=60)
    assert [d.lease for d in report.result.displaced] == [lease_id("b1")]
    trainer, chat = market.lease("b1"), market.lease("b2")
    assert (trainer.phase, trainer.reason) == (Phase.DRAINING, "Outbid")
    assert (chat.phase, chat.ready, chat.waits_for) == (Phase.PENDING, False, (trainer.id,))
    assert trainer.compensation == min(trainer.charged, 60 * 4 * 100_000 // 3600 + 1)
    market.claim("b2")
    assert market.lease("b2").phase is Phase.PENDING  # its devices are not free yet
    market.leave("b1", after=10)
    assert market.lease("b2").phase is Phase.ACTIVE
    market.leave("b2", after=1)
    # It left at once, and still owes what it caused.
    assert market.lease("b2").charged >= trainer.compensation
    for name in ("trainer", "chat"):
        found = statement(market.ledger, f"uid-{name}", now=0)
        assert found is not None
        assert found.balance == market.balance(name)


def test_displacing_leaves_the_fund_as_full_as_it_was(market: Market) -> None:
    rich = (agent("trainer", refill=10_000), agent("chat", refill=10_000))
    market.round(bid("b0", "trainer", 4, PRICE), agents=rich)
    market.claim("b0")
    for n in range(1, 8):  # each displaces the one before, at twice its price
        market.round(after=59)
        full = market.fund()
        name = ("trainer", "chat")[n % 2]
        report = market.round(bid(f"b{n}", name, 4, 2**n * PRICE))
        gone = market.lease(f"b{n - 1}")
        assert [d.lease for d in report.result.displaced] == [gone.id], report.bids[f"b{n}"]
        assert gone.compensation > 0
        assert market.fund() >= full
        # It is paid beside the rent, which begins with the first second.
        new = market.lease(f"b{n}")
        assert new.charged == new.displacement == gone.compensation
        assert new.meter(0).balance == 0
        market.leave(f"b{n - 1}")
        market.claim(f"b{n}")
        assert market.lease(f"b{n}").phase is Phase.ACTIVE


def test_a_price_that_falls_by_much_is_charged_from_that_second(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, 2 * PRICE), bid("b2", "chat", 4, PRICE))
    market.claim("b1")
    dear = market.lease("b1").price  # what its rival offers, less what its weight adds
    assert PRICE // 2 < dear <= PRICE
    market.change(bids=market.world.bids[:1])
    market.round(after=2)  # well within the epoch
    assert market.lease("b1").price < dear // 2


def test_a_displaced_agent_does_not_displace_its_displacer(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    market.round(bid("b2", "chat", 4, 2 * PRICE), after=60)
    market.claim("b2")
    market.leave("b1")
    report = market.round(bid("b3", "trainer", 4, 2 * PRICE))
    assert report.bids["b3"].reason is BidReason.OUTBID
    assert report.bids["b3"].message.startswith(
        "Outbid: your maximum of 7.20 credits per GPU-hour lost to 9.00."
    )
    assert report.bids["b3"].price_to_win.startswith("8.99")


def test_a_waiting_bid_wins_when_its_rival_leaves(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    report = market.round(bid("b2", "chat", 4, PRICE))
    assert report.bids["b2"].reason is BidReason.OUTBID  # a win that has not begun is contested
    assert report.bids["b2"].price_to_win == "3.600001"  # and ranks as its bid did
    market.claim("b1")
    assert market.round().bids["b2"].reason is BidReason.OUTBID
    market.leave("b1")
    assert market.lease("b2").ready


def test_an_unclaimed_lease_is_released_after_a_minute(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.round(after=59)
    assert market.lease("b1").phase is Phase.PENDING
    report = market.round(after=1)
    assert market.lease("b1").reason == "Unclaimed"
    assert report.bids["b1"].phase is BidPhase.ENDED
    assert market.balance("trainer") == 10 * CREDIT - market.lease("b1").minimum


def test_a_claim_made_while_the_exchange_was_away_counts(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.restart()
    market.claim("b1", after=3600)
    assert market.lease("b1").phase is Phase.ACTIVE


def test_who_cannot_pay_gets_notice(market: Market) -> None:
    poor = agent("trainer", refill=1)
    market.change(agents=(poor, agent("chat")))
    # Two rivals keep the price at the bid; 4 GPUs hold 0.24 an epoch and use 4 m a second.
    market.round(bid("b1", "trainer", 4, PRICE), bid("b2", "chat", 4, PRICE - 1, created=1_000_000))
    market.claim("b1")
    for _ in range(400):
        market.round()
        if market.lease("b1").phase is not Phase.ACTIVE:
            break
    assert market.lease("b1").reason == "Unfunded"
    assert 0 < market.balance("trainer") < 240 * MILLI
    market.round(after=30)
    market.leave("b1", after=300)
    assert market.balance("trainer") >= 0
    assert market.lease("b2").phase is Phase.PENDING


def test_a_quiet_market_writes_nothing(market: Market) -> None:
    market.round(
        bid("b1", "trainer", 4, PRICE), bid("b2", "chat", 4, PRICE // 2, created=1_000_000)
    )
    market.claim("b1")
    for _ in range(10):  # what it has paid grows until the fund cannot pay it back: protected
        market.round()
    head = market.ledger.head.sequence
    for _ in range(18):
        market.round()
    assert market.ledger.head.sequence == head


def test_an_hour_of_one_lease_is_a_few_rows(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    for _ in range(3600):
        market.round()
    assert market.ledger.head.sequence <= 3 + 60 + 2
    exact = 3600 * 4 * 100_000 / 3600
    lease = market.lease("b1")
    due = lease.charged + lease.meter(round(market.now * 1000)).due
    assert due == exact


def test_bad_bids_get_a_name_and_move_nothing(market: Market) -> None:
    unreadable = msgspec.structs.replace(
        bid("b1", "trainer", 1, PRICE), problem="'free' is not an amount of credits"
    )
    report = market.round(
        unreadable,
        bid("b2", "trainer", 9, PRICE),
        bid("b3", "trainer", 1, PRICE, pool="nowhere"),
        bid("b4", "trainer", 1, 10_000 * PRICE),
        bid("b5", "stranger", 1, PRICE),
    )
    assert {uid: (s.phase.value, s.reason.value) for uid, s in report.bids.items()} == {
        "b1": ("Refused", "BadPrice"),
        "b2": ("Refused", "LargerThanEveryDomain"),
        "b3": ("Refused", "NoSuchPool"),
        "b4": ("Waiting", "WalletTooSmall"),
    }
    assert market.ledger.live_leases() == []
    assert market.ledger.account(REVENUE).posted == 0  # type: ignore[union-attr]


def test_a_wallet_is_promised_to_the_highest_bid_first(market: Market) -> None:
    # Ten credits: one GPU at 400 an hour holds 6.67 of them for an epoch, two would hold 13.
    dear, dearer = 400 * CREDIT, 401 * CREDIT
    report = market.round(bid("b1", "trainer", 1, dear), bid("b2", "trainer", 1, dearer))
    assert report.bids["b2"].phase is BidPhase.WON
    assert report.bids["b1"].reason is BidReason.WALLET_TOO_SMALL
    assert "3.350001 credits short" in report.bids["b1"].message


def test_a_deleted_agent_is_closed_once_its_leases_are_gone(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    gone = agent("trainer", deleting=True)
    market.round(agents=(gone, agent("chat")), bids=())
    assert market.ledger.account(wallet_of("uid-trainer")).is_open  # type: ignore[union-attr]
    market.leave("b1", after=30)
    market.round()
    account = market.ledger.account(wallet_of("uid-trainer"))
    assert account is not None
    assert (account.is_open, account.posted, account.held) == (False, 0, 0)


def test_an_agent_that_vanished_is_closed_with_its_leases(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    market.round(agents=(agent("chat"),), bids=())
    assert market.lease("b1").phase is Phase.RELEASED
    assert not market.ledger.account(wallet_of("uid-trainer")).is_open  # type: ignore[union-attr]


def test_a_recorded_round_replays(market: Market) -> None:
    market.round(bid("b1", "trainer", 3, PRICE), bid("b2", "chat", 4, PRICE * 2))
    market.claim("b2")
    market.round(after=60)
    rounds = market.ledger.rounds_after(0)
    assert rounds
    for record in rounds:
        given = msgspec.json.decode(record.input, type=RoundInput)
        assert clear_round(given) == msgspec.json.decode(record.result, type=RoundResult)


def test_a_bid_that_waited_ranks_higher_and_its_lease_keeps_that(market: Market) -> None:
    old = bid("b1", "trainer", 4, PRICE, created=int(market.now) - 3600)
    new = bid("b2", "chat", 4, PRICE * 14 // 10, created=int(market.now))
    report = market.round(old, new)
    assert report.bids["b1"].phase is BidPhase.WON  # half as high again: 1.5 beats 1.4
    market.claim("b1")
    assert market.lease("b1").age == preemption.MOST_AGE
    weight = market.engine_input().incumbents[0].weight
    assert weight == preemption.incumbent_weight(30, 30) + preemption.MOST_AGE <= 3 * 1024


def test_a_bid_past_its_deadline_is_told_so_and_does_not_win(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    late = msgspec.structs.replace(bid("b2", "chat", 4, PRICE // 2), deadline=int(market.now) + 10)
    assert market.round(late).bids["b2"].phase is BidPhase.WAITING
    report = market.leave("b1", after=60)
    assert (report.bids["b2"].phase, report.bids["b2"].reason) == (
        BidPhase.REFUSED,
        BidReason.DEADLINE_PASSED,
    )
    assert market.ledger.live_leases() == []


def test_either_or_and_gangs_come_to_one_lease(market: Market) -> None:
    market.change(devices=(*gpus(4), *gpus(4, node="n2")))
    gang = msgspec.structs.replace(bid("b1", "trainer", 4, PRICE), blocks=2)
    instead = msgspec.structs.replace(gang, gpus=1, blocks=1, price=100 * PRICE)
    report = market.round(msgspec.structs.replace(gang, otherwise=(instead,)))
    # One GPU at 100 times the price gains more than eight at theirs.
    lease = market.lease("b1")
    assert (lease.gpus, lease.max_price) == (1, 100 * PRICE)
    assert report.bids["b1"].message == "won 1 GPU in h100 at 0.10 per GPU-hour"
    market.leave("b1")
    market.round(msgspec.structs.replace(gang, uid="b3"))
    lease = market.lease("b3")
    assert {device.node for device in lease.devices} == {"n1", "n2"}
    market.claim("b3")
    held = market.engine_input().incumbents[0]
    assert {name: len(found) for name, found in held.gang.items()} == {
        "n1/nvlink-0": 4,
        "n2/nvlink-0": 4,
    }


def test_an_exact_pool_sells_to_the_better_set(market: Market) -> None:
    exact = msgspec.structs.replace(pool(), exact=True)
    bids = bid("b1", "trainer", 1, 2 * PRICE), bid("b2", "chat", 4, PRICE)
    report = market.round(*bids, pools=(exact,))
    assert report.bids["b2"].phase is BidPhase.WON
    assert report.bids["b1"].reason is BidReason.OUTBID
    assert report.bids["b1"].price_to_win == "14.400001"


def test_rent_stops_when_a_leased_device_is_gone(market: Market) -> None:
    market.change(devices=gpus(8))
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    lease = market.lease("b1")
    rest = tuple(view for view in gpus(8) if view.device != lease.devices[0])
    market.round(after=30, devices=rest)
    due = market.lease("b1").meter(round(market.now * 1000)).due
    assert due > 0
    market.round(after=600)
    market.leave("b1", after=600)
    assert market.lease("b1").charged == due
    assert market.balance("trainer") == 10 * CREDIT - due


def test_a_pool_that_lost_every_device_breaches_its_leases_too(market: Market) -> None:
    market.round(bid("b1", "trainer", 4, PRICE))
    market.claim("b1")
    market.round(after=1, devices=())
    assert market.lease("b1").breached_at == round(market.now * 1000)


def test_devices_that_differ_are_not_sold_as_one_block(market: Market) -> None:
    """Three GPUs at full width and one on four lanes: a block of two, never one of four."""
    narrow = {"bidplane.dev/pcieLinkWidth": "4"}
    wide = {"bidplane.dev/pcieLinkWidth": "16"}
    devices = tuple(
        msgspec.structs.replace(view, traits=narrow if n == 3 else wide)
        for n, view in enumerate(gpus(4))
    )
    picky = msgspec.structs.replace(pool(), sell_by=("bidplane.dev/pcieLinkWidth",))
    report = market.round(
        bid("b1", "trainer", 4, PRICE),
        bid("b2", "chat", 2, PRICE),
        pools=(picky,),
        devices=devices,
    )
    assert report.bids["b1"].reason is BidReason.LARGER_THAN_EVERY_DOMAIN
    assert market.lease("b2").devices == tuple(view.device for view in gpus(2))
    lots = market.engine_input().lots
    assert {lot.name: [len(d.free) for d in lot.domains] for lot in lots} == {
        "h100/16": [1],
        "h100/4": [1],
    }
    assert report.pools["h100"].lots == 2
