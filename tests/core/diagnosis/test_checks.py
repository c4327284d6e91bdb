"""Each check of a cluster: what it finds, and that a sound cluster has nothing to mend."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bidplane.core.diagnosis import ClusterFacts, Finding, Level, diagnose
from bidplane.core.diagnosis.model import DryRun, Right

Json = dict[str, Any]
DRIVER = "gpu.example.com"
SERVED = frozenset(
    f"resource.k8s.io/v1/{name}"
    for name in ("resourceslices", "resourceclaims", "deviceclasses", "devicetaintrules")
)
EXACT: Json = {"tolerations": [{"key": "t"}], "capacity": {"requests": {"memory": "1Gi"}}}
UNLINKED: Json = {"resource.kubernetes.io/pcieRoot": {}}
REQUESTS: list[Json] = [
    {"name": "exact", "exactly": EXACT},
    {"name": "choice", "firstAvailable": [{"name": "only"}]},
]


def gpu(name: str = "gpu-0", /, **attributes: Json) -> Json:
    given: Json = {
        "uuid": {"string": f"GPU-{name}"},
        "type": {"string": "gpu"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
        **attributes,
    }
    return {
        "name": name,
        "attributes": {key: value for key, value in given.items() if value},
        "capacity": {"memory": {"value": "80Gi"}},
        "allowMultipleAllocations": True,
    }


def slice_of(*devices: Json, node: str = "n1") -> Json:
    return {"spec": {"driver": DRIVER, "nodeName": node, "devices": list(devices)}}


def claim(*requests: Json) -> DryRun:
    return DryRun(sent={}, stored={"spec": {"devices": {"requests": list(requests)}}})


SOUND = ClusterFacts(
    version="v1.37.1",
    served=SERVED,
    nodes=({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8"}}},),
    slices=(slice_of(gpu()),),
    claim=claim(*REQUESTS),
    pod=DryRun(sent={}, stored={}),
    clock_behind=0.3,
    prometheus="http://127.0.0.1:9090",
    metrics_age=15.0,
    metrics_by_pod=3,
)


def trouble(**changes: Any) -> list[Finding]:
    """Return what is not in order on a sound cluster that is changed in one way."""
    facts = msgspec.structs.replace(SOUND, **changes)
    return [finding for finding in diagnose(facts) if finding.level is not Level.OK]


def test_a_sound_cluster_has_nothing_to_mend() -> None:
    assert trouble() == []


def test_an_account_with_all_rights_is_said_to_have_them() -> None:
    def rights(**changes: Any) -> list[Level]:
        facts = msgspec.structs.replace(SOUND, **changes)
        return [finding.level for finding in diagnose(facts) if finding.check == "rights"]

    assert rights() == [Level.OK]
    assert Level.OK not in rights(unread={"pods": "forbidden"})
    assert Level.OK not in rights(denied=[Right("get", "", "pods")])


@pytest.mark.parametrize(
    ("changes", "check", "level", "words"),
    [
        ({"version": "v1.33.9"}, "version", Level.PROBLEM, "does not serve resource.k8s.io/v1"),
        ({"version": "v1.34.3-gke.1"}, "version", Level.PROBLEM, "136269"),
        ({"version": "v1.35.0+k3s1"}, "version", Level.PROBLEM, "1.35.1 or later"),
        ({"version": "main"}, "version", Level.PROBLEM, "'main'"),
        ({"served": SERVED - {"resource.k8s.io/v1/devicetaintrules"}}, "reservation", Level.NOTE,
         "a stranger's pod may take one"),
        ({"claim": claim({"name": "exact", "exactly": {**EXACT, "tolerations": []}}, REQUESTS[1])},
         "gates", Level.NOTE, "DRADeviceTaints"),
        ({"claim": claim({"name": "exact", "exactly": {**EXACT, "capacity": {}}}, REQUESTS[1])},
         "gates", Level.NOTE, "DRAConsumableCapacity"),
        ({"claim": claim(REQUESTS[0])}, "gates", Level.NOTE, "DRAPrioritizedList"),
        ({"claim": DryRun(sent={}, stored=None, refusal="no claims today")}, "gates",
         Level.PROBLEM, "no claims today"),
        ({"denied": [Right("update", "resource.k8s.io", "resourceclaims/binding")]}, "rights",
         Level.PROBLEM, "--resource=resourceclaims.resource.k8s.io/binding"),
        ({"unread": {"pods": "forbidden"}}, "rights", Level.PROBLEM, "pods cannot be listed"),
        ({"slices": ()}, "drivers", Level.PROBLEM, "nothing to lease"),
        ({"slices": (slice_of(gpu(uuid={}), gpu("gpu-1")),)}, "drivers", Level.PROBLEM,
         "1 of 2 GPUs lack a uuid, as gpu-0"),
        ({"slices": (slice_of(gpu("gpu-0", **UNLINKED)),)}, "drivers", Level.NOTE,
         "nothing of their links"),
        ({"slices": (slice_of({**gpu(), "capacity": {}}),)}, "drivers", Level.NOTE, "no memory"),
        ({"slices": (slice_of({**gpu(), "allowMultipleAllocations": False}),)}, "drivers",
         Level.NOTE, "divides no GPU"),
        ({"nodes": ({"metadata": {"name": "n1"},
                     "status": {"allocatable": {"nvidia.com/gpu": "8"}}},)},
         "nodes", Level.PROBLEM, "given out twice"),
        ({"nodes": ({"metadata": {"name": "n2"},
                     "status": {"allocatable": {"nvidia.com/gpu": "8"}}},)},
         "nodes", Level.NOTE, "device plugin only"),
        ({"pods": ({"spec": {"nodeName": "n1", "schedulerName": "volcano"}},)}, "schedulers",
         Level.NOTE, "volcano"),
        ({"pod": DryRun(sent={}, stored=None, refusal="images must be signed")}, "admission",
         Level.PROBLEM, "images must be signed"),
        ({"clock_behind": 3600.4}, "clock", Level.PROBLEM, "3600 s behind"),
        ({"clock_behind": -5.2}, "clock", Level.PROBLEM, "5 s ahead of"),
        ({"prometheus": ""}, "metrics", Level.NOTE, "--prometheus"),
        ({"metrics_age": None}, "metrics", Level.PROBLEM, "no DCGM series"),
        ({"metrics_age": 900.0}, "metrics", Level.PROBLEM, "900 s old"),
        ({"metrics_by_pod": 0}, "metrics", Level.NOTE, "KUBERNETES_ENABLE_DRA"),
    ],
)  # fmt: skip
def test_one_fault_is_one_finding(changes: Json, check: str, level: Level, words: str) -> None:
    (finding,) = trouble(**changes)
    assert (finding.check, finding.level) == (check, level)
    assert words in f"{finding.fact} {finding.cost} {finding.command}"
    assert finding.cost
    assert finding.command


def webhook(**entry: Any) -> Json:
    rules = [{"apiGroups": [""], "resources": ["pods"]}]
    return {"metadata": {"name": "signer"}, "webhooks": [{"name": "s.io", "rules": rules, **entry}]}


def test_only_webhooks_that_must_answer_about_our_pods_count() -> None:
    (finding,) = trouble(webhooks=(webhook(failurePolicy="Fail"),))
    assert "signer (s.io) must answer" in finding.fact
    chosen = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}
    others = (
        webhook(failurePolicy="Ignore"),
        webhook(rules=[{"apiGroups": ["apps"], "resources": ["deployments"]}]),
        webhook(namespaceSelector={"matchLabels": {"signed": "yes"}}),
        webhook(namespaceSelector=chosen),
    )
    assert trouble(webhooks=others) == []


def test_a_bidplane_that_is_there_and_one_that_is_being_removed() -> None:
    agent = {"metadata": {"name": "agent-a", "labels": {"bidplane.dev/agent": "a"}}}
    definition = {"metadata": {"name": "pools.bidplane.dev"}, "spec": {"group": "bidplane.dev"}}
    foreign = {"metadata": {"name": "x.example.com"}, "spec": {"group": "example.com"}}
    (note,) = trouble(namespaces=(agent,), definitions=(definition, foreign))
    assert "1 definitions, 1 agents" in note.fact
    ending = {
        **agent,
        "metadata": {**agent["metadata"], "deletionTimestamp": "2026-11-01T00:00:00Z"},
    }
    problem, _ = trouble(namespaces=(ending,))
    assert (problem.check, problem.level) == ("leftovers", Level.PROBLEM)
    assert "namespace agent-a" in problem.fact


def test_an_exporters_claim_must_tolerate_the_taint() -> None:
    def exporter(**exactly: Any) -> Json:
        request = {"name": "all", "exactly": {"adminAccess": True, **exactly}}
        return {
            "metadata": {"namespace": "dcgm", "name": "all"},
            "spec": {"devices": {"requests": [request]}},
        }

    (finding,) = trouble(claims=(exporter(),))
    assert "dcgm/all" in finding.fact
    assert trouble(claims=(exporter(tolerations=[{"operator": "Exists"}]),)) == []


def test_devices_that_are_no_gpus_need_no_uuid() -> None:
    nic = {"name": "nic-0", "attributes": {"rdma": {"bool": True}}}
    assert trouble(slices=(slice_of(gpu()), slice_of(nic, node="n2"))) == []
