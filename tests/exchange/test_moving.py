"""
Room is made for a block: those who agreed to move have notice, compensation and other devices,
whoever the block is for pays for it, and everybody goes on.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api.lease import Phase
from bidplane.exchange.views import explanation, round_view
from bidplane.ledger.records import TransferKind, lease_id
from bidplane.ledger.rounds import explain_bid, replay

from .market import Market
from .words import PRICE, agent, bid, gpus, movable

MINUTE = 61.0


@pytest.fixture
def scattered(market: Market) -> Market:
    """Two machines of eight; each has four that run, and four that are free."""
    market.round(
        agents=(movable("a"), movable("b"), agent("big", refill=1000)),
        devices=(*gpus(8, node="n1"), *gpus(8, node="n2")),
    )
    market.round(bid("a1", "a", 4, PRICE), bid("a2", "a", 4, PRICE), bid("b1", "b", 4, PRICE))
    market.claim("a1", "a2", "b1")
    market.leave("a1" if market.lease("a1").node == market.lease("a2").node else "a2")
    left = [market.lease(uid) for uid in ("a1", "a2", "b1")]
    running = [lease for lease in left if lease.phase is Phase.ACTIVE]
    assert len({lease.node for lease in running}) == 2, "not scattered"
    market.change(bids=())
    market.round(after=MINUTE)
    return market


def test_a_block_that_fits_nowhere_is_made_room_for(scattered: Market) -> None:
    fund = scattered.fund()
    report = scattered.round(bid("big", "big", 8, PRICE))
    assert report.bids["big"].phase == "Won"
    big, gone, (there,) = scattered.lease("big"), scattered.moved(), scattered.kept()
    assert not big.ready
    assert big.waits_for == (gone.id,)
    assert len(big.devices) == 8
    assert len({device.node for device in big.devices}) == 1
    # Notice and restart, a minute of four GPUs at its own price; the fund is as it was.
    assert gone.phase is Phase.DRAINING
    assert gone.compensation == 100_000 * 4 * 60 // 3600 + (100_000 * 4 * 60 % 3600 > 0)
    assert scattered.fund() - fund == sum(
        t.amount
        for t in scattered.ledger.transfers_of("fund/h100")
        if t.kind is TransferKind.LEVY and t.at == round(scattered.now * 1000)
    )
    assert set(there.devices).isdisjoint(big.devices)
    assert (there.moved_from, there.agent, there.price) == (gone.id, gone.agent, gone.price)


def test_who_moved_goes_on_at_its_price_and_who_paid_has_its_block(scattered: Market) -> None:
    scattered.round(bid("big", "big", 8, PRICE))
    gone, (there,) = scattered.moved(), scattered.kept()
    scattered.leave(gone.bid_uid)
    assert scattered.lease("big").ready
    # Its pod comes back and bids as it did; nobody contests what is kept for it.
    report = scattered.round(bid("again", gone.agent, 4, PRICE), bid("rival", "big", 4, 20 * PRICE))
    again = scattered.lease("again")
    assert again.devices == there.devices
    assert (again.price, again.age, again.phase) == (gone.price, gone.age, Phase.PENDING)
    assert report.bids["again"].message == (
        "goes on with 4 GPUs in h100, kept for it when its lease was moved, at 0.10 per GPU-hour"
    )
    assert scattered.kept() == []
    scattered.claim("again", "big")
    assert scattered.lease("again").phase is Phase.ACTIVE
    assert scattered.lease("big").phase is Phase.ACTIVE
    verdict = explain_bid(scattered.ledger, "again")
    assert verdict is not None
    assert "kept for it when its lease was moved" in verdict.sentence
    seen = explanation(scattered.ledger, "again", agent=gone.agent)
    assert seen is not None
    assert (seen.event, seen.gpus_sold) == ("Won", 4)


def test_the_round_shows_it_and_comes_out_the_same_again(scattered: Market) -> None:
    report = scattered.round(bid("big", "big", 8, PRICE))
    (record,) = scattered.ledger.rounds_after(report.round - 1, limit=1)
    assert replay(record).is_same
    gone = scattered.moved()
    outcomes = round_view(record, agent=gone.agent).outcomes
    assert [(o.event, o.gpus) for o in outcomes] == [("Moved", 4)]
    assert outcomes[0].message == (
        f"moves from {gone.domain} to {scattered.kept()[0].domain}, to make room;"
        " compensated with 0.006667"
    )


def test_what_nobody_takes_up_is_free_again_and_costs_nothing(scattered: Market) -> None:
    scattered.round(bid("big", "big", 8, PRICE))
    gone, (there,) = scattered.moved(), scattered.kept()
    scattered.leave(gone.bid_uid)
    balance = scattered.balance(gone.agent)
    scattered.round(after=59)
    assert scattered.kept()
    scattered.round(after=2)
    assert scattered.kept() == []
    assert scattered.balance(gone.agent) == balance
    ended = scattered.ledger.lease(there.id)
    assert ended is not None
    assert (ended.phase, ended.charged, ended.reason) == (Phase.RELEASED, 0, "Unclaimed")


def refused(market: Market, **changes: Any) -> None:
    report = market.round(bid("big", "big", 8, PRICE), **changes)
    assert report.bids["big"].phase == "Waiting"
    assert not report.result.moved


def test_nobody_moves_who_did_not_agree(scattered: Market) -> None:
    refused(
        scattered,
        agents=tuple(msgspec.structs.replace(a, movable=False) for a in scattered.world.agents),
    )


def test_nobody_moves_who_has_just_come(market: Market) -> None:
    """No thrash: who runs has its first epoch where it is."""
    market.round(
        agents=(movable("a"), movable("b"), agent("big", refill=1000)),
        devices=(*gpus(8, node="n1"), *gpus(8, node="n2")),
    )
    market.round(bid("a1", "a", 4, PRICE), bid("a2", "a", 4, PRICE), bid("b1", "b", 4, PRICE))
    market.claim("a1", "a2", "b1")
    market.leave("a1" if market.lease("a1").node == market.lease("a2").node else "a2")
    market.change(bids=())
    refused(market)
    report = market.round(after=MINUTE)
    assert report.bids["big"].phase == "Won"


def test_a_price_that_does_not_cover_the_moves_moves_nobody(scattered: Market) -> None:
    """0.006667 credits on eight GPUs within 300 s are 0.01 per GPU-hour beyond the base price."""
    report = scattered.round(bid("big", "big", 8, 110_000))
    assert not report.result.moved
    scattered.change(bids=())
    report = scattered.round(bid("more", "big", 8, 110_100))
    assert report.result.moved


def test_a_wallet_that_cannot_hold_it_moves_nobody(scattered: Market) -> None:
    poor = msgspec.structs.replace(agent("poor"), refill=1, cap=1)
    report = scattered.round(bid("big", "poor", 8, PRICE), agents=(*scattered.world.agents, poor))
    assert report.bids["big"].reason == "WalletTooSmall"
    assert not report.result.moved


def test_agents_of_one_owner_cannot_draw_from_the_fund(scattered: Market) -> None:
    same = tuple(msgspec.structs.replace(a, owner="one") for a in scattered.world.agents)
    for lease in scattered.ledger.live_leases():
        with scattered.ledger.commit(round(scattered.now * 1000)) as commit:
            commit.change_lease(msgspec.structs.replace(lease, owner="one"))
    fund = scattered.fund()
    scattered.round(bid("big", "big", 8, PRICE), agents=same)
    assert scattered.moved().compensation == 0
    compensated = [
        t for t in scattered.ledger.transfers_of("fund/h100") if t.kind is TransferKind.COMPENSATION
    ]
    assert compensated == []
    assert scattered.fund() >= fund


def test_only_its_own_kind_of_bid_takes_up_what_is_kept(scattered: Market) -> None:
    scattered.round(bid("big", "big", 8, PRICE))
    gone, (there,) = scattered.moved(), scattered.kept()
    scattered.leave(gone.bid_uid)
    twice = bid("twice", gone.agent, 4, 1, blocks=2)
    scattered.round(bid("less", gone.agent, 2, 1), bid("not-mine", "big", 4, 1), twice)
    assert scattered.kept(), "it was taken by a bid for something else, or by somebody else"
    elsewhere = msgspec.structs.replace(bid("other", gone.agent, 4, PRICE), pool="nowhere")
    scattered.round(elsewhere)
    assert scattered.kept()
    assert there.devices == scattered.kept()[0].devices


def test_an_agent_that_is_deleted_leaves_nothing_kept(scattered: Market) -> None:
    scattered.round(bid("big", "big", 8, PRICE))
    gone = scattered.moved()
    scattered.round(
        agents=tuple(a for a in scattered.world.agents if a.name != gone.agent),
        bids=tuple(b for b in scattered.world.bids if b.agent != gone.agent),
    )
    assert scattered.kept() == []
    assert scattered.lease("big").ready


def test_a_device_that_goes_is_not_kept(scattered: Market) -> None:
    scattered.round(bid("big", "big", 8, PRICE))
    (there,) = scattered.kept()
    scattered.round(
        devices=tuple(d for d in scattered.world.devices if d.device != there.devices[0])
    )
    assert scattered.kept() == []


def test_a_restart_between_any_two_rounds_changes_nothing(scattered: Market) -> None:
    """What is kept is in the ledger, with everything else."""
    scattered.restart()
    scattered.round(bid("big", "big", 8, PRICE))
    scattered.restart()
    gone, (there,) = scattered.moved(), scattered.kept()
    scattered.leave(gone.bid_uid)
    scattered.restart()
    scattered.round(bid("again", gone.agent, 4, PRICE))
    assert scattered.lease("again").devices == there.devices
    assert scattered.lease("again").id == lease_id("again")
    scattered.restart()
    scattered.claim("again", "big")
    assert {lease.phase for lease in scattered.ledger.live_leases()} == {Phase.ACTIVE}
