"""One object, several versions: devices of v1beta1, autoscalers of v1."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.wire.schema import versions

from .conftest import Endpoint

AUTOSCALERS = "/apis/autoscaling/{version}/namespaces/{{ns}}/horizontalpodautoscalers"
DEVICES = "/apis/resource.k8s.io/{version}"


def _at(path: str, version: str) -> str:
    return path.format(version=version)


def test_an_autoscaler_of_v1(endpoint: Endpoint) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 5}
    old = {"metadata": {"name": "h"}, "spec": spec | {"targetCPUUtilizationPercentage": 70}}
    made = endpoint.ok("POST", _at(AUTOSCALERS, "v1"), old)
    assert made["apiVersion"] == "autoscaling/v1"
    assert made["spec"] == old["spec"]
    new = endpoint.ok("GET", _at(AUTOSCALERS, "v2") + "/h")
    utilization = {"type": "Utilization", "averageUtilization": 70}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": utilization}}
    assert new["spec"]["metrics"] == [metric]
    memory = {"type": "Resource", "resource": {"name": "memory", "target": utilization}}
    patch = {"spec": {"metrics": [metric, memory]}}
    media = "application/merge-patch+json"
    endpoint.ok("PATCH", _at(AUTOSCALERS, "v2") + "/h", patch, media=media)
    shown = endpoint.ok("GET", _at(AUTOSCALERS, "v1") + "/h")
    assert shown["spec"]["targetCPUUtilizationPercentage"] == 70
    shown["spec"]["maxReplicas"] = 6
    endpoint.ok("PUT", _at(AUTOSCALERS, "v1") + "/h", shown)
    after = endpoint.ok("GET", _at(AUTOSCALERS, "v2") + "/h")["spec"]
    assert after["maxReplicas"] == 6
    names = sorted(one["resource"]["name"] for one in after["metrics"])
    assert names == ["cpu", "memory"], "what v1 cannot say is not lost"


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_devices_of_earlier_releases(plane: Endpoint, version: str) -> None:
    listed = plane.ok("GET", _at(DEVICES, version))["resources"]
    assert {"resourceclaims", "resourceslices", "deviceclasses"} <= {one["name"] for one in listed}
    group = plane.ok("GET", "/apis/resource.k8s.io")
    assert group["preferredVersion"]["version"] == "v1"
    request: dict[str, Any] = {"name": "gpu"}
    asked = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}
    request |= asked if version == "v1beta1" else {"exactly": asked}
    claims = _at(DEVICES, version) + "/namespaces/default/resourceclaims"
    body = {"metadata": {"name": f"c-{version}"}, "spec": {"devices": {"requests": [request]}}}
    made = plane.ok("POST", claims, body)
    assert made["apiVersion"] == f"resource.k8s.io/{version}"
    assert made["spec"]["devices"]["requests"] == [request]
    kept = plane.ok("GET", f"{_at(DEVICES, 'v1')}/namespaces/default/resourceclaims/c-{version}")
    assert kept["spec"]["devices"]["requests"] == [{"name": "gpu", "exactly": asked}]
    device: dict[str, Any] = {"attributes": {"model": {"string": "a"}}}
    shown = {"name": "d0", "basic": device} if version == "v1beta1" else {"name": "d0", **device}
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    slices = _at(DEVICES, version) + "/resourceslices"
    spec = {"driver": "x.dev", "nodeName": "n", "pool": pool, "devices": [shown]}
    plane.ok("POST", slices, {"metadata": {"name": f"s-{version}"}, "spec": spec})
    new = plane.ok("GET", f"{_at(DEVICES, 'v1')}/resourceslices/s-{version}")
    assert new["spec"]["devices"] == [{"name": "d0", **device}]
    assert plane.ok("GET", f"{slices}/s-{version}")["spec"]["devices"] == [shown]


_requests = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("abc")},
        optional={
            "exactly": st.fixed_dictionaries({"deviceClassName": st.just("x")}),
            "firstAvailable": st.just([{"name": "s", "deviceClassName": "x"}]),
        },
    ),
    max_size=3,
)


@given(requests=_requests, devices=st.lists(st.sampled_from("abc"), max_size=3))
def test_there_and_back(requests: list[dict[str, Any]], devices: list[str]) -> None:
    beta = "resource.k8s.io/v1beta1"
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {},
        "spec": {"devices": {"requests": requests}},
    }
    template = claim | {"kind": "ResourceClaimTemplate", "spec": {"spec": claim["spec"]}}
    slices = claim | {
        "kind": "ResourceSlice",
        "spec": {"devices": [{"name": name, "nodeName": "n"} for name in devices]},
    }
    for obj in (claim, template, slices):
        shown = versions.convert(obj, beta)
        assert versions.convert(shown, "resource.k8s.io/v1") == obj
