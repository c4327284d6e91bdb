"""Paths below an object: its scale, and the parts of a pod that have one of their own."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from bidplane.api.kinds import Kind

from .conftest import CRDS, Endpoint, pod, thing_definition

MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PODS = "/api/v1/namespaces/{ns}/pods"
LABELS = {"app": "web"}


def _workload(kind: str) -> dict[str, Any]:
    template = {"metadata": {"labels": LABELS}, "spec": pod("x")["spec"]}
    selector = {
        "matchLabels": LABELS,
        "matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}],
    }
    more = {"serviceName": "web"} if kind == "statefulsets" else {}
    spec = {"replicas": 2, "selector": selector, "template": template, **more}
    return {"metadata": {"name": "w"}, "spec": spec}


@pytest.mark.parametrize("kind", ["deployments", "replicasets", "statefulsets"])
def test_a_workload_is_scaled(endpoint: Endpoint, kind: str) -> None:
    path = f"/apis/apps/v1/namespaces/{{ns}}/{kind}"
    endpoint.ok("POST", path, _workload(kind))
    scale = endpoint.ok("GET", f"{path}/w/scale")
    assert scale["kind"] == "Scale"
    assert scale["apiVersion"] == "autoscaling/v1"
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"]["selector"] == "app=web,app in (api,web)"
    patched = endpoint.ok("PATCH", f"{path}/w/scale", {"spec": {"replicas": 0}}, media=MERGE)
    assert patched["spec"] == {}
    assert endpoint.ok("GET", f"{path}/w")["spec"]["replicas"] == 0
    operation = {"op": "add", "path": "/spec/replicas", "value": 1}
    endpoint.ok("PATCH", f"{path}/w/scale", [operation], media=JSON)
    assert endpoint.ok("GET", f"{path}/w")["spec"]["replicas"] == 1
    stale = endpoint.call("PUT", f"{path}/w/scale", scale)
    assert stale.code == 409
    assert "please apply your changes to the latest version and try again" in stale.body["message"]
    negative = endpoint.call("PATCH", f"{path}/w/scale", {"spec": {"replicas": -1}}, media=MERGE)
    assert negative.code == 422
    assert negative.body["message"].startswith('Scale.autoscaling "w" is invalid: spec.replicas')
    assert endpoint.call("GET", f"{path}/nope/scale").code == 404


def test_a_custom_object_is_scaled(endpoint: Endpoint) -> None:
    kind = Kind(f"s{secrets.token_hex(3)}.bidplane.test", "v1", "Thing", "things")
    body = thing_definition(kind)
    version = body["spec"]["versions"][0]
    version["subresources"]["scale"] = {
        "specReplicasPath": ".spec.size",
        "statusReplicasPath": ".status.size",
        "labelSelectorPath": ".status.phase",
    }
    endpoint.ok("POST", CRDS, body)
    path = f"/apis/{kind.api_version}/namespaces/{{ns}}/things"
    endpoint.eventually(lambda: endpoint.call("GET", path).code == 200)
    thing = {"apiVersion": kind.api_version, "kind": "Thing", "metadata": {"name": "a"}}
    endpoint.eventually(
        lambda: endpoint.call("POST", path, thing | {"spec": {"size": 3}}).code == 201
    )
    endpoint.ok("PATCH", f"{path}/a/status", {"status": {"phase": "x=y"}}, media=MERGE)
    scale = endpoint.ok("GET", f"{path}/a/scale")
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 0, "selector": "x=y"}
    endpoint.ok("PUT", f"{path}/a/scale", scale | {"spec": {"replicas": 5}})
    assert endpoint.ok("GET", f"{path}/a")["spec"]["size"] == 5
    endpoint.call("DELETE", f"{CRDS}/things.{kind.group}")


def test_a_pod_is_resized(endpoint: Endpoint) -> None:
    body = pod("p")
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
    endpoint.ok("POST", PODS, body)

    def more(cpu: str) -> dict[str, Any]:
        resources = {"requests": {"cpu": cpu}}
        return {"spec": {"containers": [{"name": "main", "resources": resources}]}}

    refused = endpoint.call("PATCH", f"{PODS}/p", more("200m"), media=STRATEGIC)
    assert refused.code == 422
    assert "pod updates may not change fields other than" in refused.body["message"]
    made = endpoint.ok("PATCH", f"{PODS}/p/resize", more("200m"), media=STRATEGIC)
    assert made["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "200m"}}
    assert made["metadata"]["generation"] == 2
    limits = {"cpu": "200m", "memory": "1Gi"}
    guaranteed = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    quality = endpoint.call(
        "PATCH", f"{PODS}/p/resize", {"spec": {"containers": [guaranteed]}}, media=STRATEGIC
    )
    assert quality.code == 422
    assert "QOS Class may not change" in quality.body["message"]


def test_ephemeral_containers(endpoint: Endpoint) -> None:
    endpoint.ok("POST", PODS, pod("p"))
    body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "tools"}]}}
    refused = endpoint.call("PATCH", f"{PODS}/p", body, media=STRATEGIC)
    assert refused.code == 422
    made = endpoint.ok("PATCH", f"{PODS}/p/ephemeralcontainers", body, media=STRATEGIC)
    (debug,) = made["spec"]["ephemeralContainers"]
    assert debug["terminationMessagePolicy"] == "File"
    removal = [{"op": "remove", "path": "/spec/ephemeralContainers"}]
    gone = endpoint.call("PATCH", f"{PODS}/p/ephemeralcontainers", removal, media=JSON)
    assert gone.code == 422
    assert "may not be removed" in gone.body["message"]


@pytest.mark.parametrize("subresource", ["exec", "attach", "portforward"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_terminal_to_nowhere(endpoint: Endpoint, method: str, subresource: str) -> None:
    endpoint.ok("POST", PODS, pod("p"))
    options = {"command": "ls", "stdout": "true"}
    answer = endpoint.call(method, f"{PODS}/p/{subresource}", **options)
    assert answer.code == 400
    assert answer.body["message"] == "pod p does not have a host assigned"
    assert endpoint.call(method, f"{PODS}/nope/{subresource}", **options).code == 404
