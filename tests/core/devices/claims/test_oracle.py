"""
The oracle: a real kube-scheduler is given the same slices and claims.

It allocates what we allocate, device by device, and refuses what we refuse. Everything is there
before it starts, so that no answer is given to half of a question. `BIDPLANE_CLAIM_CASES=1000`
asks that many (the seeds follow one another from `BIDPLANE_CLAIM_SEED`).
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from bidplane.core.devices.claims import ClaimError, NotAllocated, read_claim
from bidplane.core.devices.claims.check import problems
from bidplane.testing.cluster import Cluster
from bidplane.testing.rig import Binaries

from .cases import ADMIN_NAMESPACE, Case, Json, Ours, generate

CASES = int(os.environ.get("BIDPLANE_CLAIM_CASES", "150"))
SEED = int(os.environ.get("BIDPLANE_CLAIM_SEED", "0"))
# Beta, and on by default only where nothing older than 1.37 has to be understood.
GATES = ["--feature-gates=DRAFractionalCapacityRange=true"]
RESOURCES = "/apis/resource.k8s.io/v1"

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900)]


class Api:
    def __init__(self, cluster: Cluster) -> None:
        self._client = httpx2.Client(
            base_url=cluster.url,
            headers={"Authorization": f"Bearer {cluster.token}"},
            verify=ssl.create_default_context(cafile=str(cluster.ca_file)),
            timeout=60,
        )

    def send(self, method: str, path: str, body: Json) -> Json:
        answer = self._client.request(method, path, json=body)
        if answer.status_code >= 300:
            raise AssertionError(f"{method} {path}: {answer.text}\n{json.dumps(body)}")
        found: Json = answer.json()
        return found

    def items(self, path: str) -> list[Json]:
        found: list[Json] = self._client.get(path).json()["items"]
        return found

    def create(self, case: Case) -> None:
        for node in case.nodes:
            self.send("POST", "/api/v1/nodes", node)
            room = {"pods": "110", "cpu": "8", "memory": "8Gi"}
            status = {"capacity": room, "allocatable": room}
            path = f"/api/v1/nodes/{node['metadata']['name']}/status"
            self.send("PUT", path, {**node, "status": status})
        for one in case.classes:
            self.send("POST", f"{RESOURCES}/deviceclasses", one)
        for one in case.slices:
            self.send("POST", f"{RESOURCES}/resourceslices", one)
        claims = f"{RESOURCES}/namespaces/{case.namespace}/resourceclaims"
        for one in (*case.earlier, *case.claims):
            made = self.send("POST", claims, one)
            if "status" in one:
                path = f"{claims}/{one['metadata']['name']}/status"
                self.send("PUT", path, {**made, "status": one["status"]})
        self.send("POST", f"/api/v1/namespaces/{case.namespace}/pods", _pod(case))


def _pod(case: Case) -> Json:
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        for name in case.node_names
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"c{case.number}", "namespace": case.namespace},
        "spec": {
            "containers": [{"name": "main", "image": "none"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
                }
            },
            "resourceClaims": [
                {"name": f"claim-{at}", "resourceClaimName": claim["metadata"]["name"]}
                for at, claim in enumerate(case.claims)
            ],
        },
    }


def _answered(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return bool(pod["spec"].get("nodeName")) or any(
        c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions
    )


@pytest.fixture(scope="module")
def answers(kube_binaries: Binaries) -> Iterator[list[tuple[Case, Json, list[Json]]]]:
    """Each case, the pod as the scheduler left it, and the pod's claims."""
    cases = [generate(SEED + at) for at in range(CASES)]
    with Cluster(
        kube_binaries, controllers=False, apiserver_flags=GATES, scheduler_flags=GATES
    ) as cluster:
        api = Api(cluster)
        for name in (ADMIN_NAMESPACE, "default"):
            labels = {"resource.kubernetes.io/admin-access": "true"}
            body: Json = {"metadata": {"name": name, "labels": labels}}
            if name != "default":
                api.send("POST", "/api/v1/namespaces", body)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(api.create, cases))
        cluster.start_scheduler()
        deadline = time.monotonic() + 60 + CASES
        while True:
            pods = api.items("/api/v1/pods")
            if all(map(_answered, pods)):
                break
            assert time.monotonic() < deadline, "the scheduler has not looked at every pod"
            time.sleep(0.2)
        claims = {
            (c["metadata"]["namespace"], c["metadata"]["name"]): c
            for c in api.items(f"{RESOURCES}/resourceclaims")
        }
        by_name = {pod["metadata"]["name"]: pod for pod in pods}
        yield [
            (
                case,
                by_name[f"c{case.number}"],
                [claims[case.namespace, one["metadata"]["name"]] for one in case.claims],
            )
            for case in cases
        ]


def test_kube_scheduler_gives_the_same_answers(
    answers: Sequence[tuple[Case, Json, list[Json]]],
) -> None:
    wrong = []
    counts = {"allocated": 0, "refused": 0, "error": 0}
    for case, pod, claims in answers:
        ours = Ours(case)
        found = {name: ours.answer(name, case.claims) for name in case.node_names}
        errors = [one for one in found.values() if isinstance(one, ClaimError)]
        fitting = {name for name, one in found.items() if isinstance(one, list)}
        node = pod["spec"].get("nodeName")
        if errors:
            counts["error"] += 1
            if node:
                wrong.append(f"c{case.number}: we say {errors[0]}, it took {node}")
        elif not fitting:
            counts["refused"] += 1
            if node:
                wrong.append(f"c{case.number}: we refuse, it took {node}")
        elif node not in fitting:
            wrong.append(f"c{case.number}: we take {sorted(fitting)}, it says {_why(pod)}")
        else:
            counts["allocated"] += 1
            answer = found[node]
            assert isinstance(answer, list)
            theirs = [claim["status"]["allocation"] for claim in claims]
            if _comparable(answer) != _comparable(theirs):
                wrong.append(f"c{case.number}: {answer}\n    it has {theirs}")
            wrong += [f"c{case.number}: {said}" for said in _problems(ours, case, node, theirs)]
    assert not wrong, f"{len(wrong)} of {len(answers)}:\n" + "\n".join(wrong[:12])
    print(f"\n{len(answers)} cases: {counts}")
    # The cases are worth asking: each answer is given often enough to be wrong.
    assert min(counts.values()) > len(answers) // 20


def _problems(ours: Ours, case: Case, node: str, allocations: Sequence[Json]) -> list[str]:
    labels = ours.labels[node]
    return problems(
        [read_claim(one) for one in case.claims],
        allocations,
        node=node,
        labels=labels,
        pools=ours.slices.pools(node, labels),
        matcher=ours.matcher,
        allocated=ours.allocated,
    )


def _comparable(allocations: Sequence[Json]) -> list[Any]:
    """All of it but the names of shares, which nobody can foresee, and when it was made."""
    found = []
    for one in allocations:
        results = [
            {key: value for key, value in result.items() if key != "shareID"}
            for result in one["devices"]["results"]
        ]
        found.append((results, one["devices"].get("config"), one.get("nodeSelector")))
    return found


def _why(pod: Json) -> str:
    return "; ".join(c.get("message", "") for c in pod["status"].get("conditions") or ())


def test_refusals_have_a_reason(answers: Sequence[tuple[Case, Json, list[Json]]]) -> None:
    for case, _, _ in answers:
        ours = Ours(case)
        for name in case.node_names:
            answer = ours.answer(name, case.claims)
            if isinstance(answer, NotAllocated):
                assert answer.reason
            elif isinstance(answer, ClaimError):
                assert "claim" in str(answer)
