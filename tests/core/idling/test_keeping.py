"""A stopped service holds the leases of its pods and of its Bid, and tells what they cost."""

import pytest

from bidplane.api import labels
from bidplane.api.endpoint import Demand, EndpointSpec, EndpointTarget
from bidplane.api.idling.ladder import HoldingStatus, LadderSpec
from bidplane.api.money import EARLIER_GPU_WEIGHT, GPU_WEIGHT
from bidplane.api.reading import GPULease
from bidplane.core.idling.keeping import BidChange, bid_name, holding, step
from core.structs import REASONS, as_bid, as_lease

SPEC = EndpointSpec(
    target=EndpointTarget(deployment="web", service="web"),
    ladder=LadderSpec(keep_lease_seconds=600),
)
ENDPOINT = {"metadata": {"name": "web", "namespace": "default", "uid": "u-web"}}


def lease(
    name: str, *, bid: str, price: str, gpus: int = 1, weight: int, gpu_weight: int = GPU_WEIGHT
) -> GPULease:
    spec = {
        "bid": {"name": bid},
        "devices": [{"name": f"gpu-{n}"} for n in range(gpus)],
        "weight": weight,
        "gpuWeight": gpu_weight,
    }
    status = {"phase": "Active", "price": price}
    return as_lease(
        {"metadata": {"name": name, "namespace": "agent-a"}, "spec": spec, "status": status}
    )


def test_what_a_service_holds_is_of_its_pods_and_of_its_bid() -> None:
    leases = [
        lease("lease-2", bid="kept", price="1.50", gpus=2, weight=2 * GPU_WEIGHT),
        lease("lease-1", bid="pod-1", price="0.40", weight=GPU_WEIGHT // 4),
        lease("lease-3", bid="somebody", price="5", weight=GPU_WEIGHT),
    ]
    assert holding(leases, ["lease-1"], "kept", "") == HoldingStatus(
        leases=("lease-1", "lease-2"), devices=3, paid_per_hour="3.10", keeps_lease=True
    )
    of_pods = holding(leases, ["lease-1"], "other", "KeepsNoLease: why")
    assert (of_pods.paid_per_hour, of_pods.keeps_lease) == ("0.10", False)
    assert of_pods.message == "KeepsNoLease: why"
    assert holding(leases, [], "other", "") == HoldingStatus(keeps_lease=False)


@pytest.mark.parametrize(
    ("weight", "gpu_weight", "price", "paid"),
    [
        (GPU_WEIGHT, GPU_WEIGHT, "2", "2.00"),
        # Objects of an earlier version count a GPU in its weight.
        (3 * EARLIER_GPU_WEIGHT, EARLIER_GPU_WEIGHT, "2", "6.00"),
        (GPU_WEIGHT, GPU_WEIGHT, "", "0.00"),
    ],
)
def test_a_lease_costs_its_price_by_its_weight(
    weight: int, gpu_weight: int, price: str, paid: str
) -> None:
    one = lease("lease-1", bid="kept", price=price, weight=weight, gpu_weight=gpu_weight)
    assert holding([one], [], "kept", "").paid_per_hour == paid


AWAKE, ASLEEP = Demand(number=1, awake=True), Demand(number=2, keep_lease=True)
RELEASED = Demand(number=3)


def deployment(annotations: dict[str, str], replicas: int = 0) -> dict[str, object]:
    limits = {"nvidia.com/gpu": "2"}
    pod = {"containers": [{"name": "web", "image": "web", "resources": {"limits": limits}}]}
    template = {"metadata": {"annotations": annotations}, "spec": pod}
    return {"metadata": {"name": "web"}, "spec": {"replicas": replicas, "template": template}}


def test_the_bid_is_made_when_the_service_wakes_and_not_for_pods_that_bid_themselves() -> None:
    made = step(SPEC, AWAKE, ENDPOINT, deployment({}), None).create
    assert made is not None
    assert made["metadata"]["name"] == bid_name("web") == "endpoint-web"
    assert made["spec"]["gpus"] == 2
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("u-web", True)
    for demand in (None, ASLEEP, RELEASED):
        assert step(SPEC, demand, ENDPOINT, deployment({}), None) == BidChange()
    assert step(SPEC, AWAKE, ENDPOINT, deployment({}, replicas=1), None) == BidChange()
    named = deployment({labels.BID_NAME: "endpoint-web"}, replicas=1)
    assert step(SPEC, AWAKE, ENDPOINT, named, None).create is not None


@pytest.mark.parametrize(
    ("demand", "phase", "ends"),
    [
        (AWAKE, "Won", False),
        (ASLEEP, "Won", False),
        (RELEASED, "Won", True),
        (AWAKE, "Ended", True),  # a bid wins once
        (ASLEEP, "Ended", False),
    ],
)
def test_the_bid_ends_when_its_lease_is_given_back(demand: Demand, phase: str, ends: bool) -> None:
    status = {"phase": phase, "reason": REASONS[phase], "message": ""}
    bid = as_bid({"metadata": {}, "status": status})
    assert step(SPEC, demand, ENDPOINT, deployment({}), bid) == BidChange(delete=ends)
