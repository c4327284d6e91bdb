"""What a server says of itself, and the other forms an object is shown in."""

from __future__ import annotations

import json

import pytest

from .conftest import Endpoint, config_map, pod

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = (
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,"
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
)
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


def test_a_table_of_pods(endpoint: Endpoint) -> None:
    path = "/api/v1/namespaces/{ns}/pods"
    endpoint.ok("POST", path, pod("a", nodeName="n1"))
    table = endpoint.ok("GET", path, accept=TABLE)
    assert table["kind"] == "Table"
    names = [column["name"] for column in table["columnDefinitions"]]
    assert names[:5] == ["Name", "Ready", "Status", "Restarts", "Age"]
    row = table["rows"][0]
    assert row["cells"][:4] == ["a", "0/1", "Pending", "0"]
    assert row["cells"][names.index("Node")] == "n1"
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert row["object"]["metadata"]["name"] == "a"
    one = endpoint.ok("GET", f"{path}/a", accept=TABLE, includeObject="Object")
    assert one["rows"][0]["object"]["kind"] == "Pod"


@pytest.mark.parametrize(
    ("status", "cells"),
    [
        ({"phase": "Running"}, ["0/1", "Running", "0"]),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    {
                        "name": "main",
                        "ready": True,
                        "restartCount": 2,
                        "image": "",
                        "imageID": "",
                        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                    }
                ],
            },
            ["1/1", "Running", "2"],
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [
                    {
                        "name": "main",
                        "ready": False,
                        "restartCount": 0,
                        "image": "",
                        "imageID": "",
                        "state": {"waiting": {"reason": "ImagePullBackOff"}},
                    }
                ],
            },
            ["0/1", "ImagePullBackOff", "0"],
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": [
                    {
                        "name": "main",
                        "ready": False,
                        "restartCount": 0,
                        "image": "",
                        "imageID": "",
                        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ],
            },
            ["0/1", "OOMKilled", "0"],
        ),
        ({"phase": "Failed", "reason": "Evicted"}, ["0/1", "Evicted", "0"]),
    ],
)
def test_how_a_pod_is(endpoint: Endpoint, status: dict[str, object], cells: list[str]) -> None:
    path = "/api/v1/namespaces/{ns}/pods"
    endpoint.ok("POST", path, pod("a"))
    merge = "application/merge-patch+json"
    endpoint.ok("PATCH", f"{path}/a/status", {"status": status}, media=merge)
    table = endpoint.ok("GET", f"{path}/a", accept=TABLE)
    assert table["rows"][0]["cells"][1:4] == cells


def test_a_table_of_nodes(endpoint: Endpoint) -> None:
    name = f"n-{endpoint.namespace}"
    body = {
        "metadata": {"name": name, "labels": {"node-role.kubernetes.io/gpu": ""}},
        "spec": {"unschedulable": True},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {
                "kubeletVersion": "v1",
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
                "kernelVersion": "6",
                "osImage": "os",
                "containerRuntimeVersion": "c://1",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "capacity": {"nvidia.com/gpu": "8"},
        },
    }
    made = endpoint.ok("POST", "/api/v1/nodes", body)
    assert made["status"]["capacity"] == {"nvidia.com/gpu": "8"}
    table = endpoint.ok("GET", f"/api/v1/nodes/{name}", accept=TABLE)
    cells = table["rows"][0]["cells"]
    assert cells[:3] == [name, "Ready,SchedulingDisabled", "gpu"]
    assert cells[4:] == ["v1", "10.0.0.1", "<none>", "os", "6 (amd64)", "c://1"]
    endpoint.ok("DELETE", f"/api/v1/nodes/{name}")


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces",
        "/api/v1/namespaces/{ns}/configmaps",
        "/api/v1/namespaces/{ns}/secrets",
        "/api/v1/namespaces/{ns}/events",
        "/api/v1/namespaces/{ns}/services",
        "/apis/apps/v1/namespaces/{ns}/deployments",
        "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    ],
)
def test_tables_have_columns(endpoint: Endpoint, path: str) -> None:
    table = endpoint.ok("GET", path, accept=TABLE)
    columns = table["columnDefinitions"]
    assert columns[0]["name"] in ("Name", "Last Seen")
    assert all(len(row["cells"]) == len(columns) for row in table["rows"] or ())


def test_metadata_alone(endpoint: Endpoint) -> None:
    path = "/api/v1/namespaces/{ns}/configmaps"
    endpoint.ok("POST", path, config_map("a", k="v"))
    one = endpoint.ok("GET", f"{path}/a", accept=PARTIAL.replace("vnd.kubernetes.protobuf", "json"))
    assert one["kind"] == "PartialObjectMetadata"
    assert "data" not in one


def test_a_form_nobody_has(endpoint: Endpoint) -> None:
    answer = endpoint.call("GET", "/api/v1/namespaces", accept="application/xml")
    assert answer.code == 406


def test_discovery_old_and_new(endpoint: Endpoint) -> None:
    assert endpoint.ok("GET", "/api")["versions"] == ["v1"]
    groups = {group["name"] for group in endpoint.ok("GET", "/apis")["groups"]}
    assert {"apps", "batch", "resource.k8s.io", "events.k8s.io"} <= groups
    listed = {entry["name"]: entry for entry in endpoint.ok("GET", "/api/v1")["resources"]}
    assert listed["pods"]["shortNames"] == ["po"]
    assert listed["pods/log"]["verbs"] == ["get"]
    assert listed["pods/eviction"]["group"] == "policy"
    core = endpoint.call("GET", "/api", accept=AGGREGATED)
    assert "APIGroupDiscoveryList" in core.headers["content-type"]
    resources = core.body["items"][0]["versions"][0]["resources"]
    pods = next(entry for entry in resources if entry["resource"] == "pods")
    assert pods["scope"] == "Namespaced"
    assert pods["responseKind"] == {"group": "", "version": "", "kind": "Pod"}
    assert endpoint.call("GET", "/apis/nope.example").code == 404


def test_openapi_says_how_to_patch(endpoint: Endpoint) -> None:
    index = endpoint.ok("GET", "/openapi/v3")
    # A real server sends the index as text.
    paths = (json.loads(index) if isinstance(index, str) else index)["paths"]
    at = paths["api/v1"]["serverRelativeURL"]
    assert at.startswith("/openapi/v3/api/v1?hash=")
    document = endpoint.ok("GET", at)
    patch = document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
    content = patch["requestBody"]["content"]
    assert "application/strategic-merge-patch+json" in content
    assert patch["x-kubernetes-group-version-kind"]["kind"] == "Pod"
    schemas = document["components"]["schemas"]
    containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"


def test_who_and_what_may_i(endpoint: Endpoint) -> None:
    who = endpoint.ok("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert "system:masters" in who["status"]["userInfo"]["groups"]
    body = {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods"}}}
    may = endpoint.ok("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    assert may["status"]["allowed"] is True


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health(endpoint: Endpoint, path: str) -> None:
    assert endpoint.call("GET", path).body == "ok"


def test_version(endpoint: Endpoint) -> None:
    assert endpoint.ok("GET", "/version")["gitVersion"].startswith("v1.")
