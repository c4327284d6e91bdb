"""GPUs that are used outside the market: which pods and claims hold what."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api import labels
from bidplane.core.devices.foreignuse import held_by_claim, held_by_pod

Json = dict[str, Any]


def pod(*containers: Json, phase: str = "Running", **metadata: Any) -> Json:
    return {
        "metadata": {"namespace": "team", "name": "p", **metadata},
        "spec": {"nodeName": "n1", "containers": list(containers)},
        "status": {"phase": phase},
    }


def container(**resources: Json) -> Json:
    return {"name": "c", "resources": resources}


TWO = container(limits={"nvidia.com/gpu": "2"})


def test_a_number_of_gpus_is_told_with_its_pod() -> None:
    assert held_by_pod(pod(TWO)) == ("n1", "pod team/p has 2 nvidia.com/gpu")
    parts = container(requests={"nvidia.com/mig-1g.10gb": 1})
    assert held_by_pod(pod({"name": "plain"}, parts)) == (
        "n1",
        "pod team/p has 1 nvidia.com/mig-1g.10gb",
    )


@pytest.mark.parametrize(
    "other",
    [
        pod({"name": "plain"}),
        pod(container(limits={"cpu": "2", "nvidia.com/gpu": "0"})),
        pod(TWO, phase="Succeeded"),
        pod(TWO, namespace="agent-a", labels={labels.AGENT: "a", labels.LEASE: "l"}),
    ],
    ids=["asks for nothing", "asks for none", "ended", "belongs to a lease"],
)
def test_other_pods_hold_nothing(other: Json) -> None:
    assert held_by_pod(other) is None


def test_a_lease_of_another_namespace_is_a_strangers() -> None:
    posing = pod(TWO, labels={labels.AGENT: "a", labels.LEASE: "l"})
    assert held_by_pod(posing) is not None


def test_admin_access_holds_no_device() -> None:
    results = [
        {"driver": "d", "pool": "n1", "device": "gpu-0"},
        {"driver": "d", "pool": "n1", "device": "gpu-1", "adminAccess": True},
    ]
    claim = {
        "metadata": {"namespace": "team", "name": "c"},
        "status": {"allocation": {"devices": {"results": results}}},
    }
    assert held_by_claim(claim) == {("d", "n1", "gpu-0"): "team/c"}
    assert held_by_claim({"metadata": {"name": "c"}}) == {}
