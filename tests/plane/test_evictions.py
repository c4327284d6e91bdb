"""Evictions, and what else hangs on a pod: budgets, claims, addresses, its token."""

from __future__ import annotations

from typing import Any

from .conftest import Endpoint, pod

PODS = "/api/v1/namespaces/{ns}/pods"
BUDGETS = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
CLAIMS = "/api/v1/namespaces/{ns}/persistentvolumeclaims"


def running(plane: Endpoint, *names: str) -> None:
    for name in names:
        one = pod(name, nodeName="n")
        one["metadata"]["labels"] = {"app": "web"}
        plane.ok("POST", PODS, one)
        status = {"status": {"phase": "Running"}}
        media = "application/merge-patch+json"
        plane.ok("PATCH", f"{PODS}/{name}/status", status, media=media)


def evict(plane: Endpoint, name: str, **options: Any) -> Any:
    body = {"metadata": {"name": name}, **({"deleteOptions": options} if options else {})}
    return plane.call("POST", f"{PODS}/{name}/eviction", body)


def budget(plane: Endpoint, allowed: int, name: str = "b") -> None:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
    plane.ok("POST", BUDGETS, {"metadata": {"name": name}, "spec": spec})
    said = {"disruptionsAllowed": allowed, "observedGeneration": 1, "desiredHealthy": 1}
    media = "application/merge-patch+json"
    plane.ok("PATCH", f"{BUDGETS}/{name}/status", {"status": said}, media=media)


def test_one_to_spare_is_given_once(plane: Endpoint) -> None:
    running(plane, "one", "two")
    budget(plane, 1)
    assert evict(plane, "one").code == 201
    status = plane.ok("GET", f"{BUDGETS}/b")["status"]
    assert status["disruptionsAllowed"] == 0
    assert list(status["disruptedPods"]) == ["one"]
    refused = evict(plane, "two")
    assert refused.code == 429
    assert refused.body["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert "deletionTimestamp" not in plane.ok("GET", f"{PODS}/two")["metadata"]


def test_the_pod_says_why_it_goes(plane: Endpoint) -> None:
    running(plane, "one")
    assert evict(plane, "one").code == 201
    found = plane.ok("GET", f"{PODS}/one")
    assert "deletionTimestamp" in found["metadata"]
    told = {c["type"]: c["reason"] for c in found["status"]["conditions"]}
    assert told["DisruptionTarget"] == "EvictionByEvictionAPI"


def test_a_question_takes_nothing(plane: Endpoint) -> None:
    running(plane, "one")
    budget(plane, 1)
    assert evict(plane, "one", dryRun=["All"]).code == 201
    assert plane.ok("GET", f"{BUDGETS}/b")["status"]["disruptionsAllowed"] == 1
    found = plane.ok("GET", f"{PODS}/one")
    assert "deletionTimestamp" not in found["metadata"]
    assert "conditions" not in found["status"]


def test_a_budget_nobody_has_looked_at_yet(plane: Endpoint) -> None:
    running(plane, "one")
    spec = {"minAvailable": 0, "selector": {"matchLabels": {"app": "web"}}}
    plane.ok("POST", BUDGETS, {"metadata": {"name": "b"}, "spec": spec})
    refused = evict(plane, "one")
    assert refused.code == 429
    assert "still being processed" in refused.body["details"]["causes"][0]["message"]


def test_two_budgets_are_one_too_many(plane: Endpoint) -> None:
    running(plane, "one")
    budget(plane, 1, "a")
    budget(plane, 1, "b")
    assert evict(plane, "one").code == 500


# These run on a real server too.


def claim(name: str) -> dict[str, Any]:
    requests = {"requests": {"storage": "1Gi"}}
    return {
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": requests},
    }


def test_a_claim_goes_after_the_pods_that_use_it(endpoint: Endpoint) -> None:
    endpoint.ok("POST", CLAIMS, claim("used"))
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "used"}}
    endpoint.ok("POST", PODS, pod("user", volumes=[volume], nodeName="somewhere"))
    endpoint.ok("DELETE", f"{CLAIMS}/used")
    assert "deletionTimestamp" in endpoint.ok("GET", f"{CLAIMS}/used")["metadata"]
    assert endpoint.call("DELETE", f"{PODS}/user", gracePeriodSeconds=0).code in (200, 404)
    endpoint.eventually(lambda: endpoint.call("GET", f"{CLAIMS}/used").code == 404)


def test_an_unused_claim_goes(endpoint: Endpoint) -> None:
    endpoint.ok("POST", CLAIMS, claim("unused"))
    endpoint.call("DELETE", f"{CLAIMS}/unused")
    endpoint.eventually(lambda: endpoint.call("GET", f"{CLAIMS}/unused").code == 404)


def test_addresses_are_given_once(endpoint: Endpoint) -> None:
    services = "/api/v1/namespaces/{ns}/services"
    spec = {"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80}]}
    made = [
        endpoint.ok("POST", services, {"metadata": {"name": f"s{n}"}, "spec": spec})["spec"]
        for n in range(5)
    ]
    assert len({one["clusterIP"] for one in made}) == 5
    ports = [one["ports"][0]["nodePort"] for one in made]
    assert len(set(ports)) == 5
    taken = {**spec, "ports": [{"port": 80, "nodePort": ports[0]}]}
    refused = endpoint.call("POST", services, {"metadata": {"name": "t"}, "spec": taken})
    assert refused.code == 422
    assert "provided port is already allocated" in refused.body["message"]
    # A PUT that says nothing of them keeps them; another address is refused.
    changed: dict[str, Any] = {"metadata": {"name": "s1"}, "spec": {**spec, "selector": {"a": "c"}}}
    changed["metadata"]["resourceVersion"] = endpoint.ok("GET", f"{services}/s1")["metadata"][
        "resourceVersion"
    ]
    kept = endpoint.ok("PUT", f"{services}/s1", changed)["spec"]
    assert kept["clusterIP"] == made[1]["clusterIP"]
    assert kept["ports"][0]["nodePort"] == ports[1]
    moved = {"spec": {"clusterIP": "10.96.200.200", "clusterIPs": ["10.96.200.200"]}}
    media = "application/merge-patch+json"
    refused = endpoint.call("PATCH", f"{services}/s1", moved, media=media)
    assert refused.code == 422
    assert "may not change once set" in refused.body["message"]


def test_what_a_pod_is_given(endpoint: Endpoint) -> None:
    endpoint.ok("POST", PODS, pod("plain"))
    found = endpoint.ok("GET", f"{PODS}/plain")["spec"]
    (mount,) = found["containers"][0]["volumeMounts"]
    assert mount["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert found["volumes"][0]["name"] == mount["name"]
    endpoint.ok("POST", PODS, pod("without", automountServiceAccountToken=False))
    assert "volumes" not in endpoint.ok("GET", f"{PODS}/without")["spec"]
