"""The official Python client: typed and dynamic, watches, custom objects, reviews."""

import threading

import pytest
from kubernetes import client, config, dynamic, watch

from .conftest import eventually


@pytest.fixture
def api(kubeconfig, namespace):
    api = config.new_client_from_config(str(kubeconfig))
    client.CoreV1Api(api).create_namespace(
        client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace))
    )
    yield api
    client.CoreV1Api(api).delete_namespace(namespace)
    api.close()


def test_versions_and_groups(api):
    assert client.VersionApi(api).get_code().major == "1"
    groups = {group.name for group in client.ApisApi(api).get_api_versions().groups}
    assert {"apps", "batch", "apiextensions.k8s.io"} <= groups


def test_a_job_runs_to_its_end(api, namespace):
    batch, core = client.BatchV1Api(api), client.CoreV1Api(api)
    pod = client.V1PodSpec(
        containers=[client.V1Container(name="main", image="x")], restart_policy="Never"
    )
    spec = client.V1JobSpec(template=client.V1PodTemplateSpec(spec=pod))
    batch.create_namespaced_job(
        namespace, client.V1Job(metadata=client.V1ObjectMeta(name="train"), spec=spec)
    )
    (found,) = eventually(lambda: core.list_namespaced_pod(namespace).items)
    done = {"status": {"phase": "Succeeded"}}
    core.patch_namespaced_pod_status(found.metadata.name, namespace, done)
    assert eventually(
        lambda: batch.read_namespaced_job_status("train", namespace).status.completion_time
    )


def test_a_watch_tells_what_happens(api, namespace):
    core = client.CoreV1Api(api)
    start = core.list_namespaced_config_map(namespace).metadata.resource_version

    def change():
        core.create_namespaced_config_map(
            namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a"))
        )
        core.patch_namespaced_config_map("a", namespace, {"data": {"k": "1"}})
        core.delete_namespaced_config_map("a", namespace)

    thread = threading.Thread(target=change)
    thread.start()
    seen = []
    stream = watch.Watch()
    for event in stream.stream(
        core.list_namespaced_config_map, namespace, resource_version=start, timeout_seconds=20
    ):
        if event["object"].metadata.name == "a":
            seen.append(event["type"])
        if event["type"] == "DELETED":
            stream.stop()
    thread.join()
    assert seen == ["ADDED", "MODIFIED", "DELETED"]


def test_a_kind_of_ones_own(api, namespace):
    extensions = client.ApiextensionsV1Api(api)
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "properties": {"size": {"type": "integer"}}}},
    }
    plural = f"w{namespace.removeprefix('t-')}s"
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.tests.dev"},
        "spec": {
            "group": "tests.dev",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": plural[:-1], "kind": plural.capitalize()},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
    extensions.create_custom_resource_definition(definition)
    custom = client.CustomObjectsApi(api)
    body = {
        "apiVersion": "tests.dev/v1",
        "kind": plural.capitalize(),
        "metadata": {"name": "a"},
        "spec": {"size": 3, "unknown": 1},
    }
    made = custom.create_namespaced_custom_object("tests.dev", "v1", namespace, plural, body)
    assert made["spec"] == {"size": 3}, "what the schema does not know is pruned"
    found = dynamic.DynamicClient(api).resources.get(
        api_version="tests.dev/v1", kind=plural.capitalize()
    )
    assert found.get(name="a", namespace=namespace).spec.size == 3
    body = {**body, "metadata": {"name": "b"}, "spec": {"size": "large"}}
    with pytest.raises(client.ApiException) as refused:
        custom.create_namespaced_custom_object("tests.dev", "v1", namespace, plural, body)
    assert refused.value.status == 422
    extensions.delete_custom_resource_definition(f"{plural}.tests.dev")


def test_what_may_i(api):
    review = client.V1SelfSubjectAccessReview(
        spec=client.V1SelfSubjectAccessReviewSpec(
            resource_attributes=client.V1ResourceAttributes(verb="create", resource="pods")
        )
    )
    said = client.AuthorizationV1Api(api).create_self_subject_access_review(review)
    assert said.status.allowed
