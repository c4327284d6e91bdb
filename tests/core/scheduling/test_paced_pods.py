"""Pods with a budget: what their bids say of it, and how a paced bid goes on from look to look."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.api import labels
from bidplane.api.agent import Strategy
from bidplane.api.money import parse_credits
from bidplane.core.bidding.asks import POD, problems
from bidplane.core.bidding.pacing import Pace
from bidplane.core.scheduling import CreateBid, DeleteBid, PlaneSnapshot, PriceBid, plan
from core.structs import as_bid

START = 1_800_000_000.0


def pod(owner: str = "", **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {labels.GPU_RESOURCE: "2"}}}
    metadata: dict[str, Any] = {
        "name": "train",
        "namespace": "default",
        "uid": "11111111-aaaa",
        "creationTimestamp": "2027-01-15T08:00:00Z",
        "annotations": {f"bidplane.dev/{k.replace('_', '-')}": v for k, v in annotations.items()},
    }
    if owner:
        metadata["ownerReferences"] = [{"kind": "Job", "uid": owner, "controller": True}]
    return {
        "metadata": metadata,
        "spec": {"containers": [container]},
        "status": {"phase": "Pending"},
    }


def planned(
    found: dict[str, Any],
    *bids: dict[str, Any],
    strategy: Strategy = Strategy.PACED,
    after: float = 0,
) -> list[Any]:
    return plan(
        PlaneSnapshot(
            pods=[found],
            bids=[as_bid(bid) for bid in bids],
            leases=[],
            nodes=[],
            max_price="10.00",
            strategy=strategy,
            now=START + after,
        )
    )


def made(found: dict[str, Any], strategy: Strategy = Strategy.PACED) -> dict[str, Any]:
    (operation,) = planned(found, strategy=strategy)
    assert isinstance(operation, CreateBid)
    return {**operation.bid, "metadata": {**operation.bid["metadata"], "uid": "b1"}}


def test_a_budget_binds_by_every_strategy() -> None:
    for strategy in Strategy:
        spec = made(pod(budget="5"), strategy)["spec"]
        assert (spec["budget"], spec["work"]) == ("5", "11111111-aaaa")
    assert "budget" not in made(pod())["spec"]


def test_it_is_shared_with_the_controllers_other_pods_and_with_what_it_was() -> None:
    assert made(pod("job-1", budget="5"))["spec"]["work"] == "job-1"
    assert made(pod(budget="5", work="first"))["spec"]["work"] == "first"


def test_a_paced_bid_is_what_lasts() -> None:
    """Five credits for two GPUs and an hour are 2.50 for each."""
    bid = made(pod(budget="5", work_seconds="3600"))
    assert bid["spec"]["maxPrice"] == "2.50"
    assert made(pod(budget="500"))["spec"]["maxPrice"] == "10.00"
    assert made(pod())["spec"]["maxPrice"] == "10.00", "without a budget there is no plan"


def test_what_was_spent_lowers_it_and_what_was_done_raises_it() -> None:
    found = pod(budget="5", work_seconds="3600")
    bid = made(found)
    bid["status"] = {"phase": "Waiting", "reason": "Outbid", "message": "", "spent": "4.00"}
    operation = next(op for op in planned(found, bid, after=5) if isinstance(op, PriceBid))
    assert operation.max_price == "0.50"
    bid["status"]["ranSeconds"] = 3240
    operation = next(op for op in planned(found, bid, after=5) if isinstance(op, PriceBid))
    assert 500_000 < parse_credits(operation.max_price) <= 5_000_000


def test_its_pace_is_remembered_on_the_bid() -> None:
    found = pod(budget="5", work_seconds="3600", deadline="2027-01-16T08:00:00Z")
    bid = made(found)
    first = msgspec.json.decode(bid["metadata"]["annotations"][labels.PACE], type=Pace)
    assert first.at == round(1000 * START)
    bid["status"] = {"phase": "Waiting", "reason": "Outbid", "message": "", "spent": "4.00"}
    operation = next(op for op in planned(found, bid, after=60) if isinstance(op, PriceBid))
    then = msgspec.json.decode(operation.pace, type=Pace)
    assert (then.spent, then.at) == (4_000_000, round(1000 * (START + 60)))
    assert then.mu > first.mu, "four of five credits in a minute of a day are too many"
    bid["metadata"]["annotations"][labels.PACE] = "what somebody else wrote"
    assert planned(found, bid, after=60)


def test_a_bid_whose_budget_is_spent_stands_so_that_it_is_known() -> None:
    found = pod(budget="5")
    bid = made(found)
    bid["status"] = {"phase": "Waiting", "reason": "BudgetSpent", "message": "", "spent": "5.00"}
    operations = planned(found, bid, after=5)
    assert not [op for op in operations if isinstance(op, DeleteBid | PriceBid | CreateBid)]
    assert [op.reason for op in operations] == ["BudgetSpent"]


def test_after_its_deadline_it_bids_no_more() -> None:
    found = pod(budget="5", deadline="2027-01-15T09:00:00Z")
    bid = made(found)
    bid["status"] = {"phase": "Waiting", "reason": "Outbid", "message": ""}
    assert [op for op in planned(found, bid, after=7200) if isinstance(op, DeleteBid)]


@pytest.mark.parametrize("text", ["0", "five", "-1"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    (problem,) = problems(POD, pod(budget=text))
    assert problem.startswith("metadata.annotations[bidplane.dev/budget]: ")


def test_what_lasts_is_of_what_it_is_sold_as() -> None:
    """Two GPUs are two until the exchange says that the pool sells them as three."""
    found = pod(budget="6", work_seconds="3600", link="domain")
    first = made(found)
    assert parse_credits(first["spec"]["maxPrice"]) == parse_credits("3.00")
    status = {"phase": "Waiting", "reason": "Outbid", "message": "", "gpusSold": 3}
    operations = planned(found, {**first, "status": status}, after=6)
    (priced,) = [one for one in operations if isinstance(one, PriceBid)]
    assert parse_credits(priced.max_price) == parse_credits("2.00")
