"""
The exchange looks at nodes: what is on one that cannot take a pod is sold to nobody, in no way;
who runs there goes on; and a node that is lost is paid for by nobody.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.api.kinds import GPU_LEASE, NODE, POOL, RESOURCE_SLICE
from bidplane.api.lease import Phase
from bidplane.api.times import rfc3339
from bidplane.exchange.instantsales import NoSale
from bidplane.exchange.round.devices import DeviceView
from bidplane.exchange.views import prices
from bidplane.ledger.rounds import explain_bid, replay

from .market import Market
from .stage import READY, Stage, play, slice_spec
from .test_at_once import told, with_a_float
from .words import PRICE, agent, bid, gpus, movable, parted, pool

TAINT = {"key": "team", "value": "vision", "effect": "NoSchedule"}
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def not_ready(at: float) -> dict[str, Any]:
    stamp = rfc3339(at)
    return {"conditions": [{"type": "Ready", "status": "Unknown", "lastTransitionTime": stamp}]}


@pytest.mark.parametrize(
    ("spec", "status", "words"),
    [
        ({"unschedulable": True}, READY, "is cordoned"),
        ({"taints": [TAINT]}, READY, "has the taint team=vision:NoSchedule"),
        ({}, not_ready(0), "is not ready"),
        (None, None, "is gone"),
    ],
)
def test_nothing_is_sold_of_a_node_that_takes_no_pod(
    tmp_path: Path, spec: Any, status: Any, words: str
) -> None:
    async def story(stage: Stage) -> None:
        if spec is None:
            stage.host.mark_deleted(NODE, "n1")
        else:
            stage.host.apply(NODE, "n1", spec=spec, status=status)
        stage.bid("trainer", "all", 4, "5.00")
        stage.bid("chat", "one", 1, "0.05")  # less than it costs at the least
        await stage.second()
        why = f"4 of 4 H100 are on node n1, which {words}"
        seen = stage.status("trainer", "all")
        assert (seen["phase"], seen["reason"]) == ("Waiting", "NoFreeBlock")
        assert seen["message"] == (
            f"No price wins a block of 4 GPUs in h100 now: {why}. The bid stands."
        )
        assert seen["withheld"] == why
        assert stage.status("chat", "one")["message"].endswith(f"{why}.")
        said = explain_bid(stage.ledger, "uid-bids-all")
        assert said is not None
        assert why in said.sentence
        assert stage.host.of(POOL)[0]["status"]["message"] == why.strip("()")
        # It is back, under its name: it sells.
        stage.host.apply(NODE, "n1", spec={}, status=READY)
        await stage.second()
        assert stage.status("trainer", "all")["phase"] == "Won"
        assert stage.host.of(POOL)[0]["status"]["message"] == ""

    play(tmp_path, story)


def test_what_is_left_is_sold_and_who_goes_without_is_told_of_the_rest(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        other = slice_spec(8)
        stage.host.apply(NODE, "n2", spec={"unschedulable": True}, status=READY)
        stage.host.apply(
            RESOURCE_SLICE, "n2", spec={**other, "nodeName": "n2", "pool": {"name": "n2"}}
        )
        stage.bid("trainer", "four", 4, "5.00")
        stage.bid("chat", "eight", 8, "5.00")
        await stage.second()
        assert stage.status("trainer", "four")["phase"] == "Won"
        seen = stage.status("chat", "eight")
        assert (seen["phase"], seen["reason"]) == ("Waiting", "NoFreeBlock"), "it may be back"
        assert seen["withheld"] == "8 of 12 H100 are on node n2, which is cordoned"

    play(tmp_path, story)


def test_prices_are_of_what_can_be_had(market: Market) -> None:
    """Two machines, the larger one cordoned: who asks what eight cost is told none."""
    devices = (*gpus(8, node="n1"), *gpus(4, node="n2"))
    report = market.round(devices=closed(devices, "n1"))
    seen = prices(market.ledger, report.result.lots, market.engine.desk).pools[0]
    assert list(seen.classes) == ["4", "2", "1"]
    assert (seen.devices, seen.leased) == (4, 0)
    assert seen.withheld == "8 of 12 H100 are on node n1, which is cordoned"
    report = market.round(devices=devices)
    seen = prices(market.ledger, report.result.lots, market.engine.desk).pools[0]
    assert ("8" in seen.classes, seen.devices, seen.withheld) == (True, 12, "")


def test_a_taint_that_agents_pods_tolerate_keeps_nobody_out(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        dedicated = {"key": "bidplane.dev/dedicated", "effect": "NoExecute"}
        stage.host.apply(NODE, "n1", spec={"taints": [GPU_TAINT, dedicated]}, status=READY)
        stage.bid("trainer", "all", 4, "5.00")
        await stage.second()
        assert stage.status("trainer", "all")["phase"] == "Won"

    play(tmp_path, story)


def test_a_cordon_leaves_who_runs_alone_whatever_others_offer(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.bid("trainer", "all", 4, "1.00")
        await stage.second()
        stage.claim("trainer", "all")
        await stage.second()
        stage.host.apply(NODE, "n1", spec={"unschedulable": True})
        stage.bid("chat", "more", 4, "50.00")
        await stage.second(100)
        await stage.second(100)
        lease = stage.ledger.lease_of_bid("uid-bids-all")
        assert lease is not None
        assert (lease.phase, lease.breached_at) == (Phase.ACTIVE, 0)
        assert lease.price == 100_000, "nobody can have it: it costs what it costs at the least"
        assert stage.status("chat", "more")["reason"] == "NoFreeBlock"
        # Contested again from the round after.
        stage.host.apply(NODE, "n1", spec={})
        await stage.second()
        assert stage.status("chat", "more")["phase"] == "Won"

    play(tmp_path, story)


def test_a_blip_costs_nothing_and_a_node_that_stays_away_is_not_paid_for(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.bid("trainer", "all", 4, "1.00")
        await stage.second()
        stage.claim("trainer", "all")
        await stage.second()

        def breached_at() -> int:
            lease = stage.ledger.lease_of_bid("uid-bids-all")
            assert lease is not None
            return lease.breached_at

        stage.host.apply(NODE, "n1", status=not_ready(stage.clock.time))
        await stage.second(59)
        assert breached_at() == 0
        stage.host.apply(NODE, "n1", status=READY)
        await stage.second(600)
        stage.host.apply(NODE, "n1", status=not_ready(stage.clock.time))
        await stage.second(61)
        assert breached_at() == round(stage.clock.time * 1000)
        stage.host.apply(NODE, "n1", status=READY)
        await stage.second()
        assert breached_at() == 0

    play(tmp_path, story)


def test_who_loses_its_node_owes_not_even_the_least_charge(tmp_path: Path) -> None:
    """Its lease is given back at once, by whoever saw the node go first."""

    async def story(stage: Stage) -> None:
        stage.bid("trainer", "all", 4, "1.00")
        await stage.second()
        stage.claim("trainer", "all")
        await stage.second()
        stage.host.mark_deleted(NODE, "n1")
        stage.give_back("trainer", "all")
        await stage.second()
        lease = stage.ledger.lease_of_bid("uid-bids-all")
        assert lease is not None
        assert (lease.phase, lease.reason) == (Phase.RELEASED, "Left")
        assert lease.charged == -(-4 * 100_000 // 3600), "a second, not ten"
        assert stage.host.of(GPU_LEASE) == []

    play(tmp_path, story)


def test_a_lease_that_has_not_begun_is_void_with_its_node(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        stage.bid("trainer", "all", 4, "1.00")
        await stage.second()
        stage.host.mark_deleted(NODE, "n1")
        await stage.second()
        lease = stage.ledger.lease_of_bid("uid-bids-all")
        assert lease is not None
        assert (lease.reason, lease.charged) == ("InventoryChanged", 0)

    play(tmp_path, story)


def test_between_two_rounds_a_cordoned_node_sells_nothing_either(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        await with_a_float(stage)
        stage.host.apply(NODE, "n1", spec={"unschedulable": True})
        stage.bid("chat", "ask", 1, "2.00", instant=True)
        await told(stage)
        assert stage.host.of(GPU_LEASE) == []
        stage.host.apply(NODE, "n1", spec={})
        await stage.second()
        assert stage.status("chat", "ask")["phase"] == "Won"

    play(tmp_path, story)


def closed(views: tuple[DeviceView, ...], *nodes: str) -> tuple[DeviceView, ...]:
    return tuple(
        msgspec.structs.replace(view, closed=f"on node {view.device.node}, which is cordoned")
        if view.device.node in nodes
        else view
        for view in views
    )


def test_a_part_that_was_cut_from_the_float_is_withdrawn_with_its_gpu(market: Market) -> None:
    devices = tuple(d for n in range(5) for d in gpus(8, node=f"n{n}"))
    terms = (parted(msgspec.structs.replace(pool(), float_percent=5)),)
    market.round(pools=terms, devices=devices, agents=(agent("chat", refill=1000),))
    half = msgspec.structs.replace(bid("b1", "chat", 1, PRICE, share="1/2"), instant=True)
    view = market.world.agents[0]
    now = round(market.now * 1000)
    first = market.engine.desk.serve(half, view, now=now)
    assert not isinstance(first, NoSale)
    market.engine.desk.withdraw(first.node)
    again = market.engine.desk.serve(msgspec.structs.replace(half, uid="b2"), view, now=now)
    assert isinstance(again, NoSale) or again.node != first.node


def test_nobody_moves_to_a_cordoned_node_nor_goes_on_there(market: Market) -> None:
    """Two machines of eight, four of each run; room could only be made on the other."""
    devices = (*gpus(8, node="n1"), *gpus(8, node="n2"))
    market.round(agents=(movable("a"), movable("b"), agent("big", refill=1000)), devices=devices)
    market.round(bid("a1", "a", 4, PRICE), bid("a2", "a", 4, PRICE), bid("b1", "b", 4, PRICE))
    market.claim("a1", "a2", "b1")
    market.leave("a1" if market.lease("a1").node == market.lease("a2").node else "a2")
    market.change(bids=())
    report = market.round(bid("big", "big", 8, PRICE), after=61, devices=closed(devices, "n1"))
    assert report.result.moved == ()
    assert market.round(devices=devices).result.moved
    (kept,) = market.kept()
    market.round(devices=closed(devices, kept.node))
    assert market.kept() == [], "what was kept on it is not sold there any more"


NODES = ("n1", "n2", "n3")
asks = st.tuples(
    st.sampled_from(("trainer", "chat")), st.sampled_from((1, 2, 4)), st.integers(1, 30)
)


@settings(max_examples=60, deadline=None)
@given(
    seconds=st.lists(
        st.tuples(st.sets(st.sampled_from(NODES)), st.lists(asks, max_size=3)),
        min_size=2,
        max_size=6,
    )
)
def test_whatever_is_cordoned_and_whoever_bids(
    tmp_path_factory: pytest.TempPathFactory,
    seconds: list[tuple[set[str], list[tuple[str, int, int]]]],
) -> None:
    """No win is on a closed device, nobody on one is displaced; the round replays to the byte."""
    market = Market(tmp_path_factory.mktemp("cordons") / "ledger.db")
    devices = tuple(view for node in NODES for view in gpus(4, node=node))
    market.change(agents=(agent("trainer", refill=1000), agent("chat", refill=1000)))
    for second, (cordoned, wanted) in enumerate(seconds):
        bids = [
            bid(f"b{second}-{n}", who, count, tenths * PRICE // 10)
            for n, (who, count, tenths) in enumerate(wanted)
        ]
        report = market.round(*bids, devices=closed(devices, *cordoned))
        for won in report.result.won:
            assert {device.partition("/")[0] for device in won.devices}.isdisjoint(cordoned)
        for gone in report.result.displaced:
            lease = market.ledger.lease(gone.lease)
            assert lease is not None
            assert lease.node not in cordoned
        if report.recorded:
            (record,) = market.ledger.rounds_after(report.round - 1, limit=1)
            assert replay(record).to_the_byte
        market.claim(*(won.ask for won in report.result.won))
    market.ledger.close()
