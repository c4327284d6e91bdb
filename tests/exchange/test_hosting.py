"""Bids whose pods request CPU and memory, or name nodes: sold only where they fit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api.bid import BidReason, NodeRequirement, NodeTerm
from bidplane.exchange.snapshot import BidView

from .market import Market
from .words import PRICE, bid, gpus


def host(name: str, cpu: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"zone": name}},
        "status": {"allocatable": {"cpu": cpu, "memory": "64Gi"}},
    }


@pytest.fixture
def two(market: Market) -> Market:
    """Four GPUs on a machine with eight CPUs, four on one with sixty-four."""
    market.change(
        devices=(*gpus(4, node="n1"), *gpus(4, node="n2")),
        hosts={"n1": host("n1", "8"), "n2": host("n2", "64")},
    )
    return market


def asking(uid: str, count: int, cpu: str = "", zone: str = "") -> BidView:
    here = NodeRequirement(key="zone", operator="In", values=[zone])
    return msgspec.structs.replace(
        bid(uid, "trainer", count, PRICE),
        requests={"cpu": cpu} if cpu else {},
        terms=(NodeTerm(match_expressions=[here]),) if zone else (),
    )


def nodes(market: Market, uid: str) -> set[str]:
    return {device.node for device in market.lease(uid).devices}


def test_a_bid_goes_to_a_machine_whose_share_has_what_its_pod_requests(two: Market) -> None:
    two.round(asking("b1", 1, cpu="3"), asking("b2", 2, cpu="20"))
    assert nodes(two, "b1") == nodes(two, "b2") == {"n2"}
    two.round(asking("b3", 2, cpu="4"))
    assert nodes(two, "b3") <= {"n1", "n2"}


def test_what_no_machine_has_is_refused_with_what_there_is(two: Market) -> None:
    report = two.round(asking("b1", 1, cpu="17"))
    assert report.bids["b1"].reason is BidReason.NO_MACHINE_FITS
    assert "at most cpu 16" in report.bids["b1"].message


def test_a_bid_goes_to_a_node_it_names(two: Market) -> None:
    for n in range(4):
        two.round(asking(f"b{n}", 1, zone="n1"))
        assert nodes(two, f"b{n}") == {"n1"}
    report = two.round(asking("elsewhere", 1, zone="n3"))
    assert report.bids["elsewhere"].reason is BidReason.NO_MACHINE_FITS
    assert "zone In n3" in report.bids["elsewhere"].message
