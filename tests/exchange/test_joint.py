"""One bid for GPUs of several lots: one lease, one hold, one price, and the money adds up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api.bid import BidPhase, BidReason
from bidplane.api.lease import Phase
from bidplane.api.money import GPU_WEIGHT
from bidplane.exchange.projector import lease_object
from bidplane.exchange.snapshot import BidView, PoolView, bid_view
from bidplane.ledger import verify
from bidplane.ledger.reports.statement import statement
from bidplane.ledger.rounds import explain_bid, find_round, replay

from .market import Market
from .words import CREDIT, MILLI, PRICE, agent, bid, gpus, pool

L40 = pool("l40", floor=50_000, notice=10)
HALF = PRICE // 2


def joint(uid: str, agent: str, price: int, *needs: tuple[str, int], **more: Any) -> BidView:
    """Needs by pool and GPUs."""
    first, *others = (bid(uid, agent, n, price, pool=name) for name, n in needs)
    return msgspec.structs.replace(first, also=tuple(others), **more)


@pytest.fixture
def both(market: Market) -> Market:
    """A machine with eight H100s and one with an L40; rich agents."""
    market.change(
        agents=(agent("trainer", refill=1000), agent("chat", refill=1000)),
        pools=(pool(), L40),
        devices=(*gpus(8), *gpus(1, node="n2", product="L40")),
    )
    return market


def sound(market: Market) -> None:
    report = verify(market.path)
    assert report.is_sound, report.problem
    record = find_round(market.ledger, market.ledger.last_round)
    again = replay(record)
    assert again.is_same
    assert again.to_the_byte


def test_it_is_one_lease_with_one_hold_at_one_price(both: Market) -> None:
    report = both.round(joint("b1", "trainer", PRICE, ("h100", 8), ("l40", 1)))
    lease = both.lease("b1")
    assert report.bids["b1"].phase is BidPhase.WON
    assert report.bids["b1"].pool == "h100 + l40"
    assert [d.node for d in lease.devices] == ["n1"] * 8 + ["n2"]
    assert (lease.parts, lease.weight) == ((8, 1), 9 * GPU_WEIGHT)
    assert lease.pools == (("h100", 8 * GPU_WEIGHT, 800_000), ("l40", GPU_WEIGHT, 50_000))
    # Each lot's base price for what it has of it: (8 × 100,000 + 50,000) / 9, rounded up.
    assert lease.price == 94_445
    # Of the two pools' terms, the stricter: 30 s of notice, not 10.
    assert (lease.notice_seconds, lease.epoch_seconds) == (30, 60)
    with both.ledger.commit(0) as commit:
        held = [commit.hold(one.hold).amount for one in commit.live_leases()]
    assert held == [9 * 60 * MILLI]
    assert report.bids["b1"].message == (
        "won 8 GPUs in h100 and 1 GPU in l40 at 0.094445 per GPU-hour"
    )
    sound(both)


def test_each_of_its_blocks_is_a_node(both: Market) -> None:
    both.round(joint("b1", "trainer", PRICE, ("h100", 8), ("l40", 1)))
    shown = [lease_object(both.lease("b1"), part) for part in range(2)]
    assert [(one["spec"]["node"], len(one["spec"]["devices"])) for one in shown] == [
        ("n1", 8),
        ("n2", 1),
    ]
    assert {one["spec"]["pool"] for one in shown} == {"h100 + l40"}
    assert sum(one["spec"]["weight"] for one in shown) == both.lease("b1").weight


def test_without_room_in_one_of_them_it_waits_and_is_told_where(both: Market) -> None:
    protected = msgspec.structs.replace(bid("a", "chat", 1, PRICE, pool="l40"), term_seconds=100)
    both.round(protected)
    both.claim("a")
    report = both.round(joint("b1", "trainer", HALF, ("h100", 8), ("l40", 1)))
    said = report.bids["b1"]
    assert (said.phase, said.reason) == (BidPhase.WAITING, BidReason.NO_FREE_BLOCK)
    assert said.message.startswith(
        "No price wins 8 GPUs in h100 and 1 GPU in l40, all or none, now: 1 GPU in l40 cannot be"
        " had, since 1 GPU is held for a term, until "
    )
    both.claim("a", after=120)
    report = both.round(after=1)
    said = report.bids["b1"]
    assert said.reason is BidReason.OUTBID
    assert said.message.startswith(
        "Outbid: your maximum of 1.80 credits per GPU-hour for 8 GPUs in h100 and 1 GPU in l40"
    )
    found = explain_bid(both.ledger, "b1")
    assert found is not None
    assert "1 GPU in l40 went to others" in found.sentence
    # It gives the L40 back: now all of it is there.
    report = both.leave("a")
    assert report.bids["b1"].phase is BidPhase.WON
    sound(both)


def test_a_bid_that_only_its_own_agents_leases_keep_out_is_told_of_which_gpus(both: Market) -> None:
    both.round(bid("a", "trainer", 8, PRICE, pool="h100"))
    both.claim("a")
    report = both.round(joint("b1", "trainer", HALF, ("h100", 8), ("l40", 1)))
    assert report.bids["b1"].message.startswith(
        "No price wins 8 GPUs in h100 and 1 GPU in l40, all or none, now: 8 GPUs in h100 and 1 GPU"
        " in l40 cannot be had, since lease-"
    )


def test_its_levy_is_each_pools_by_how_much_it_has_of_it(both: Market) -> None:
    both.round(joint("b1", "trainer", PRICE, ("h100", 8), ("l40", 1)))
    paid = both.balance("trainer")
    both.claim("b1")
    both.round(after=70)
    both.leave("b1", after=50)
    lease = both.lease("b1")
    assert lease.phase is Phase.RELEASED
    assert paid - both.balance("trainer") == lease.charged > 0
    levies = {
        name: sum(t.amount for t in both.ledger.transfers_of(f"fund/{name}") if t.kind == "levy")
        for name in ("h100", "l40")
    }
    made = statement(both.ledger, "uid-trainer", now=0)
    assert made is not None
    levied = -sum(line.amount for line in made.lines if line.kind == "levy")
    assert sum(levies.values()) == levied > 0
    # By what they are worth: eight H100s at 0.10, an L40 at 0.05; give or take what is rounded.
    bills = sum(line.kind == "rent" for line in made.lines)
    assert abs(levies["h100"] - levied * 80 // 85) <= bills
    sound(both)


def test_whoever_takes_a_part_ends_all_of_it_and_makes_each_fund_good(both: Market) -> None:
    both.round(joint("b1", "trainer", HALF, ("h100", 8), ("l40", 1)))
    both.claim("b1")
    both.round(after=120)
    funds = {name: both.fund(name) for name in ("h100", "l40")}
    before = both.balance("trainer")
    both.round(bid("one", "chat", 1, 20 * PRICE, pool="l40"))
    lease = both.lease("b1")
    assert (lease.phase, lease.reason) == (Phase.DRAINING, "Outbid")
    assert lease.compensation > 0
    assert both.lease("one").waits_for == (lease.id,)
    # What each fund paid, whoever took the part paid into it; and the last bill's levy came in.
    made = statement(both.ledger, "uid-trainer", now=0)
    assert made is not None
    last = [line for line in made.lines if line.at == made.lines[-1].at]
    paid = sum(line.amount for line in last if line.kind == "compensation")
    assert (paid, sum(line.kind == "compensation" for line in last)) == (lease.compensation, 2)
    assert both.balance("trainer") == before + sum(line.amount for line in last)
    levied = -sum(line.amount for line in last if line.kind == "levy")
    assert sum(both.fund(name) for name in funds) == sum(funds.values()) + levied
    assert all(both.fund(name) >= funds[name] for name in funds)
    both.leave("b1")
    assert both.lease("one").ready
    sound(both)


def test_it_stays_against_lower_bids_for_a_part_of_it(both: Market) -> None:
    both.round(joint("b1", "trainer", PRICE, ("h100", 8), ("l40", 1)))
    both.claim("b1")
    report = both.round(bid("one", "chat", 1, HALF, pool="l40"), after=120)
    assert both.lease("b1").phase is Phase.ACTIVE
    assert report.bids["one"].reason is BidReason.OUTBID
    # For nine GPUs it pays what that one would for one, less what a restart of it costs.
    assert HALF // 9 * 3 // 4 < both.lease("b1").price < HALF // 9
    sound(both)


def test_all_of_it_in_one_machine_is_one_node(both: Market) -> None:
    both.change(devices=(*both.world.devices, *_named("l40", gpus(1, product="L40"))))
    bid_ = joint("b1", "trainer", PRICE, ("h100", 2), ("l40", 1), one_node=True)
    both.round(bid_)
    lease = both.lease("b1")
    assert {device.node for device in lease.devices} == {"n1"}
    assert len(lease.devices) == 3
    assert lease.parts == ()
    (shown,) = [lease_object(lease)]
    assert shown["spec"]["parts"] == 1
    sound(both)


def _named(prefix: str, views: Any) -> Any:
    return [
        msgspec.structs.replace(
            view, device=msgspec.structs.replace(view.device, name=f"{prefix}-{view.device.name}")
        )
        for view in views
    ]


def test_no_machine_that_has_all_is_a_refusal(both: Market) -> None:
    made = joint("b1", "trainer", PRICE, ("h100", 2), ("l40", 1), one_node=True)
    report = both.round(made)
    assert report.bids["b1"].phase is BidPhase.REFUSED
    assert report.bids["b1"].reason is BidReason.NO_MACHINE_HAS_ALL


def test_either_all_of_it_or_something_else(both: Market) -> None:
    protected = msgspec.structs.replace(bid("a", "chat", 1, PRICE, pool="l40"), term_seconds=600)
    both.round(protected)
    both.claim("a")
    made = joint("b1", "trainer", HALF, ("h100", 8), ("l40", 1))
    instead = bid("b1", "trainer", 4, HALF, pool="h100")
    report = both.round(msgspec.structs.replace(made, otherwise=(instead,)))
    assert report.bids["b1"].phase is BidPhase.WON
    assert len(both.lease("b1").devices) == 4


def test_a_device_that_goes_in_either_pool_breaches_it(both: Market) -> None:
    both.round(joint("b1", "trainer", PRICE, ("h100", 8), ("l40", 1)))
    both.claim("b1")
    assert not both.lease("b1").breached_at
    both.round(devices=gpus(8))
    assert both.lease("b1").breached_at
    sound(both)


def test_raising_it_raises_what_it_ranks_by(both: Market) -> None:
    made = joint("b1", "trainer", HALF, ("h100", 8), ("l40", 1))
    both.round(made)
    both.claim("b1")
    raised = msgspec.structs.replace(
        made, price=PRICE, also=tuple(msgspec.structs.replace(n, price=PRICE) for n in made.also)
    )
    both.round(bids=(raised,), after=5)
    assert both.lease("b1").max_price == PRICE


def test_a_budget_counts_all_of_it(both: Market) -> None:
    made = joint("b1", "trainer", PRICE, ("h100", 8), ("l40", 1), budget=CREDIT // 2, work="w")
    report = both.round(made)
    assert report.bids["b1"].reason is BidReason.BUDGET_SPENT
    assert "0.54" in report.bids["b1"].message  # nine GPUs for an epoch


def test_a_wallet_that_cannot_hold_all_of_it_is_told(both: Market) -> None:
    both.change(agents=(agent("trainer", refill=0), agent("chat")))
    report = both.round(joint("b1", "trainer", PRICE, ("h100", 8), ("l40", 1)))
    assert report.bids["b1"].reason is BidReason.WALLET_TOO_SMALL


def test_a_lease_whose_lot_has_split_can_be_outbid_still(both: Market) -> None:
    """Somebody's selector splits the pool between the two machines a gang has."""
    two = (*gpus(2), *gpus(2, node="n3"))
    both.change(devices=two, pools=(pool(),))
    both.round(bid("gang", "trainer", 2, HALF, blocks=2))
    both.claim("gang")
    both.round(after=120)
    facts = tuple(
        msgspec.structs.replace(
            view,
            facts=b'{"driver":"gpu.bidplane.dev","attributes":{"numa":{"int":%d}}}'
            % (view.device.node == "n3"),
        )
        for view in two
    )
    picky = msgspec.structs.replace(
        bid("one", "chat", 1, 20 * PRICE),
        selector='device.attributes["gpu.bidplane.dev"].numa == 1',
    )
    report = both.round(picky, devices=facts)
    assert report.pools["h100"].lots == 2
    assert both.lease("gang").phase is Phase.DRAINING
    assert both.lease("one").devices[0].node == "n3"
    sound(both)


# As it is written


def written(**spec: Any) -> BidView:
    made = bid_view(
        {
            "metadata": {
                "uid": "b1",
                "name": "b1",
                "namespace": "agent-trainer",
                "labels": {"bidplane.dev/agent": "trainer"},
            },
            "spec": {"gpus": 8, "maxPrice": "4.00", **spec},
        }
    )
    assert made is not None
    return made


def test_a_bid_says_what_it_needs_beside() -> None:
    made = written(pool="h100", also=[{"gpus": 8, "blocks": 2, "pool": "l40"}])
    assert not made.problem
    assert made.price == 4 * CREDIT
    assert [(n.pool, n.gpus, n.blocks) for n in made.needs] == [("h100", 8, 1), ("l40", 8, 2)]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"gpus": 1, "share": "1/2", "also": [{"gpus": 1}]}, "bid for it alone"),
        ({"gpus": 1, "share": "1/2", "oneNode": True}, "bid for it alone"),
        ({"oneNode": True, "also": [{"gpus": 1, "blocks": 2}]}, "set it once"),
        ({"also": [{"gpus": 1000, "blocks": 2}]}, "2008 GPUs; the most is 1024"),
        ({"blocks": 100, "oneNode": True, "also": [{"gpus": 4}]}, "1200 GPUs; the most is 1024"),
        ({"also": [{"gpus": 0}]}, "Expected `int` >= 1"),
        ({"also": [{"pool": "l40"}]}, "missing required field `gpus`"),
        ({"also": [{"gpus": 1}] * 8}, "length <= 7"),
        (
            {"otherwise": [{"gpus": 1, "share": "1/2", "maxPrice": "1", "also": [{"gpus": 1}]}]},
            "spec.otherwise[0]",
        ),
    ],
)
def test_forms_that_are_not_sold_are_refused_by_name(spec: dict[str, Any], said: str) -> None:
    made = written(**spec)
    assert made.bad is BidReason.BAD_BID
    assert said in made.problem


def test_a_need_that_no_pool_sells_is_named(both: Market) -> None:
    made = joint("b1", "trainer", PRICE, ("h100", 8), ("l40", 1))
    seen = b'{"driver":"gpu.bidplane.dev"}'
    both.change(devices=tuple(msgspec.structs.replace(v, facts=seen) for v in both.world.devices))
    beside = msgspec.structs.replace(made.also[0], selector="device.driver == 'nobody'")
    report = both.round(msgspec.structs.replace(made, also=(beside,)))
    assert report.bids["b1"].reason is BidReason.SELECTS_NOTHING
    assert report.bids["b1"].message.startswith("also[0]: no device")
    nowhere = joint("b2", "trainer", PRICE, ("h100", 8), ("tpu", 1))
    report = both.round(nowhere)
    assert report.bids["b2"].reason is BidReason.NO_SUCH_POOL


def test_exact_pools_are_cleared_to_the_optimum_together(both: Market) -> None:
    def exact(view: PoolView) -> PoolView:
        return msgspec.structs.replace(view, exact=True)

    both.change(pools=(exact(pool()), exact(L40)), agents=(*both.world.agents, agent("third")))
    # By rank the single one, first, would keep the nine out, which are worth more together.
    both.round(
        bid("one", "chat", 1, PRICE, pool="l40"),
        joint("b1", "trainer", HALF, ("h100", 8), ("l40", 1)),
    )
    assert both.ledger.lease_of_bid("one") is None
    # It pays what it keeps from the other: 3.60 for one GPU, over nine, and one more.
    assert both.lease("b1").win_price == PRICE // 9 + 1
    sound(both)


@pytest.mark.parametrize("rests", [True, False])
def test_an_idle_one_ranks_by_its_bid_alone_in_every_lot(both: Market, rests: bool) -> None:
    """All of its pools must call it idle: the longest of their windows counts, and 0 is never."""
    both.round(joint("b1", "trainer", PRICE, ("h100", 8), ("l40", 1)))
    both.claim("b1")
    both.round(after=400)
    left = {both.lease("b1").id: round(both.now * 1000) - 399_000}
    longer = msgspec.structs.replace(L40, idle_seconds=600)
    both.round(unused=left, pools=(pool(), longer))
    assert both.lease("b1").idle_since == 0
    never = msgspec.structs.replace(L40, idle_seconds=0)
    both.round(pools=(pool(), never))
    assert both.lease("b1").idle_since == 0
    both.round(pools=(pool(), L40), unused=left if rests else {})
    report = both.round(bid("a", "chat", 8, PRICE * 9 // 8 + 1, pool="h100"))
    assert (report.bids["a"].phase is BidPhase.WON) is rests
    assert (both.lease("b1").phase is Phase.DRAINING) is rests
    sound(both)
