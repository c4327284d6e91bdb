"""How objects go: at once, with grace, after finalizers, with their namespace or their owner."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api.kinds import CONFIG_MAP, POD
from bidplane.errors import Conflict, NotFound
from bidplane.kube.http import HttpClient

from .conftest import Endpoint, config_map, pod

MAPS = "/api/v1/namespaces/{ns}/configmaps"
PODS = "/api/v1/namespaces/{ns}/pods"
MERGE = "application/merge-patch+json"


def test_deleted_is_gone(endpoint: Endpoint) -> None:
    async def story(client: HttpClient) -> None:
        await client.create(CONFIG_MAP, config_map("a"), endpoint.namespace)
        await client.delete(CONFIG_MAP, "a", endpoint.namespace)
        with pytest.raises(NotFound):
            await client.get(CONFIG_MAP, "a", endpoint.namespace)
        with pytest.raises(NotFound):
            await client.delete(CONFIG_MAP, "a", endpoint.namespace)

    endpoint.run(story)


def test_the_answer_says_what_was_deleted(endpoint: Endpoint) -> None:
    uid = endpoint.ok("POST", MAPS, config_map("a"))["metadata"]["uid"]
    said = endpoint.ok("DELETE", f"{MAPS}/a")
    assert said["status"] == "Success"
    assert said["details"] == {"name": "a", "kind": "configmaps", "uid": uid}


def test_preconditions(endpoint: Endpoint) -> None:
    async def story(client: HttpClient) -> None:
        made = await client.create(CONFIG_MAP, config_map("a"), endpoint.namespace)
        with pytest.raises(Conflict, match=r"the UID in the precondition \(other\) does not match"):
            await client.delete(CONFIG_MAP, "a", endpoint.namespace, uid="other")
        await client.delete(CONFIG_MAP, "a", endpoint.namespace, uid=made["metadata"]["uid"])

    endpoint.run(story)
    made = endpoint.ok("POST", MAPS, config_map("b"))
    stale = {"preconditions": {"resourceVersion": "1"}}
    answer = endpoint.call("DELETE", f"{MAPS}/b", stale)
    assert answer.code == 409
    now = {"preconditions": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    endpoint.ok("DELETE", f"{MAPS}/b", now)


def test_a_finalizer_holds_an_object(endpoint: Endpoint) -> None:
    body = config_map("a")
    body["metadata"]["finalizers"] = ["tests.bidplane.dev/hold"]
    endpoint.ok("POST", MAPS, body)
    held = endpoint.ok("DELETE", f"{MAPS}/a")
    assert held["kind"] == "ConfigMap"
    assert held["metadata"]["deletionTimestamp"]
    assert endpoint.call("GET", f"{MAPS}/a").code == 200
    more = {"metadata": {"finalizers": ["tests.bidplane.dev/hold", "tests.bidplane.dev/more"]}}
    added = endpoint.call("PATCH", f"{MAPS}/a", more, media=MERGE)
    assert added.code == 422
    assert "no new finalizers can be added" in added.body["message"]
    endpoint.ok("PATCH", f"{MAPS}/a", {"metadata": {"finalizers": None}}, media=MERGE)
    assert endpoint.call("GET", f"{MAPS}/a").code == 404


def test_an_unbound_pod_goes_at_once(endpoint: Endpoint) -> None:
    endpoint.ok("POST", PODS, pod("a"))
    endpoint.ok("DELETE", f"{PODS}/a")
    assert endpoint.call("GET", f"{PODS}/a").code == 404


def test_a_bound_pod_has_grace(endpoint: Endpoint) -> None:
    async def story(client: HttpClient) -> None:
        body = pod("a", nodeName="n1", terminationGracePeriodSeconds=40)
        await client.create(POD, body, endpoint.namespace)
        await client.delete(POD, "a", endpoint.namespace)
        going = (await client.get(POD, "a", endpoint.namespace))["metadata"]
        assert going["deletionTimestamp"] > going["creationTimestamp"]
        assert going["deletionGracePeriodSeconds"] == 40
        assert going["generation"] == 2
        # Shorter is possible, longer is not.
        await client.delete(POD, "a", endpoint.namespace, grace_seconds=50)
        going = (await client.get(POD, "a", endpoint.namespace))["metadata"]
        assert going["deletionGracePeriodSeconds"] == 40
        await client.delete(POD, "a", endpoint.namespace, grace_seconds=5)
        going = (await client.get(POD, "a", endpoint.namespace))["metadata"]
        assert going["deletionGracePeriodSeconds"] == 5
        await client.delete(POD, "a", endpoint.namespace, grace_seconds=0)
        with pytest.raises(NotFound):
            await client.get(POD, "a", endpoint.namespace)

    endpoint.run(story)


def test_a_finished_pod_goes_at_once(endpoint: Endpoint) -> None:
    endpoint.ok("POST", PODS, pod("a", nodeName="n1"))
    done = {"status": {"phase": "Succeeded"}}
    endpoint.ok("PATCH", f"{PODS}/a/status", done, media=MERGE)
    endpoint.ok("DELETE", f"{PODS}/a")
    assert endpoint.call("GET", f"{PODS}/a").code == 404


def test_eviction_deletes(endpoint: Endpoint) -> None:
    endpoint.ok("POST", PODS, pod("a"))
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": endpoint.namespace},
    }
    endpoint.ok("POST", f"{PODS}/a/eviction", eviction)
    assert endpoint.call("GET", f"{PODS}/a").code == 404


def test_a_namespace_takes_its_content_along(endpoint: Endpoint) -> None:
    space = f"{endpoint.namespace}-x"
    endpoint.ok("POST", "/api/v1/namespaces", {"metadata": {"name": space}})
    maps = f"/api/v1/namespaces/{space}/configmaps"
    held = config_map("held")
    held["metadata"]["finalizers"] = ["tests.bidplane.dev/hold"]
    endpoint.ok("POST", maps, held)
    endpoint.ok("POST", maps, config_map("free"))
    going = endpoint.ok("DELETE", f"/api/v1/namespaces/{space}")
    assert going["status"]["phase"] == "Terminating"
    endpoint.eventually(lambda: endpoint.call("GET", f"{maps}/free").code == 404)
    late = endpoint.call("POST", maps, config_map("late"))
    assert late.code == 403
    assert f"unable to create new content in namespace {space}" in late.body["message"]
    reasons = [cause["reason"] for cause in late.body["details"]["causes"]]
    assert reasons == ["NamespaceTerminating"]
    assert endpoint.call("GET", f"/api/v1/namespaces/{space}").code == 200
    endpoint.ok("PATCH", f"{maps}/held", {"metadata": {"finalizers": None}}, media=MERGE)
    endpoint.eventually(lambda: endpoint.call("GET", f"/api/v1/namespaces/{space}").code == 404)


def _owned(name: str, *owners: dict[str, Any], **extra: Any) -> dict[str, Any]:
    body = config_map(name)
    body["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            **extra,
        }
        for owner in owners
    ]
    return body


def test_the_owned_go_with_their_last_owner(endpoint: Endpoint) -> None:
    one = endpoint.ok("POST", MAPS, config_map("one"))
    two = endpoint.ok("POST", MAPS, config_map("two"))
    endpoint.ok("POST", MAPS, _owned("child", one, two))
    endpoint.ok("POST", MAPS, _owned("grandchild", endpoint.ok("GET", f"{MAPS}/child")))
    endpoint.ok("DELETE", f"{MAPS}/one", {"propagationPolicy": "Background"})

    def owners() -> list[str]:
        meta = endpoint.ok("GET", f"{MAPS}/child")["metadata"]
        return [owner["name"] for owner in meta["ownerReferences"]]

    endpoint.eventually(lambda: owners() == ["two"])
    endpoint.ok("DELETE", f"{MAPS}/two", {"propagationPolicy": "Background"})
    endpoint.eventually(lambda: endpoint.call("GET", f"{MAPS}/child").code == 404)
    endpoint.eventually(lambda: endpoint.call("GET", f"{MAPS}/grandchild").code == 404)


def test_the_owned_can_be_orphaned(endpoint: Endpoint) -> None:
    owner = endpoint.ok("POST", MAPS, config_map("owner"))
    endpoint.ok("POST", MAPS, _owned("child", owner))
    endpoint.ok("DELETE", f"{MAPS}/owner", {"propagationPolicy": "Orphan"})
    endpoint.eventually(lambda: endpoint.call("GET", f"{MAPS}/owner").code == 404)
    meta = endpoint.ok("GET", f"{MAPS}/child")["metadata"]
    assert not meta.get("ownerReferences")


def test_in_the_foreground_the_owner_goes_last(endpoint: Endpoint) -> None:
    owner = endpoint.ok("POST", MAPS, config_map("owner"))
    child = _owned("child", owner, blockOwnerDeletion=True)
    child["metadata"]["finalizers"] = ["tests.bidplane.dev/hold"]
    endpoint.ok("POST", MAPS, child)
    endpoint.ok("DELETE", f"{MAPS}/owner", {"propagationPolicy": "Foreground"})

    def is_going() -> bool:
        return "deletionTimestamp" in endpoint.ok("GET", f"{MAPS}/child")["metadata"]

    endpoint.eventually(is_going)
    assert endpoint.call("GET", f"{MAPS}/owner").code == 200
    endpoint.ok("PATCH", f"{MAPS}/child", {"metadata": {"finalizers": None}}, media=MERGE)
    endpoint.eventually(lambda: endpoint.call("GET", f"{MAPS}/owner").code == 404)


def test_an_owner_that_never_was(endpoint: Endpoint) -> None:
    ghost = {"metadata": {"name": "ghost", "uid": "00000000-0000-4000-8000-000000000000"}}
    endpoint.ok("POST", MAPS, _owned("child", ghost))
    endpoint.eventually(lambda: endpoint.call("GET", f"{MAPS}/child").code == 404)


def test_a_collection_is_deleted_by_selector(endpoint: Endpoint) -> None:
    for name, group in (("a", "x"), ("b", "x"), ("c", "y")):
        body = config_map(name)
        body["metadata"]["labels"] = {"group": group}
        endpoint.ok("POST", MAPS, body)
    gone = endpoint.ok("DELETE", MAPS, labelSelector="group=x")
    assert gone["kind"] == "ConfigMapList"
    listed = endpoint.ok("GET", MAPS, labelSelector="group")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["c"]
