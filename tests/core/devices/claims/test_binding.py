"""
Devices that must be prepared before a pod is bound: the real kube-scheduler and ours allocate the
same, wait for the same conditions, and give up on the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bidplane.core.scheduling.podclaims import AllocateClaim, Bind, Devices, Wait, decide
from bidplane.testing.cluster import Cluster
from bidplane.testing.rig import Binaries

from .test_oracle import RESOURCES, Api

Json = dict[str, Any]
NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z
PREPARED = {
    "bindsToNode": True,
    "bindingConditions": ["example.com/attached"],
    "bindingFailureConditions": ["example.com/broken"],
}


def device_class() -> Json:
    expression = 'device.driver == "gpu.example.com"'
    return {
        "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def slices(*devices: Json) -> Json:
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": "s"}, "spec": spec}


def claim() -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    return {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }


POD: Json = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u"},
    "spec": {
        "containers": [{"name": "main", "image": "none"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
    },
}
DEVICE = {"name": "gpu-0", **PREPARED}


def told(condition: str) -> list[Json]:
    stamp = "2026-01-01T00:00:00Z"
    condition_ = {
        "type": condition,
        "status": "True",
        "reason": "Said",
        "message": "",
        "lastTransitionTime": stamp,
    }
    where = {"driver": "gpu.example.com", "pool": "n", "device": "gpu-0"}
    return [{**where, "conditions": [condition_]}]


def ours(claim: Json, now: float = NOW) -> Any:
    devices = Devices(claims=[claim], slices=[slices(DEVICE)], classes=[device_class()])
    return decide(devices, POD, ["n"], now=now)


def allocated() -> Json:
    (made,) = ours(claim())
    assert isinstance(made, AllocateClaim)
    return {**claim(), "status": made.status}


def test_a_pod_waits_until_its_device_was_prepared() -> None:
    waiting = allocated()
    said = ours(waiting)
    assert isinstance(said, Wait)
    assert said.reason == "DeviceNotReady"
    assert "n/gpu-0" in said.message
    assert "example.com/attached" in said.message
    waiting["status"]["devices"] = told("example.com/attached")
    assert ours(waiting) == Bind("n")


def test_a_device_that_fails_is_let_go_of() -> None:
    failed = allocated()
    failed["status"]["devices"] = told("example.com/broken")
    (dropped,) = ours(failed)
    assert dropped.status == {"allocation": None, "reservedFor": None, "devices": None}


def test_a_device_that_takes_too_long_is_let_go_of() -> None:
    waiting = allocated()
    assert waiting["status"]["allocation"]["allocationTimestamp"] == "2026-01-01T00:00:00Z"
    assert isinstance(ours(waiting, NOW + 599), Wait)
    (dropped,) = ours(waiting, NOW + 600)
    assert dropped.status == {"allocation": None, "reservedFor": None, "devices": None}
    waiting["status"]["devices"] = told("example.com/attached")
    assert ours(waiting, NOW + 9999) == Bind("n"), "what was said in time stays said"


@pytest.fixture(scope="module")
def api(kube_binaries: Binaries) -> Iterator[Api]:
    with Cluster(kube_binaries, controllers=False) as cluster:
        api = Api(cluster)
        room = {"pods": "110", "cpu": "8", "memory": "8Gi"}
        node: Json = {"metadata": {"name": "n"}}
        api.send("POST", "/api/v1/nodes", node)
        status = {"capacity": room, "allocatable": room}
        api.send("PUT", "/api/v1/nodes/n/status", {**node, "status": status})
        api.send("POST", f"{RESOURCES}/deviceclasses", device_class())
        api.send("POST", f"{RESOURCES}/resourceslices", slices(DEVICE))
        api.send("POST", f"{CLAIMS}", claim())
        pod = {**POD, "metadata": {"name": "p", "namespace": "default"}}
        api.send("POST", "/api/v1/namespaces/default/pods", pod)
        cluster.start_scheduler()
        yield api


CLAIMS = f"{RESOURCES}/namespaces/default/resourceclaims"


def until(there: Callable[[], Any], within: float = 60.0) -> Any:
    deadline = time.monotonic() + within
    while not (found := there()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def tell(api: Api, condition: str) -> None:
    (found,) = api.items(CLAIMS)
    body = {**found, "status": {**found["status"], "devices": told(condition)}}
    api.send("PUT", f"{CLAIMS}/c/status", body)


@pytest.mark.kube
def test_kube_scheduler_allocates_waits_gives_up_and_binds_alike(api: Api) -> None:
    def allocation() -> Any:
        (found,) = api.items(CLAIMS)
        return (found.get("status") or {}).get("allocation")

    first = until(allocation)
    theirs, mine = first["devices"]["results"], allocated()["status"]["allocation"]
    assert theirs == mine["devices"]["results"]
    assert first["nodeSelector"] == mine["nodeSelector"]
    (pod,) = api.items("/api/v1/pods")
    assert not pod["spec"].get("nodeName"), "it waits"
    # Its driver says that it cannot: the allocation is dropped, and made anew.
    tell(api, "example.com/broken")
    until(lambda: (now := allocation()) is None or now != first)
    again = until(lambda: (now := allocation()) is not None and now != first and now)
    assert again["devices"]["results"] == theirs
    (found,) = api.items(CLAIMS)
    assert not found["status"].get("devices"), "what was said of the earlier one is not of this"
    tell(api, "example.com/attached")
    until(lambda: api.items("/api/v1/pods")[0]["spec"].get("nodeName") == "n")
