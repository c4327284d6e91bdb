"""lightkube: typed models, patches, selectors, watches and server-side apply."""

import pytest
from lightkube import ApiError, Client, KubeConfig
from lightkube.models.apps_v1 import DeploymentSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod
from lightkube.types import PatchType

from .conftest import eventually


@pytest.fixture
def client(kubeconfig, namespace):
    client = Client(
        config=KubeConfig.from_file(str(kubeconfig)),
        namespace=namespace,
        trust_env=False,
        field_manager="tests",
    )
    client.create(Namespace(metadata=ObjectMeta(name=namespace)))
    yield client
    client.delete(Namespace, namespace)


def test_an_object_is_made_changed_and_deleted(client):
    made = client.create(ConfigMap(metadata=ObjectMeta(name="a"), data={"k": "1"}))
    assert made.metadata.uid
    made.data["k"] = "2"
    assert client.replace(made).data == {"k": "2"}
    changed = client.patch(ConfigMap, "a", {"data": {"m": "3"}}, patch_type=PatchType.MERGE)
    assert changed.data == {"k": "2", "m": "3"}
    applied = ConfigMap(
        apiVersion="v1", kind="ConfigMap", metadata=ObjectMeta(name="a"), data={"n": "4"}
    )
    assert client.apply(applied).data == {"k": "2", "m": "3", "n": "4"}
    client.delete(ConfigMap, "a")
    with pytest.raises(ApiError) as refused:
        client.get(ConfigMap, "a")
    assert refused.value.status.code == 404
    assert refused.value.status.reason == "NotFound"


def test_lists_select_and_page(client, namespace):
    for number in range(7):
        labels = {"parity": "even" if number % 2 == 0 else "odd"}
        client.create(ConfigMap(metadata=ObjectMeta(name=f"n-{number}", labels=labels)))
    even = client.list(ConfigMap, labels={"parity": "even"})
    assert [c.metadata.name for c in even] == ["n-0", "n-2", "n-4", "n-6"]
    paged = [c.metadata.name for c in client.list(ConfigMap, chunk_size=2)]
    assert [name for name in paged if name.startswith("n-")] == [f"n-{i}" for i in range(7)]


def test_a_watch_sees_a_deployment_make_its_pods(client):
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": "web"}),
        spec=PodSpec(containers=[Container(name="main", image="x")]),
    )
    spec = DeploymentSpec(
        replicas=2, selector=LabelSelector(matchLabels={"app": "web"}), template=template
    )
    client.create(Deployment(metadata=ObjectMeta(name="web"), spec=spec))
    seen = set()
    for event, pod in client.watch(Pod, labels={"app": "web"}, server_timeout=20):
        if event == "ADDED":
            seen.add(pod.metadata.name)
        if len(seen) == 2:
            break
    assert eventually(lambda: client.get(Deployment, "web").status.unavailableReplicas == 2)
