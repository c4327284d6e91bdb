"""Pods with GPUs as Kubernetes' objects tell of them."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.core.shadow.model import NodeGpus
from bidplane.core.shadow.objects import claimed_gpus, nodes_of, pod_of
from bidplane.core.shadow.owners import owner_of

GPU = "nvidia.com/gpu"
CREATED, SCHEDULED = "2026-11-02T10:00:00Z", "2026-11-02T10:05:00Z"


def pod(**changes: Any) -> dict[str, Any]:
    limits = {"resources": {"limits": {GPU: "2"}}}
    return {
        "metadata": {
            "namespace": "ns",
            "name": "p",
            "uid": "u1",
            "creationTimestamp": CREATED,
            "ownerReferences": [{"kind": "Job", "name": "train", "controller": True}],
        },
        "spec": {"nodeName": "n1", "containers": [limits], **changes.pop("spec", {})},
        "status": {
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": SCHEDULED}
            ],
            **changes.pop("status", {}),
        },
    }


def claim(*, users: tuple[str, ...] = (), results: int = 0, **request: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu.nvidia.com", **request}
    devices = [
        {"request": "r", "driver": "gpu.nvidia.com", "device": f"g{i}"} for i in range(results)
    ]
    allocation = {"allocation": {"devices": {"results": devices}}} if results else {}
    return {
        "metadata": {"namespace": "ns", "name": "c"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        "status": {"reservedFor": [{"uid": user} for user in users], **allocation},
    }


def test_a_running_pod() -> None:
    shadow = pod_of(pod(), {}, resource=GPU)
    assert shadow is not None
    assert (shadow.owner, shadow.gpus, shadow.ended) == ("Job/train", 2, None)
    assert shadow.scheduled is not None
    assert shadow.scheduled - shadow.created == 300


def test_a_pod_without_gpus_is_none_of_ours() -> None:
    assert pod_of(pod(), {}, resource="amd.com/gpu") is None


def test_a_pod_that_waits() -> None:
    shadow = pod_of(pod(spec={"nodeName": ""}, status={"conditions": []}), {}, resource=GPU)
    assert shadow is not None
    assert shadow.scheduled is None


def test_a_finished_pod_ends_with_its_last_container() -> None:
    ends = ["2026-11-02T11:00:00Z", "2026-11-02T12:00:00Z"]
    states = [{"state": {"terminated": {"finishedAt": end}}} for end in ends]
    shadow = pod_of(pod(status={"phase": "Failed", "containerStatuses": states}), {}, resource=GPU)
    assert shadow is not None
    assert shadow.ended is not None
    assert shadow.ended - shadow.created == 7200


def test_init_containers_and_sidecars_count_as_kubernetes_counts_them() -> None:
    asks = lambda n: {"resources": {"requests": {GPU: n}}}  # noqa: E731
    spec = {"initContainers": [{**asks(1), "restartPolicy": "Always"}, asks(4)]}
    shadow = pod_of(pod(spec=spec), {}, resource=GPU)
    assert shadow is not None
    assert shadow.gpus == 5, "the sidecar beside an init container, which needs more than the rest"


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        (claim(count=3), 3),
        (claim(results=2, users=("u1",)), 2),
        (claim(results=2, users=("u0", "u1")), 0),
        (claim(results=2, users=("u0",)), 2),
        (claim(adminAccess=True, count=8), 0),
        (claim(deviceClassName="nic.example.com"), 0),
    ],
    ids=["unallocated", "allocated", "another's", "not yet ours", "admin access", "no GPU"],
)
def test_the_gpus_of_a_claim(asked: dict[str, Any], count: int) -> None:
    assert claimed_gpus(asked, user="u1") == count


def test_a_claim_from_a_template_is_found_by_its_status() -> None:
    spec = {
        "containers": [{}],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "t"}],
    }
    status = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "c"}]}
    shadow = pod_of(pod(spec=spec, status=status), {("ns", "c"): claim(count=4)}, resource=GPU)
    assert shadow is not None
    assert shadow.gpus == 4


def test_a_node_with_a_plugin_and_a_driver_offers_its_gpus_once() -> None:
    device = {"name": "g0", "attributes": {"type": {"string": "gpu"}}}
    part = {"name": "g0-mig", "attributes": {"type": {"string": "mig"}}}
    slices = [
        {"spec": {"driver": "gpu.nvidia.com", "nodeName": name, "devices": [device, part]}}
        for name in ("both", "driver")
    ]
    nodes = [
        {"metadata": {"name": name}, "status": {"allocatable": {GPU: count}}}
        for name, count in (("both", "1"), ("plugin", "8"), ("none", "0"))
    ]
    assert nodes_of(nodes, slices, resource=GPU) == [
        NodeGpus("both", 1),
        NodeGpus("driver", 1),
        NodeGpus("plugin", 8),
    ]


@pytest.mark.parametrize(
    ("kind", "name", "owner"),
    [
        ("ReplicaSet", "chat-7d9c5b6f4", "Deployment/chat"),
        ("ReplicaSet", "my-model", "ReplicaSet/my-model"),
        ("Job", "nightly-28912345", "CronJob/nightly"),
        ("Job", "train-7", "Job/train-7"),
        ("", "", "Pod/p"),
        ("<none>", "<none>", "Pod/p"),
    ],
)
def test_the_owner_is_the_one_that_people_made(kind: str, name: str, owner: str) -> None:
    assert owner_of(kind, name, pod="p") == owner
