"""
Claims for devices, beside the real kube-scheduler: the same nodes, slices, claims and pods.

kube-scheduler is timed twice: by what it says of its own deciding (the sum of
`scheduler_scheduling_algorithm_duration_seconds`), and by the clock, from the first pod it binds
to the last. We are timed twice as well: deciding alone, every claim read from its JSON and every
allocation written out as its status will have it; and with the same writes to the same API server.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from bidplane.bench.report import Report, Result, less, more, ratio_at_least, say
from bidplane.core.claims.fast import Fleet, Placed
from bidplane.core.claims.model import read_claim, read_slices
from bidplane.node.fleet import NodeDeclaration, machine_of
from bidplane.node.inventory.slices import DRIVER, slices_of

PEER = "kube-scheduler"
GPUS = 8
_WRITERS = 16
_RESOURCES = "/apis/resource.k8s.io/v1"
_ALGORITHM = "scheduler_scheduling_algorithm_duration_seconds_sum"

Json = dict[str, Any]


class Size(NamedTuple):
    nodes: int
    claims: int
    simulated: int  # nodes whose memory is measured


class Rates(NamedTuple):
    decided: float  # claims a second
    written: float


def run(*, quick: bool, data: Path | None) -> Report:
    size = Size(100, 200, 2_000) if quick else Size(500, 1_000, 10_000)
    slices, claims = _slices(size.nodes), [_claim(at) for at in range(size.claims)]
    say(f"deciding {size.claims} claims on {size.nodes} nodes")
    decided = _decide(slices, claims)
    peer, written = _peer(size, slices, claims)
    return Report(
        name="nodes",
        how=_how(size, quick, peer is not None),
        results=(*_claims(decided, written, peer), *_nodes(size, quick)),
    )


def _how(size: Size, quick: bool, with_peer: bool) -> str:
    parts = [
        f"{size.nodes} nodes × {GPUS} GPUs; {size.claims} claims, three of four for one GPU,"
        " the fourth for four GPUs at x16 on one link domain; durable etcd and kube-apiserver,"
        f" one pod a claim; all on {os.cpu_count()} cores (load average {os.getloadavg()[0]:.1f})"
    ]
    if quick:
        parts.append("--quick shrank nodes, claims and simulated nodes by five")
    if not with_peer:
        parts.append("no peer: build it with `make kube`")
    return "; ".join(parts)


def _claims(decided: float, written: float | None, peer: Rates | None) -> Iterator[Result]:
    theirs: Json = {"peer": peer.decided, "peer_name": PEER} if peer else {}
    if peer:
        theirs["aim"] = ratio_at_least(20)
    yield more("claims allocated, deciding", "1/s", decided, **theirs)
    if peer and written is not None:
        yield more(
            "claims allocated, with writes", "1/s", written, peer=peer.written, peer_name=PEER
        )


# The objects.


def _slices(nodes: int) -> list[Json]:
    return [one for at in range(nodes) for one in slices_of(machine_of(_declared(at)))]


def _declared(at: int) -> NodeDeclaration:
    halves = [list(range(GPUS // 2)), list(range(GPUS // 2, GPUS))]
    return NodeDeclaration(name=f"n{at:05}", product="H100", domains=halves, nvlink=18)


def _device_class() -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }


def _claim(at: int) -> Json:
    exactly: Json = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}
    devices: Json = {"requests": [{"name": "gpus", "exactly": exactly}]}
    if at % 4 == 3:
        wide = (
            '"pcieLinkWidth" in device.attributes["bidplane.dev"] && '
            'device.attributes["bidplane.dev"].pcieLinkWidth == 16'
        )
        exactly |= {"count": 4, "selectors": [{"cel": {"expression": wide}}]}
        devices["constraints"] = [{"matchAttribute": "bidplane.dev/linkDomain"}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"c{at:05}", "namespace": "default"},
        "spec": {"devices": devices},
    }


def _pod(claim: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": claim, "namespace": "default"},
        "spec": {
            "containers": [{"name": "main", "image": "none"}],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": claim}],
        },
    }


# Ours.


def _decide(slices: Sequence[Json], claims: Sequence[Json]) -> float:
    """Claims a second, from JSON to JSON; making the fleet's index is part of it."""
    texts = [json.dumps(claim) for claim in claims]
    began = time.perf_counter()
    fleet = _fleet(slices)
    for text in texts:
        placed = fleet.place([read_claim(json.loads(text))])
        if not isinstance(placed, Placed):
            raise RuntimeError(f"a claim had no room: {placed.reason}")
        json.dumps(placed.allocations[0])
    return len(claims) / (time.perf_counter() - began)


def _fleet(slices: Sequence[Json]) -> Fleet:
    nodes: dict[str, dict[str, str]] = {one["spec"]["nodeName"]: {} for one in slices}
    return Fleet(read_slices(slices), nodes, {DRIVER: _device_class()})


async def _write(api: httpx2.AsyncClient, slices: Sequence[Json], claims: Sequence[Json]) -> float:
    """Decide, and write what kube-scheduler writes: the claim's status, the pod's binding."""
    fleet = _fleet(slices)
    waiting = list(reversed(claims))
    began = time.perf_counter()

    async def work() -> None:
        while waiting:
            claim = waiting.pop()
            placed = fleet.place([read_claim(claim)])
            assert isinstance(placed, Placed)
            name = claim["metadata"]["name"]
            status = {
                "allocation": placed.allocations[0],
                "reservedFor": [{"resource": "pods", "name": name, "uid": claim["pod"]}],
            }
            path = f"{_RESOURCES}/namespaces/default/resourceclaims/{name}/status"
            body = {key: value for key, value in claim.items() if key != "pod"}
            await _send(api, "PUT", path, {**body, "status": status})
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": placed.node},
            }
            await _send(api, "POST", f"/api/v1/namespaces/default/pods/{name}/binding", binding)

    async with asyncio.TaskGroup() as group:
        for _ in range(_WRITERS):
            group.create_task(work())
    return len(claims) / (time.perf_counter() - began)


# The peer.


def bound_per_second(nodes: int, claims: int) -> float | None:
    """How many pods with a claim kube-scheduler binds, by the clock; None without it."""
    size = Size(nodes, claims, 0)
    peer, _ = _peer(size, _slices(nodes), [_claim(at) for at in range(claims)])
    return None if peer is None else peer.written


def _peer(
    size: Size, slices: Sequence[Json], claims: Sequence[Json]
) -> tuple[Rates | None, float | None]:
    """Its rates, and ours with the same writes; None without the real binaries."""
    rig = importlib.import_module("bidplane.testing.rig")
    module = importlib.import_module("bidplane.testing.cluster")
    try:
        binaries = rig.find()
    except rig.RigError:
        return None, None
    flags = ["--authorization-always-allow-paths=/healthz,/metrics"]
    with module.Cluster(
        binaries, controllers=False, durable=True, scheduler_flags=flags
    ) as cluster:
        return asyncio.run(_beside(cluster, size, slices, claims))


async def _beside(
    cluster: Any, size: Size, slices: Sequence[Json], claims: Sequence[Json]
) -> tuple[Rates, float]:
    async with httpx2.AsyncClient(
        base_url=cluster.url,
        headers={"Authorization": f"Bearer {cluster.token}"},
        verify=ssl.create_default_context(cafile=str(cluster.ca_file)),
        timeout=60,
    ) as api:
        say(f"creating {size.nodes} nodes and {size.claims} claims")
        await _send(api, "POST", f"{_RESOURCES}/deviceclasses", _device_class())
        await _each(api, [("POST", f"{_RESOURCES}/resourceslices", one) for one in slices])
        names = [one["spec"]["nodeName"] for one in slices]
        nodes = [_node(name) for name in names]
        await _each(api, [("POST", "/api/v1/nodes", node) for node in nodes])
        await _each(
            api, [("PUT", f"/api/v1/nodes/{n['metadata']['name']}/status", n) for n in nodes]
        )
        written = await _write(api, slices, await _fill(api, claims))
        await _empty(api)
        await _fill(api, claims)
        say("kube-scheduler decides")
        cluster.start_scheduler()
        by_clock = await _bound(api, size.claims)
    metrics = _metrics(cluster.scheduler_port)
    return Rates(size.claims / metrics, by_clock), written


def _node(name: str) -> Json:
    room = {"pods": "110", "cpu": "128", "memory": "1Ti"}
    status = {"capacity": room, "allocatable": room}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


async def _fill(api: httpx2.AsyncClient, claims: Sequence[Json]) -> list[Json]:
    """Make the claims and their pods; each claim as it was made, with its pod's uid."""
    path = f"{_RESOURCES}/namespaces/default/resourceclaims"
    made = await _each(api, [("POST", path, claim) for claim in claims])
    pods = [_pod(claim["metadata"]["name"]) for claim in claims]
    known = await _each(api, [("POST", "/api/v1/namespaces/default/pods", pod) for pod in pods])
    return [
        {**claim, "pod": pod["metadata"]["uid"]} for claim, pod in zip(made, known, strict=True)
    ]


async def _empty(api: httpx2.AsyncClient) -> None:
    now = {"gracePeriodSeconds": 0}
    for path in (
        "/api/v1/namespaces/default/pods",
        f"{_RESOURCES}/namespaces/default/resourceclaims",
    ):
        await _send(api, "DELETE", path, now)
        while (await api.get(path)).json()["items"]:
            await asyncio.sleep(0.1)


async def _bound(api: httpx2.AsyncClient, count: int) -> float:
    """Pods bound a second, from the first that is seen to the last."""
    first: tuple[float, int] | None = None
    while True:
        pods = (await api.get("/api/v1/namespaces/default/pods?resourceVersion=0")).json()["items"]
        done = sum(bool(pod["spec"].get("nodeName")) for pod in pods)
        now = time.perf_counter()
        if done and first is None:
            first = now, done
        if done == count and first is not None:
            return (done - first[1]) / (now - first[0]) if done > first[1] else float(done)
        await asyncio.sleep(0.2)


def _metrics(port: int) -> float:
    """Seconds kube-scheduler says it spent deciding."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=unchecked) as answer:
        text = answer.read().decode()
    return next(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(_ALGORITHM)
    )


async def _each(api: httpx2.AsyncClient, requests: Sequence[tuple[str, str, Json]]) -> list[Json]:
    found: list[Json] = [{}] * len(requests)
    waiting = list(enumerate(requests))

    async def work() -> None:
        while waiting:
            at, (method, path, body) = waiting.pop()
            found[at] = await _send(api, method, path, body)

    async with asyncio.TaskGroup() as group:
        for _ in range(_WRITERS):
            group.create_task(work())
    return found


async def _send(api: httpx2.AsyncClient, method: str, path: str, body: Json) -> Json:
    answer = await api.request(method, path, json=body)
    if answer.status_code >= 300:
        raise RuntimeError(f"{method} {path}: {answer.text}")
    found: Json = answer.json()
    return found


# What nodes cost.


def _nodes(size: Size, quick: bool) -> Iterator[Result]:
    say(f"{size.simulated} simulated nodes")
    yield less("memory of a simulated node", "KiB", _memory(size.simulated))
    if importlib.util.find_spec("bidplane.bench.node_start"):
        yield from importlib.import_module("bidplane.bench.node_start").results(quick=quick)


def _memory(count: int) -> float:
    """KiB a node, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bidplane.bench.simulated_nodes", str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)
