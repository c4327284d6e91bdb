"""The endpoint of a pod in a slice of its Service."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.core.workloads.endpointslices import endpoint, plan
from bidplane.core.workloads.plan import CreateObject, Delete, Operation

Json = dict[str, Any]


def service(**spec: Any) -> Json:
    return {"metadata": {"name": "web", "namespace": "d"}, "spec": spec}


def pod(*, ready: bool = True, deleted: bool = False, **spec: Any) -> Json:
    metadata: Json = {"name": "web-0", "namespace": "d", "uid": "u"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-01T00:00:00Z"
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("names", "hostname"),
    [
        ({"hostname": "web-0", "subdomain": "web"}, "web-0"),
        ({"hostname": "web-0", "subdomain": "other"}, None),
        ({"subdomain": "web"}, None),
        ({"hostname": "web-0"}, None),
        ({}, None),
    ],
)
def test_it_has_the_host_name_of_a_pod_in_the_services_domain(
    names: Json, hostname: str | None
) -> None:
    assert endpoint(service(), pod(**names), "10.0.0.1").get("hostname") == hostname


@pytest.mark.parametrize(
    ("ready", "deleted", "published", "conditions"),
    [
        (True, False, False, (True, True, False)),
        (False, False, False, (False, False, False)),
        (True, True, False, (False, True, True)),
        (False, True, True, (True, False, True)),
    ],
)
def test_its_conditions(
    ready: bool, deleted: bool, published: bool, conditions: tuple[bool, bool, bool]
) -> None:
    of = service(publishNotReadyAddresses=published)
    entry = endpoint(of, pod(ready=ready, deleted=deleted, nodeName="n"), "10.0.0.1")
    assert tuple(entry["conditions"].values()) == conditions
    assert entry["nodeName"] == "n"


def test_a_slice_is_used_again_and_a_surplus_one_is_deleted() -> None:
    web = service(selector={"app": "web"}, ports=[{"port": 80}])
    web["metadata"]["uid"] = "s1"
    member = pod(nodeName="n")
    member["metadata"]["labels"] = {"app": "web"}
    member["status"] |= {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "phase": "Running"}

    def planned(*slices: Json) -> list[Operation]:
        return plan(web, [member], list(slices), {"n"}).operations

    (create,) = planned()
    assert isinstance(create, CreateObject)
    owner = {"controller": True, "uid": "s1", "kind": "Service", "name": "web"}
    first: Json = dict(create.obj)
    first["metadata"] = {**first["metadata"], "name": "web-a", "ownerReferences": [owner]}
    assert planned(first) == []
    second = {**first, "metadata": {**first["metadata"], "name": "web-b"}}
    (delete,) = planned(first, second)
    assert isinstance(delete, Delete)
    assert delete.obj["metadata"]["name"] == "web-b"
