"""Watching a cluster: pods that come, wait, run, end and vanish while it is watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from bidplane.api.kinds import POD, RESOURCE_CLAIM, Kind
from bidplane.api.times import rfc3339
from bidplane.core.shadow.model import ClusterRecording, ShadowPod
from bidplane.errors import Gone, NotFound, Unavailable, UserError, api_error
from bidplane.kube.client import Listing, WatchEvent
from bidplane.shadow.cluster import watch_cluster
from bidplane.telemetry.dcgm import Point
from bidplane.telemetry.prometheus import MetricHistory

START = 1_790_000_000
GPU = "nvidia.com/gpu"
Json = dict[str, Any]
Step = tuple[Kind, str, Json] | tuple[Kind, Exception] | int


def pod(name: str, *, scheduled: int | None = None, claim: str = "", **status: Any) -> Json:
    conditions = []
    if scheduled is not None:
        time = rfc3339(scheduled)
        conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": time}]
    limits = {} if claim else {"resources": {"limits": {GPU: "2"}}}
    claims = [{"name": "gpus", "resourceClaimName": claim}] if claim else []
    return {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": name,
            "resourceVersion": "7",
            "creationTimestamp": rfc3339(START - 600),
        },
        "spec": {
            "containers": [limits],
            "resourceClaims": claims,
            **({"nodeName": "n1"} if scheduled is not None else {}),
        },
        "status": {"conditions": conditions, **status},
    }


def claim(name: str, results: int) -> Json:
    devices = [{"request": "r", "driver": "gpu.nvidia.com"}] * results
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "7"},
        "spec": {
            "devices": {
                "requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
            }
        },
        "status": {"allocation": {"devices": {"results": devices}}} if results else {},
    }


class Script:
    """A cluster, and the clock that it runs by: a number is so many seconds, else a change."""

    def __init__(self, *steps: Step, **listed: list[Json] | Exception) -> None:
        node = {"metadata": {"name": "n1"}, "status": {"allocatable": {GPU: "8"}}}
        self.listed: dict[str, list[Json] | Exception] = {
            "nodes": [node],
            "resourceslices": [],
            "resourceclaims": [],
            "pods": [],
            **listed,
        }
        self.verbs: list[str] = []
        self._now = float(START)
        self._steps = list(steps)
        self._queues: dict[Kind, asyncio.Queue[WatchEvent | Exception]] = {}
        self._watching: dict[Kind, asyncio.Event] = {}

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        """The watch's own time runs the script; a retry's takes none."""
        if seconds < 10:
            await asyncio.sleep(0)
            return
        end = self._now + seconds
        for step in self._steps:
            if isinstance(step, int):
                self._now += step
                continue
            await self._watching.setdefault(step[0], asyncio.Event()).wait()
            change = step[1] if len(step) == 2 else WatchEvent(step[1], step[2])  # type: ignore[arg-type]
            self._queue(step[0]).put_nowait(change)
            for _ in range(20):
                await asyncio.sleep(0)
        self._now = end

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        self.verbs.append(f"list {kind.plural}")
        answer = self.listed[kind.plural]
        if isinstance(answer, Exception):
            raise answer
        return Listing(answer, "5")

    async def watch(
        self,
        kind: Kind,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
    ) -> AsyncIterator[WatchEvent]:
        self.verbs.append(f"watch {kind.plural} from {resource_version}")
        self._watching.setdefault(kind, asyncio.Event()).set()
        while True:
            event = await self._queue(kind).get()
            if isinstance(event, Exception):
                raise event
            yield event

    def _queue(self, kind: Kind) -> asyncio.Queue[WatchEvent | Exception]:
        return self._queues.setdefault(kind, asyncio.Queue())


def watched(script: Script, **options: Any) -> ClusterRecording:
    async def whole() -> ClusterRecording:
        async with asyncio.timeout(10):
            return await watch_cluster(
                script, "test", clock=script, seconds=600, step=60, resource=GPU, below=1.0,
                **options,
            )  # fmt: skip

    return asyncio.run(whole())


def by_name(recording: ClusterRecording) -> dict[str, ShadowPod]:
    return {pod.name: pod for pod in recording.pods}


def test_a_pod_comes_waits_runs_and_vanishes() -> None:
    script = Script(
        60,
        (POD, "ADDED", pod("p")),
        60,
        (POD, "MODIFIED", pod("p", scheduled=START + 120)),
        60,
        (POD, "DELETED", pod("p", scheduled=START + 120)),
        pods=[pod("running", scheduled=START - 300)],
    )
    recording = watched(script)
    pods = by_name(recording)
    assert (pods["p"].scheduled, pods["p"].ended) == (START + 120, START + 180)
    assert (pods["running"].scheduled, pods["running"].ended) == (START - 300, None)
    assert (recording.begin, recording.end, recording.gpus) == (START, START + 600, 8)
    assert {verb.split()[0] for verb in script.verbs} == {"list", "watch"}


def test_a_claim_that_is_freed_was_held_all_the_same() -> None:
    script = Script(
        (RESOURCE_CLAIM, "ADDED", claim("c", 4)),
        (POD, "ADDED", pod("p", scheduled=START + 10, claim="c")),
        60,
        (RESOURCE_CLAIM, "MODIFIED", claim("c", 0)),
    )
    assert by_name(watched(script))["p"].gpus == 4


def test_a_claim_that_comes_after_its_pod_counts() -> None:
    script = Script(
        (POD, "ADDED", pod("p", scheduled=START + 10, claim="c")),
        (RESOURCE_CLAIM, "ADDED", claim("c", 4)),
    )
    assert by_name(watched(script))["p"].gpus == 4


@pytest.mark.parametrize("broken", [Gone("too old"), Unavailable("restarting")])
def test_a_watch_that_breaks_off_goes_on(broken: Exception) -> None:
    script = Script(
        (POD, "ADDED", pod("first")),
        30,
        (POD, broken),
        30,
        (POD, "ADDED", pod("second")),
    )
    recording = watched(script)
    pods = by_name(recording)
    assert set(pods) == {"first", "second"}
    # After Gone all is listed again, and what is not there any more has ended.
    assert pods["first"].ended == (START + 30 if isinstance(broken, Gone) else None)


FORBIDDEN = api_error(403, "Forbidden", "User cannot do that")


@pytest.mark.parametrize(
    ("make", "verb", "resource"),
    [
        (lambda: Script(pods=FORBIDDEN), "list", "pods"),
        (lambda: Script(nodes=FORBIDDEN), "list", "nodes"),
        (lambda: Script((POD, FORBIDDEN), pods=[pod("p")]), "watch", "pods"),
    ],
    ids=["list pods", "list nodes", "watch pods"],
)
def test_a_missing_right_is_named(make: Callable[[], Script], verb: str, resource: str) -> None:
    with pytest.raises(UserError) as refusal:
        watched(make())
    assert f"may not {verb} {resource} in all namespaces" in str(refusal.value)
    assert "--verb=get,list,watch" in str(refusal.value)


def test_claims_that_may_not_be_listed_are_a_gap() -> None:
    recording = watched(
        Script(pods=[pod("p")], resourceclaims=FORBIDDEN, resourceslices=NotFound("no DRA"))
    )
    gaps = {gap.source: gap.cost for gap in recording.gaps}
    assert "pods with ResourceClaims are missing" in gaps["list resourceclaims.resource.k8s.io"]
    assert "list resourceslices.resource.k8s.io" not in gaps, "a cluster without DRA is whole"


def test_a_cluster_without_gpu_pods_is_told_so() -> None:
    with pytest.raises(UserError, match=r"no pod that asks for nvidia\.com/gpu"):
        watched(Script(pods=[]))


def test_use_is_read_for_the_time_that_was_watched() -> None:
    class Source:
        async def at(self, query: str, moment: float) -> list[Point]:
            raise AssertionError("the pods are the cluster's")

        async def over(
            self, query: str, *, begin: float, end: float, step: int
        ) -> list[MetricHistory]:
            assert (begin, end, step) == (START + 60, START + 600, 60)
            labels = {"namespace": "ns", "pod": "p", "UUID": "GPU-1"}
            return [MetricHistory(labels, [(START + 60, 0.0), (START + 120, 80.0)])]

    recording = watched(Script(pods=[pod("p", scheduled=START)]), prometheus=Source())
    (use,) = recording.uses
    assert [(s.begin - START, s.end - START, s.idle) for s in use.stretches] == [
        (0, 60, True),
        (60, 120, False),
    ]
    assert not recording.gaps
