"""What fits on a node: requests, labels, taints; and that nothing is ever given out twice."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.nodes.fitting import Placing, requests_of, unsupported
from bidplane.core.scheduling import BindPod, PlaneSnapshot, plan

Json = dict[str, Any]


def container(cpu: str = "0", memory: str = "0", **more: Any) -> Json:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def pod(*containers: Json, name: str = "p", **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": list(containers) or [container()], **spec},
        "status": {"phase": "Pending"},
    }


def node(name: str = "n", cpu: str = "8", memory: str = "16Gi", **more: Any) -> Json:
    room = {"cpu": cpu, "memory": memory, "pods": "3"}
    marks = {"kubernetes.io/hostname": name, "bidplane.dev/offered": name, "disk": "ssd"}
    return {
        "metadata": {"name": name, "labels": marks},
        "spec": more,
        "status": {"allocatable": room},
    }


def test_a_pod_needs_what_its_containers_need_at_once() -> None:
    sidecar = container("1", restartPolicy="Always")
    found = requests_of(
        pod(container("2"), container("500m"), initContainers=[container("3"), sidecar])
    )
    assert found["cpu"] == Fraction("3.5")
    first = requests_of(pod(container("1"), initContainers=[sidecar, container("3")]))
    assert first["cpu"] == 4
    limited = pod({"name": "c", "resources": {"limits": {"cpu": "7", "nvidia.com/gpu": "1"}}})
    assert requests_of(limited) == {"cpu": 7, "pods": 1}
    assert requests_of(pod(container("1"), overhead={"cpu": "250m"}))["cpu"] == Fraction("1.25")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, ""),
        ({"nodeSelector": {"disk": "ssd"}}, ""),
        ({"nodeSelector": {"disk": "hdd"}}, "node affinity/selector"),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "disk", "operator": "DoesNotExist"}]}
                            ]
                        }
                    }
                }
            },
            "node affinity/selector",
        ),
    ],
)
def test_selector_and_affinity_are_honoured(spec: Json, why: str) -> None:
    said = Placing([node()], []).why_not(pod(**spec), "n")
    assert why in said
    assert bool(why) == bool(said)


def test_taints_are_honoured() -> None:
    tainted = Placing([node(taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}])], [])
    assert "untolerated taint {a: b}" in tainted.why_not(pod(), "n")
    for toleration in ({"operator": "Exists"}, {"key": "a", "value": "b"}):
        assert not tainted.why_not(pod(tolerations=[toleration]), "n")
    assert tainted.why_not(pod(tolerations=[{"key": "a", "value": "c"}]), "n")


def test_what_no_node_keeps_is_refused_by_name() -> None:
    odd = pod({"name": "c", "resources": {"limits": {"example.com/fpga": "1"}}})
    assert "'example.com/fpga'" in unsupported(odd)
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    assert "podAntiAffinity" in unsupported(pod(affinity={"podAntiAffinity": rule}))
    assert "topologySpreadConstraints[0]" in unsupported(
        pod(topologySpreadConstraints=[{"maxSkew": 1}])
    )
    assert not unsupported(pod(container("1")))


amounts = st.integers(0, 6).map(str)


@given(
    st.lists(st.tuples(amounts, amounts, st.booleans()), max_size=12),
    st.lists(st.tuples(amounts, amounts), max_size=3),
)
def test_pods_on_a_node_never_request_more_than_it_has(
    wanted: list[tuple[str, str, bool]], nodes: list[tuple[str, str]]
) -> None:
    there = [node(f"n{i}", cpu, memory) for i, (cpu, memory) in enumerate(nodes)]
    pods = [pod(container(cpu, memory), name=f"p{i}") for i, (cpu, memory, _) in enumerate(wanted)]
    for round_ in range(3):  # bound, then some end, and others come in their place
        seen = PlaneSnapshot(pods=pods, bids=[], leases=[], nodes=there, max_price="1.00")
        for operation in plan(seen):
            if isinstance(operation, BindPod):
                operation.pod["spec"]["nodeName"] = operation.node
        for one in there:
            name, room = one["metadata"]["name"], one["status"]["allocatable"]
            mine = [
                p["spec"]["containers"][0]["resources"]["requests"]
                for p in pods
                if p["spec"].get("nodeName") == name and p["status"]["phase"] == "Pending"
            ]
            assert sum(int(r["cpu"]) for r in mine) <= int(room["cpu"])
            assert sum(int(r["memory"]) for r in mine) <= int(room["memory"])
            assert len(mine) <= 3
            # And none waits that would fit.
            for p in pods:
                if not p["spec"].get("nodeName") and p["status"]["phase"] == "Pending":
                    r = p["spec"]["containers"][0]["resources"]["requests"]
                    left = {k: int(room[k]) - sum(int(m[k]) for m in mine) for k in r}
                    assert len(mine) == 3 or any(int(r[k]) > left[k] for k in r)
        for p, (_, _, ends) in zip(pods, wanted, strict=True):
            if ends and round_ == 0 and p["spec"].get("nodeName"):
                p["status"]["phase"] = "Succeeded"
