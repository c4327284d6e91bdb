"""Plans for a Deployment that no rollout shows."""

from __future__ import annotations

from typing import Any

from bidplane.api.kinds import DEPLOYMENT, REPLICA_SET
from bidplane.core.workloads.deployments import plan
from bidplane.core.workloads.plan import Patch

Json = dict[str, Any]
LABELS = {"app": "web"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "c", "image": "x"}]}}


def deployment(*, deleted: bool = False, **spec: Any) -> Json:
    metadata: Json = {"name": "web", "namespace": "d", "uid": "u1", "generation": 3}
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-01T00:00:00Z"
    selector = {"matchLabels": LABELS}
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": metadata,
        "spec": {"replicas": 1, "selector": selector, "template": TEMPLATE, **spec},
        "status": {"observedGeneration": 2},
    }


def replica_set(**spec: Any) -> Json:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u1"}
    return {
        "apiVersion": REPLICA_SET.api_version,
        "kind": REPLICA_SET.kind,
        "metadata": {
            "name": "web-1",
            "namespace": "d",
            "uid": "u2",
            "labels": LABELS,
            "creationTimestamp": "2026-11-01T00:00:00Z",
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": LABELS},
            "template": TEMPLATE,
            **spec,
        },
    }


def patches(obj: Json, *sets: Json) -> list[Patch]:
    operations = plan(obj, sets, [], now=1_800_000_000.0).operations
    return [operation for operation in operations if isinstance(operation, Patch)]


def test_one_that_is_being_deleted_has_its_status_kept_and_nothing_else() -> None:
    planned = plan(deployment(deleted=True), [replica_set()], [], now=1_800_000_000.0)
    assert planned.operations == []
    assert isinstance(planned.status, Patch)
    assert planned.status.change["status"]["observedGeneration"] == 3


def test_its_newest_replica_set_waits_as_long_for_pods_to_be_available() -> None:
    def waits(deployment_seconds: int, set_seconds: int) -> list[Any]:
        changes = patches(
            deployment(minReadySeconds=deployment_seconds),
            replica_set(minReadySeconds=set_seconds),
        )
        specs = [p.change.get("spec") for p in changes if p.kind == REPLICA_SET]
        return [spec["minReadySeconds"] for spec in specs if spec and "minReadySeconds" in spec]

    assert waits(5, 0) == [5]
    assert waits(0, 5) == [None]
    assert waits(5, 5) == []
