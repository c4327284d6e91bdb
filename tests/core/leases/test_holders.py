"""A lease that a program holds ends when the program's beat stops, or its notice is over."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.reading import Bid, GPULease
from bidplane.core.leases.holders import (
    EndHold,
    Keep,
    LastBeat,
    MarkClaimed,
    decide,
    hold_seconds,
    problem,
    see,
)
from core.structs import as_bid, as_lease

Json = dict[str, Any]
BEAT = LastBeat("uid", "1", 100.0)


def bid(beat: str = "1", seconds: str = "60") -> Bid:
    annotations = {labels.HOLD_SECONDS: seconds, labels.HOLD_BEAT: beat}
    return as_bid({"metadata": {"uid": "uid", "annotations": annotations}})


def lease(deleted: str = "", **status: Any) -> GPULease:
    metadata = {"name": "lease-1", "deletionTimestamp": deleted}
    return as_lease({"metadata": metadata, "status": {"phase": "Pending", **status}})


@pytest.mark.parametrize(
    ("now", "reclaim_at", "step"),
    [
        (100.0, None, Keep(60.0)),
        (159.5, None, Keep(0.5)),
        (160.0, None, EndHold("HoldExpired")),
        (110.0, 130.0, Keep(20.0)),
        (110.0, 500.0, Keep(50.0)),
        (130.0, 130.0, EndHold("NoticeOver")),
        (160.0, 130.0, EndHold("HoldExpired")),
    ],
)
def test_a_hold_goes_on_until_its_beat_is_old_or_its_notice_is_over(
    now: float, reclaim_at: float | None, step: Keep | EndHold
) -> None:
    assert decide(60, BEAT, [], now=now, reclaim_at=reclaim_at) == step


@pytest.mark.parametrize(
    ("status", "is_claimed"),
    [
        ({}, True),
        ({"ready": False}, False),  # whoever was displaced has not left
        ({"phase": "Active"}, False),
        ({"conditions": [{"type": "Claimed", "status": "True"}]}, False),
    ],
)
def test_a_lease_that_is_ready_is_claimed_once(status: Json, is_claimed: bool) -> None:
    held = lease(**status)
    step = decide(60, BEAT, [held], now=100.0, reclaim_at=None)
    assert step == (MarkClaimed(held) if is_claimed else Keep(60.0))


def test_a_lease_that_is_being_released_is_not_claimed() -> None:
    held = lease("2027-01-15T08:00:00Z")
    assert decide(60, BEAT, [held], now=100.0, reclaim_at=None) == Keep(60.0)


def test_the_age_of_a_beat_is_measured_here() -> None:
    first = see(bid("1"), None, now=100.0)
    assert see(bid("1"), first, now=150.0) is first
    assert see(bid("2"), first, now=150.0) == LastBeat("uid", "2", 150.0)


@pytest.mark.parametrize("text", ["4", "3601", "-5", "5.5", "", "٦٠", "60 "])
def test_a_period_that_is_too_short_too_long_or_no_number_is_named(text: str) -> None:
    complaint = problem(text)
    assert complaint is not None
    assert repr(text) in complaint
    assert hold_seconds(bid(seconds=text)) is None


@pytest.mark.parametrize("text", ["5", "60", "3600"])
def test_a_period_within_the_bounds_holds(text: str) -> None:
    assert problem(text) is None
    assert hold_seconds(bid(seconds=text)) == int(text)
