"""kopf: a small operator with a finalizer, a timer and a status of its own."""

import asyncio
import threading

import kopf
import pytest
from kubernetes import client, config

from .conftest import eventually

GROUP = "operators.tests.dev"


@pytest.fixture
def api(kubeconfig, namespace):
    api = config.new_client_from_config(str(kubeconfig))
    client.CoreV1Api(api).create_namespace(
        client.V1Namespace(metadata=client.V1ObjectMeta(name=namespace))
    )
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    client.ApiextensionsV1Api(api).create_custom_resource_definition(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"gardens.{GROUP}"},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {"plural": "gardens", "singular": "garden", "kind": "Garden"},
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
    )
    yield api
    client.ApiextensionsV1Api(api).delete_custom_resource_definition(f"gardens.{GROUP}")
    client.CoreV1Api(api).delete_namespace(namespace)
    api.close()


def operator(registry, ended):
    @kopf.on.login(registry=registry)
    def login(**options):
        return kopf.login_with_kubeconfig(**options)

    @kopf.on.create(GROUP, "v1", "gardens", registry=registry)
    def planted(spec, patch, **_):
        patch.status["flowers"] = spec["flowers"]
        return {"planted": True}

    @kopf.on.update(GROUP, "v1", "gardens", field="spec.flowers", registry=registry)
    def replanted(new, patch, **_):
        patch.status["flowers"] = new

    @kopf.timer(GROUP, "v1", "gardens", interval=0.1, registry=registry)
    def watered(status, patch, **_):
        patch.status["watered"] = status.get("watered", 0) + 1

    @kopf.on.delete(GROUP, "v1", "gardens", registry=registry)
    def ends(name, **_):
        ended.append(name)


def test_an_operator_keeps_a_garden(kubeconfig, api, namespace, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    registry, ended = kopf.OperatorRegistry(), []
    operator(registry, ended)
    stop, ready = threading.Event(), threading.Event()
    settings = kopf.OperatorSettings()
    # A timer that is at work when its object is deleted is looked at again this much later: by
    # default after a minute, for which no test waits.
    settings.background.cancellation_polling = 0.2

    def run():
        loop = asyncio.new_event_loop()
        loop.run_until_complete(
            kopf.operator(
                registry=registry,
                settings=settings,
                namespaces=[namespace],
                stop_flag=stop,
                ready_flag=ready,
                standalone=True,
            )
        )
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(20)
        custom = client.CustomObjectsApi(api)
        where = (GROUP, "v1", namespace, "gardens")
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "Garden",
            "metadata": {"name": "mine"},
            "spec": {"flowers": "roses"},
        }
        custom.create_namespaced_custom_object(*where, body)

        def look():
            return custom.get_namespaced_custom_object(*where, "mine")

        eventually(lambda: look().get("status", {}).get("flowers") == "roses")
        assert look()["metadata"]["finalizers"], "an operator that minds its end says so"
        eventually(lambda: look()["status"].get("watered", 0) >= 3)
        custom.patch_namespaced_custom_object(*where, "mine", {"spec": {"flowers": "tulips"}})
        eventually(lambda: look()["status"]["flowers"] == "tulips")
        custom.delete_namespaced_custom_object(*where, "mine")
        eventually(lambda: not custom.list_namespaced_custom_object(*where)["items"])
        assert set(ended) == {"mine"}  # kopf calls handlers at least once
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()
