"""The fleet's state from the host's objects: rents by weight, and bids that may want a pool."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.reading import read_bid, read_endpoint, read_lease, read_pool
from bidplane.api.views import Node, ResourceSlice
from bidplane.core.gate.snapshot import HostObjects, fleet_state


def lease(price: str = "1.50", **spec: Any) -> Any:
    device = {"node": "n1", "driver": "d", "pool": "n1", "name": "gpu-0"}
    return read_lease(
        {
            "metadata": {"name": "l", "namespace": "agent-a"},
            "spec": {
                "agent": "a",
                "bid": {"namespace": "agent-a", "name": "b", "uid": "u"},
                "pool": "h100",
                "node": "n1",
                "devices": [device],
                "maxPrice": "2.00",
                **spec,
            },
            "status": {"phase": "Active", "price": price},
        }
    )


@pytest.mark.parametrize(
    ("spec", "rent"),
    [
        ({}, 1_500_000),
        ({"weight": 56, "gpuWeight": 56}, 1_500_000),
        ({"weight": 28, "gpuWeight": 56}, 750_000),
        ({"weight": 420, "gpuWeight": 840}, 750_000),
    ],
)
def test_a_lease_pays_for_its_weight(spec: dict[str, Any], rent: int) -> None:
    (shown,) = fleet_state(HostObjects(leases=[lease(**spec)])).leases
    assert (shown.rent, shown.devices) == (rent, 1)


def test_a_price_that_cannot_be_read_is_none() -> None:
    (shown,) = fleet_state(HostObjects(leases=[lease(price="dear")])).leases
    assert shown.rent == 0


POOLS = [
    read_pool({"metadata": {"name": name}, "spec": {"product": name.upper()}})
    for name in ("h100", "l4")
]


def bid(status: dict[str, Any] | None, **spec: Any) -> Any:
    obj: dict[str, Any] = {"metadata": {"name": "b", "namespace": "agent-a"}, "spec": spec}
    return read_bid(obj if status is None else {**obj, "status": status})


WAITS = {"phase": "Waiting", "reason": "Outbid", "message": ""}


@pytest.mark.parametrize(
    ("bids", "waiting"),
    [
        ([], {"h100": 0, "l4": 0}),
        ([bid({**WAITS, "pool": "l4"}, gpus=1)], {"h100": 0, "l4": 1}),
        ([bid(WAITS, gpus=1)], {"h100": 1, "l4": 1}),
        ([bid(None, gpus=1)], {"h100": 1, "l4": 1}),  # nobody has looked at it yet
        ([bid({**WAITS, "phase": "Won", "pool": "l4"}, gpus=1)], {"h100": 0, "l4": 0}),
        ([bid(None, gpus="many")], {"h100": None, "l4": None}),  # unreadable: unknown
    ],
)
def test_the_queue_of_a_pool(bids: list[Any], waiting: dict[str, int | None]) -> None:
    pools = fleet_state(HostObjects(pools=POOLS, bids=bids)).pools
    assert {pool.name: pool.waiting for pool in pools} == waiting


def test_a_node_has_the_gpus_that_a_pool_sells() -> None:
    """Parts of a GPU are devices of its slice, too, and other products are nobody's to sell."""

    def device(name: str, product: str, kind: str) -> dict[str, Any]:
        return {
            "name": name,
            "attributes": {"productName": {"string": product}, "type": {"string": kind}},
        }

    devices = [
        device("gpu-0", "H100", "gpu"),
        device("gpu-0-1g", "H100", "mig"),
        device("gpu-1", "T4", "gpu"),
    ]
    host = HostObjects(
        pools=POOLS,
        nodes=[Node({"metadata": {"name": "n1"}})],
        slices=[ResourceSlice({"spec": {"nodeName": "n1", "driver": "d", "devices": devices}})],
    )
    (node,) = fleet_state(host).nodes
    assert (node.devices, node.pools) == (1, ("h100",))


@pytest.mark.parametrize(
    ("spec", "past_us", "own_queue"),
    [
        ({}, False, False),
        ({"warmPath": "direct"}, True, False),
        ({"idle": {"queue": {"kind": "comfyui"}}}, False, True),
        ({"idle": {"gpuPercent": 5}}, False, True),
    ],
)
def test_what_an_activator_does_not_see(
    spec: dict[str, Any], past_us: bool, own_queue: bool
) -> None:
    metadata = {"name": "web", "namespace": "agent-a", "uid": "u"}
    whole = {"target": {"deployment": "web", "service": "web"}, **spec}
    traffic = {"phase": "Ready", "demand": {"awake": True, "holds": 0, "inFlight": 0}}
    read = read_endpoint({"metadata": metadata, "spec": whole, "status": traffic})
    (endpoint,) = fleet_state(HostObjects(endpoints=[read])).endpoints
    assert (endpoint.past_us, endpoint.own_queue) == (past_us, own_queue)
    assert endpoint.queue == (None if past_us else 0)


def test_what_its_application_said_is_read_from_the_hosts_copy() -> None:
    metadata = {"name": "web", "namespace": "agent-a", "uid": "u"}
    queue = {"kind": "comfyui"}
    spec = {"target": {"deployment": "web", "service": "web"}, "idle": {"queue": queue}}
    ladder = {"rung": "Ready", "idle": "QueueBusy: its application has 1 jobs"}
    traffic = {"phase": "Ready", "demand": {"awake": True}, "ladder": ladder}
    read = read_endpoint({"metadata": metadata, "spec": spec, "status": traffic})
    (endpoint,) = fleet_state(HostObjects(endpoints=[read])).endpoints
    assert endpoint.own_work == "QueueBusy: its application has 1 jobs"
    asleep = {**traffic, "ladder": {"rung": "Asleep"}}
    read = read_endpoint({"metadata": metadata, "spec": spec, "status": asleep})
    (endpoint,) = fleet_state(HostObjects(endpoints=[read])).endpoints
    assert endpoint.own_work == ""
