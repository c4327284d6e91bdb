"""Create, read, replace: what comes back, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from bidplane.api.kinds import CONFIG_MAP, POD
from bidplane.errors import AlreadyExists, ApiError, Conflict, NotFound
from bidplane.kube.http import HttpClient

from .conftest import Endpoint, config_map, pod

MAPS = "/api/v1/namespaces/{ns}/configmaps"
PODS = "/api/v1/namespaces/{ns}/pods"


def test_what_is_created_can_be_read(endpoint: Endpoint) -> None:
    async def story(client: HttpClient) -> None:
        made = await client.create(CONFIG_MAP, config_map("a", k="v"), endpoint.namespace)
        meta = made["metadata"]
        assert meta["uid"]
        assert meta["creationTimestamp"].endswith("Z")
        assert int(meta["resourceVersion"]) > 0
        assert "generation" not in meta
        read = await client.get(CONFIG_MAP, "a", endpoint.namespace)
        assert read["data"] == {"k": "v"}
        assert read["metadata"]["uid"] == meta["uid"]
        with pytest.raises(AlreadyExists, match='configmaps "a" already exists'):
            await client.create(CONFIG_MAP, config_map("a"), endpoint.namespace)
        with pytest.raises(NotFound, match='configmaps "b" not found'):
            await client.get(CONFIG_MAP, "b", endpoint.namespace)

    endpoint.run(story)


def test_refusals_carry_details(endpoint: Endpoint) -> None:
    answer = endpoint.call("GET", f"{MAPS}/nope")
    assert answer.code == 404
    assert answer.body["kind"] == "Status"
    assert answer.body["status"] == "Failure"
    assert answer.body["reason"] == "NotFound"
    assert answer.body["details"] == {"name": "nope", "kind": "configmaps"}


def test_a_stale_replace_is_a_conflict(endpoint: Endpoint) -> None:
    async def story(client: HttpClient) -> None:
        first = await client.create(CONFIG_MAP, config_map("a", k="1"), endpoint.namespace)
        second = await client.replace(CONFIG_MAP, {**first, "data": {"k": "2"}})
        assert second["data"] == {"k": "2"}
        assert second["metadata"]["uid"] == first["metadata"]["uid"]
        with pytest.raises(Conflict, match="the object has been modified"):
            await client.replace(CONFIG_MAP, {**first, "data": {"k": "3"}})

    endpoint.run(story)


def test_of_writers_that_read_the_same_one_wins(endpoint: Endpoint) -> None:
    async def story(client: HttpClient) -> None:
        first = await client.create(CONFIG_MAP, config_map("a"), endpoint.namespace)
        outcomes = await asyncio.gather(
            *(client.replace(CONFIG_MAP, {**first, "data": {"by": str(n)}}) for n in range(8)),
            return_exceptions=True,
        )
        losers = [found for found in outcomes if isinstance(found, Conflict)]
        assert len(losers) == 7

    endpoint.run(story)


def test_a_replace_that_changes_nothing_writes_nothing(endpoint: Endpoint) -> None:
    made = endpoint.ok("POST", MAPS, config_map("a", k="v"))
    again = endpoint.ok("PUT", f"{MAPS}/a", made)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_names_are_generated(endpoint: Endpoint) -> None:
    body = {"metadata": {"generateName": "job-"}}
    names = {endpoint.ok("POST", MAPS, body)["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


@pytest.mark.parametrize("name", ["UPPER", "under_score", "-dash", "a" * 254, "a/b"])
def test_bad_names_are_refused(endpoint: Endpoint, name: str) -> None:
    answer = endpoint.call("POST", MAPS, config_map(name))
    assert answer.code == 422
    assert answer.body["reason"] == "Invalid"
    assert answer.body["details"]["causes"][0]["field"] == "metadata.name"


def test_a_missing_namespace_is_named(endpoint: Endpoint) -> None:
    answer = endpoint.call("POST", "/api/v1/namespaces/nowhere/configmaps", config_map("a"))
    assert answer.code == 404
    assert answer.body["message"] == 'namespaces "nowhere" not found'


def test_dry_run_keeps_nothing(endpoint: Endpoint) -> None:
    made = endpoint.ok("POST", MAPS, config_map("a"), dryRun="All")
    assert made["metadata"]["uid"]
    assert endpoint.call("GET", f"{MAPS}/a").code == 404
    endpoint.ok("POST", MAPS, config_map("a", k="1"))
    patched = endpoint.ok(
        "PATCH", f"{MAPS}/a", {"data": {"k": "2"}}, media="application/merge-patch+json",
        dryRun="All",
    )  # fmt: skip
    assert patched["data"] == {"k": "2"}
    endpoint.ok("DELETE", f"{MAPS}/a", dryRun="All")
    assert endpoint.ok("GET", f"{MAPS}/a")["data"] == {"k": "1"}


def test_unknown_fields(endpoint: Endpoint) -> None:
    body = config_map("a") | {"datta": {"k": "v"}}
    strict = endpoint.call("POST", MAPS, body, fieldValidation="Strict")
    assert strict.code == 400
    assert 'strict decoding error: unknown field "datta"' in strict.body["message"]
    warned = endpoint.call("POST", MAPS, body, fieldValidation="Warn")
    assert warned.code == 201
    assert 'unknown field \\"datta\\"' in warned.headers["warning"]
    assert "datta" not in warned.body
    ignored = endpoint.call("POST", MAPS, config_map("b") | {"x": 1}, fieldValidation="Ignore")
    assert ignored.code == 201
    assert "warning" not in ignored.headers


def test_a_value_of_the_wrong_type_is_a_bad_request(endpoint: Endpoint) -> None:
    answer = endpoint.call("POST", MAPS, config_map("a") | {"data": {"k": 1}})
    assert answer.code == 400
    assert "ConfigMap in version" in answer.body["message"]


@pytest.mark.parametrize("body", [b"{", b"[1, 2", b'{"metadata": {"name": "a"}', b"\xff\xfe"])
def test_a_body_that_is_not_json(endpoint: Endpoint, body: bytes) -> None:
    answer = endpoint.call("POST", MAPS, body)
    assert answer.code == 400
    assert answer.body["reason"] == "BadRequest"


def test_an_unknown_media_type(endpoint: Endpoint) -> None:
    assert endpoint.call("POST", MAPS, b"<a/>", media="application/xml").code == 415


def test_a_body_too_large(endpoint: Endpoint) -> None:
    answer = endpoint.call("POST", MAPS, config_map("a", k="x" * (4 << 20)))
    assert answer.code == 413


def test_an_unknown_resource_is_404(endpoint: Endpoint) -> None:
    assert endpoint.call("GET", "/api/v1/namespaces/{ns}/nopes").code == 404
    assert endpoint.call("GET", "/apis/nope.example/v1/nopes").code == 404


def test_a_pod_gets_its_defaults(endpoint: Endpoint) -> None:
    made = endpoint.ok("POST", PODS, pod("a"))
    spec = made["spec"]
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["enableServiceLinks"] is True
    container = spec["containers"][0]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["resources"] == {}
    assert made["status"]["phase"] == "Pending"
    assert made["status"]["qosClass"] == "BestEffort"


def test_quantities_are_canonical_and_limits_are_requests(endpoint: Endpoint) -> None:
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/gpu": 2, "cpu": "1500m", "memory": "1024Mi"},
        "requests": {"cpu": "0.5"},
    }
    resources = endpoint.ok("POST", PODS, body)["spec"]["containers"][0]["resources"]
    assert resources == {
        "limits": {"nvidia.com/gpu": "2", "cpu": "1500m", "memory": "1Gi"},
        "requests": {"nvidia.com/gpu": "2", "cpu": "500m", "memory": "1Gi"},
    }


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image"),
        ({"containers": [{"image": "a"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "A", "image": "a"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "a", "image": "a"}] * 2}, "spec.containers[1].name"),
        (
            {"containers": [{"name": "a", "image": "a"}], "restartPolicy": "Sometimes"},
            "spec.restartPolicy",
        ),
        (
            {
                "containers": [
                    {
                        "name": "a",
                        "image": "a",
                        "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}},
                    }
                ]
            },
            "spec.containers[0].resources.requests",
        ),
    ],
)
def test_bad_pods_are_refused(endpoint: Endpoint, spec: dict[str, object], field: str) -> None:
    body = {"metadata": {"name": "a"}, "spec": spec}
    answer = endpoint.call("POST", PODS, body)
    assert answer.code == 422, answer.body
    assert field in [cause["field"] for cause in answer.body["details"]["causes"]]


def test_most_of_a_pod_is_fixed(endpoint: Endpoint) -> None:
    endpoint.ok("POST", PODS, pod("a"))
    merge = "application/merge-patch+json"
    fixed = endpoint.call("PATCH", f"{PODS}/a", {"spec": {"hostNetwork": True}}, media=merge)
    assert fixed.code == 422
    assert "pod updates may not change fields other than" in fixed.body["message"]
    image = [{"name": "main", "image": "busybox:2"}]
    strategic = "application/strategic-merge-patch+json"
    changed = endpoint.ok("PATCH", f"{PODS}/a", {"spec": {"containers": image}}, media=strategic)
    assert changed["spec"]["containers"][0]["image"] == "busybox:2"
    assert changed["metadata"]["generation"] == 2


def test_status_is_written_apart(endpoint: Endpoint) -> None:
    async def story(client: HttpClient) -> None:
        made = await client.create(POD, pod("a"), endpoint.namespace)
        ready = {"type": "Ready", "status": "True"}
        status = {"phase": "Running", "conditions": [ready]}
        both = {"status": status, "metadata": {"labels": {"a": "b"}}}
        changed = await client.patch(POD, "a", both, endpoint.namespace, subresource="status")
        assert changed["status"]["phase"] == "Running"
        assert changed["metadata"]["generation"] == made["metadata"]["generation"]
        # And the other way round: a write of the object leaves its status alone.
        other = {"status": {"phase": "Failed"}, "metadata": {"labels": {"c": "d"}}}
        again = await client.patch(POD, "a", other, endpoint.namespace)
        assert again["status"]["phase"] == "Running"
        assert again["metadata"]["labels"]["c"] == "d"

    endpoint.run(story)


def test_a_pod_is_bound_once(endpoint: Endpoint) -> None:
    async def story(client: HttpClient) -> None:
        made = await client.create(POD, pod("a"), endpoint.namespace)
        uid = made["metadata"]["uid"]
        with pytest.raises(ApiError, match="UID"):
            await client.bind(endpoint.namespace, "a", "n1", uid="another")
        await client.bind(endpoint.namespace, "a", "n1", uid=uid)
        bound = await client.get(POD, "a", endpoint.namespace)
        assert bound["spec"]["nodeName"] == "n1"
        conditions = {c["type"]: c["status"] for c in bound["status"]["conditions"]}
        assert conditions["PodScheduled"] == "True"
        with pytest.raises(Conflict, match="already assigned to node"):
            await client.bind(endpoint.namespace, "a", "n2", uid=uid)

    endpoint.run(story)


def test_secrets_take_plain_text(endpoint: Endpoint) -> None:
    path = "/api/v1/namespaces/{ns}/secrets"
    body = {"metadata": {"name": "a"}, "stringData": {"k": "v"}}
    made = endpoint.ok("POST", path, body)
    assert made["data"] == {"k": "dg=="}
    assert made["type"] == "Opaque"
    assert "stringData" not in made


def test_events_are_one_store_in_two_groups(endpoint: Endpoint) -> None:
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "name": "a", "namespace": endpoint.namespace},
        "reason": "Test",
        "message": "hello",
        "type": "Normal",
        "source": {"component": "tests"},
    }
    endpoint.ok("POST", "/api/v1/namespaces/{ns}/events", event)
    found = endpoint.ok("GET", "/apis/events.k8s.io/v1/namespaces/{ns}/events/e")
    assert found["note"] == "hello"
    assert found["regarding"]["name"] == "a"
    assert found["apiVersion"] == "events.k8s.io/v1"
    listed = endpoint.ok(
        "GET", "/api/v1/namespaces/{ns}/events", fieldSelector="involvedObject.name=a"
    )
    assert [item["message"] for item in listed["items"]] == ["hello"]
