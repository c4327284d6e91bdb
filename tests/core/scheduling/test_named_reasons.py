"""Every reason for which a pod waits without a bid, by its name, with what to do about it."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.agent import Strategy
from bidplane.core.hosting.translation import host_name
from bidplane.core.scheduling import Explain, Operation, PlaneSnapshot, plan
from bidplane.core.scheduling.podclaims import Devices
from core.structs import as_bid, as_lease

Json = dict[str, Any]
NOW = 1_800_000_000.0  # 2027-01-15T08:00:00Z


def pod(name: str = "train", gpus: int = 1, **spec: Any) -> Json:
    limits = {labels.GPU_RESOURCE: str(gpus)} if gpus else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-of-{name}",
            "creationTimestamp": "2027-01-15T08:00:00Z",
            "annotations": {},
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], **spec},
        "status": {"phase": "Pending"},
    }


def plan_for(*pods: Json, devices: Devices | None = None, **settings: Any) -> list[Operation]:
    settings = {"bids": [], "leases": [], "nodes": [], **settings}
    snapshot = PlaneSnapshot(
        pods=list(pods),
        max_price="1.00",
        now=NOW,
        devices=devices or Devices(),
        **settings,
    )
    return plan(snapshot)


def explanation(operations: list[Operation], name: str = "train") -> tuple[str, str]:
    [explain] = [
        operation
        for operation in operations
        if isinstance(operation, Explain) and operation.pod["metadata"]["name"] == name
    ]
    return explain.reason, explain.message


def test_a_pod_whose_strategy_offers_nothing_now_is_told_so() -> None:
    late = pod()
    late["metadata"]["annotations"][labels.DEADLINE] = "2027-01-15T07:59:59Z"
    assert explanation(plan_for(late, strategy=Strategy.DEADLINE)) == (
        "NotBidding",
        "the pod does not bid now: its deadline has passed",
    )


def test_a_gang_whose_strategy_offers_nothing_now_is_told_so() -> None:
    members = [pod("a"), pod("b")]
    for member in members:
        member["metadata"]["annotations"] = {
            labels.GANG: "pair",
            labels.GANG_SIZE: "2",
            labels.DEADLINE: "2027-01-15T07:59:59Z",
        }
    operations = plan_for(*members, strategy=Strategy.DEADLINE)
    assert explanation(operations, "a") == (
        "NotBidding",
        "the gang does not bid now: its deadline has passed",
    )


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_pod_that_requires_what_no_node_keeps_is_told_the_field(gpus: int) -> None:
    apart: dict[str, Any] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}
    }
    reason, message = explanation(plan_for(pod(gpus=gpus, affinity=apart)))
    assert reason == "NotSupported"
    assert message.startswith("spec.affinity.podAntiAffinity")


def claiming(name: str) -> Json:
    return pod(name, gpus=0, resourceClaims=[{"name": "gpus", "resourceClaimName": "shared"}])


def claim(status: Json | None = None) -> Json:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu.bidplane.dev", "count": 1}}
    return {
        "metadata": {"name": "shared", "namespace": "default", "uid": "uid-of-shared"},
        "spec": {"devices": {"requests": [request]}},
        "status": status or {},
    }


def test_one_of_the_pods_that_share_a_claim_bids_and_the_others_are_told_which() -> None:
    operations = plan_for(claiming("a"), claiming("b"), devices=Devices(claims=[claim()]))
    assert explanation(operations, "b") == ("ClaimShared", "a bids for the claim that they share")
    assert [type(operation).__name__ for operation in operations].count("CreateBid") == 1


def test_a_pod_whose_claim_has_devices_on_a_node_it_cannot_use_is_told_the_node() -> None:
    selector = {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["lease-9"]}]}
        ]
    }
    result = {"request": "gpus", "driver": "gpu.bidplane.dev", "pool": "lease-9", "device": "g"}
    allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
    devices = Devices(claims=[claim({"allocation": allocation})])
    reason, message = explanation(plan_for(claiming("train"), devices=devices))
    assert reason == "ClaimElsewhere"
    assert "lease-9" in message


@pytest.mark.parametrize(("phase", "reason"), [("Waiting", "Outbid"), ("Won", "ClaimDoesNotFit")])
def test_a_pod_beside_a_lease_too_small_for_its_claim_waits_for_its_bid(
    phase: str, reason: str
) -> None:
    """Only when its bid has won can the devices be the wrong ones."""
    mine = as_bid(
        {
            "metadata": {"name": "train", "labels": {labels.POD_UID: "uid-of-train"}},
            "spec": {"gpus": 2},
            "status": {"phase": phase, "reason": "Outbid", "message": "outbid"},
        }
    )
    by_hand = as_bid(
        {
            "metadata": {"name": "hand"},
            "spec": {"gpus": 1},
            "status": {"phase": "Won", "reason": "Won", "message": ""},
        }
    )
    lease = as_lease(
        {
            "metadata": {"name": "lease-1"},
            "spec": {"bid": {"name": host_name("default", "hand")}, "node": "n1"},
            "status": {"phase": "Active"},
        }
    )
    one_gpu = {
        "metadata": {"name": "slice"},
        "spec": {
            "driver": "gpu.bidplane.dev",
            "nodeName": "lease-1",
            "pool": {"name": "lease-1", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }
    both = claim()
    both["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2
    gpu_class = {"metadata": {"name": "gpu.bidplane.dev"}, "spec": {}}
    operations = plan_for(
        claiming("train"),
        bids=[mine, by_hand],
        leases=[lease],
        nodes=[{"metadata": {"name": "lease-1"}, "spec": {}}],
        devices=Devices(claims=[both], slices=[one_gpu], classes=[gpu_class]),
    )
    assert explanation(operations)[0] == reason
