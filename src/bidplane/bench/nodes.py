"""
Allocation of device claims, compared with the real kube-scheduler on the same nodes, slices, claims
and pods.

kube-scheduler is timed twice: by its own metric of deciding (the sum of
`scheduler_scheduling_algorithm_duration_seconds`), and by the clock, from the first pod it binds to
the last. We are timed twice as well: deciding alone, with every claim read from JSON and every
allocation written as JSON; and with the same writes to the same API server.
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

import msgspec

from bidplane.bench.report import BenchReport, Result, less, more, ratio_at_least, say
from bidplane.core.devices.claims.fast import DeviceIndex, Placed
from bidplane.core.devices.claims.model import read_claim, read_slices
from bidplane.http.client.caller import HttpCaller, trust
from bidplane.node.fleet import NodeDeclaration, machine_of
from bidplane.node.inventory.slices import DRIVER, slices_of

PEER = "kube-scheduler"
GPUS = 8
_WRITERS = 16
_RESOURCES = "/apis/resource.k8s.io/v1"
_ALGORITHM = "scheduler_scheduling_algorithm_duration_seconds_sum"

Json = dict[str, Any]


class NodesSize(NamedTuple):
    """The sizes of the benchmark."""

    nodes: int
    claims: int
    simulated: int  # nodes whose memory is measured


class ClaimRates(NamedTuple):
    """The peer's rates."""

    decided: float  # claims a second
    written: float


def run(*, quick: bool, data: Path | None) -> BenchReport:
    size = NodesSize(100, 200, 2_000) if quick else NodesSize(500, 1_000, 10_000)
    slices, claims = _slices(size.nodes), [_claim(number) for number in range(size.claims)]
    say(f"deciding {size.claims} claims on {size.nodes} nodes")
    decided = _decide(slices, claims)
    peer, written = _peer(size, slices, claims)
    return BenchReport(
        name="nodes",
        how=_how(size, quick, peer is not None),
        results=(*_claims(decided, written, peer), *_nodes(size, quick)),
    )


def _how(size: NodesSize, quick: bool, with_peer: bool) -> str:
    """A description of the measurement."""
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


def _claims(decided: float, written: float | None, peer: ClaimRates | None) -> Iterator[Result]:
    """The results for claims."""
    peer_options: Json = {"peer": peer.decided, "peer_name": PEER} if peer else {}
    if peer:
        peer_options["aim"] = ratio_at_least(20)
    yield more("claims allocated, deciding", "1/s", decided, **peer_options)
    if peer and written is not None:
        yield more(
            "claims allocated, with writes", "1/s", written, peer=peer.written, peer_name=PEER
        )


# The objects.


def _slices(nodes: int) -> list[Json]:
    return [
        slice_ for number in range(nodes) for slice_ in slices_of(machine_of(_declared(number)))
    ]


def _declared(number: int) -> NodeDeclaration:
    halves = [list(range(GPUS // 2)), list(range(GPUS // 2, GPUS))]
    return NodeDeclaration(name=f"n{number:05}", product="H100", domains=halves, nvlink=18)


def _device_class() -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }


def _claim(number: int) -> Json:
    exactly: Json = {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}
    devices: Json = {"requests": [{"name": "gpus", "exactly": exactly}]}
    if number % 4 == 3:
        wide = (
            '"pcieLinkWidth" in device.attributes["bidplane.dev"] && '
            'device.attributes["bidplane.dev"].pcieLinkWidth == 16'
        )
        exactly |= {"count": 4, "selectors": [{"cel": {"expression": wide}}]}
        devices["constraints"] = [{"matchAttribute": "bidplane.dev/linkDomain"}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"c{number:05}", "namespace": "default"},
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
    """Claims decided per second, from JSON to JSON; building the fleet's index is included."""
    texts = [json.dumps(claim) for claim in claims]
    began = time.perf_counter()
    fleet = _fleet(slices)
    for text in texts:
        placed = fleet.place([read_claim(json.loads(text))])
        if not isinstance(placed, Placed):
            raise RuntimeError(f"a claim had no room: {placed.reason}")
        json.dumps(placed.allocations[0])
    return len(claims) / (time.perf_counter() - began)


def _fleet(slices: Sequence[Json]) -> DeviceIndex:
    nodes: dict[str, dict[str, str]] = {slice_["spec"]["nodeName"]: {} for slice_ in slices}
    return DeviceIndex(read_slices(slices), nodes, {DRIVER: _device_class()})


async def _write(api: HttpCaller, slices: Sequence[Json], claims: Sequence[Json]) -> float:
    """
    Decide and write what kube-scheduler writes, the claim's status and the pod's binding; return
    claims per second.
    """
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
    """
    The pods with a claim that kube-scheduler binds per second, by the clock; None without its
    binaries.
    """
    size = NodesSize(nodes, claims, 0)
    peer, _ = _peer(size, _slices(nodes), [_claim(number) for number in range(claims)])
    return None if peer is None else peer.written


def _peer(
    size: NodesSize, slices: Sequence[Json], claims: Sequence[Json]
) -> tuple[ClaimRates | None, float | None]:
    """The peer's rates, and our rate with the same writes; None without the real binaries."""
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
        return asyncio.run(_compare(cluster, size, slices, claims))


async def _compare(
    cluster: Any, size: NodesSize, slices: Sequence[Json], claims: Sequence[Json]
) -> tuple[ClaimRates, float]:
    """Measure both on a running cluster."""
    async with HttpCaller(
        cluster.url, trust=trust(ca_file=str(cluster.ca_file)), token=cluster.token, seconds=60
    ) as api:
        say(f"creating {size.nodes} nodes and {size.claims} claims")
        await _send(api, "POST", f"{_RESOURCES}/deviceclasses", _device_class())
        await _send_all(
            api, [("POST", f"{_RESOURCES}/resourceslices", slice_) for slice_ in slices]
        )
        names = [slice_["spec"]["nodeName"] for slice_ in slices]
        nodes = [_node(name) for name in names]
        await _send_all(api, [("POST", "/api/v1/nodes", node) for node in nodes])
        await _send_all(
            api, [("PUT", f"/api/v1/nodes/{n['metadata']['name']}/status", n) for n in nodes]
        )
        written = await _write(api, slices, await _fill(api, claims))
        await _empty(api)
        await _fill(api, claims)
        say("kube-scheduler decides")
        cluster.start_scheduler()
        by_clock = await _bound_per_second(api, size.claims)
    deciding = _deciding_seconds(cluster.scheduler_port)
    return ClaimRates(size.claims / deciding, by_clock), written


def _node(name: str) -> Json:
    capacity = {"pods": "110", "cpu": "128", "memory": "1Ti"}
    status = {"capacity": capacity, "allocatable": capacity}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


async def _fill(api: HttpCaller, claims: Sequence[Json]) -> list[Json]:
    """Create the claims and their pods; return each created claim with its pod's uid."""
    path = f"{_RESOURCES}/namespaces/default/resourceclaims"
    created = await _send_all(api, [("POST", path, claim) for claim in claims])
    pods = [_pod(claim["metadata"]["name"]) for claim in claims]
    created_pods = await _send_all(
        api, [("POST", "/api/v1/namespaces/default/pods", pod) for pod in pods]
    )
    return [
        {**claim, "pod": pod["metadata"]["uid"]}
        for claim, pod in zip(created, created_pods, strict=True)
    ]


async def _empty(api: HttpCaller) -> None:
    """Delete all pods and claims, and wait until they are gone."""
    options = {"gracePeriodSeconds": 0}
    for path in (
        "/api/v1/namespaces/default/pods",
        f"{_RESOURCES}/namespaces/default/resourceclaims",
    ):
        await _send(api, "DELETE", path, options)
        while (await _read(api, path))["items"]:
            await asyncio.sleep(0.1)


async def _bound_per_second(api: HttpCaller, count: int) -> float:
    """Pods bound per second, from the first that is seen to the last."""
    first: tuple[float, int] | None = None
    while True:
        pods = (await _read(api, "/api/v1/namespaces/default/pods?resourceVersion=0"))["items"]
        bound = sum(bool(pod["spec"].get("nodeName")) for pod in pods)
        now = time.perf_counter()
        if bound and first is None:
            first = now, bound
        if bound == count and first is not None:
            return (bound - first[1]) / (now - first[0]) if bound > first[1] else float(bound)
        await asyncio.sleep(0.2)


def _deciding_seconds(port: int) -> float:
    """The seconds that kube-scheduler reports it spent deciding."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=unchecked) as answer:
        text = answer.read().decode()
    return next(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(_ALGORITHM)
    )


async def _send_all(api: HttpCaller, requests: Sequence[tuple[str, str, Json]]) -> list[Json]:
    answers: list[Json] = [{}] * len(requests)
    waiting = list(enumerate(requests))

    async def work() -> None:
        while waiting:
            number, (method, path, body) = waiting.pop()
            answers[number] = await _send(api, method, path, body)

    async with asyncio.TaskGroup() as group:
        for _ in range(_WRITERS):
            group.create_task(work())
    return answers


async def _send(api: HttpCaller, method: str, path: str, body: Json) -> Json:
    headers = {"Content-Type": "application/json"}
    answer = await api.call(method, path, headers=headers, body=msgspec.json.encode(body))
    if answer.code >= 300:
        raise RuntimeError(f"{method} {path}: {answer.text}")
    content: Json = msgspec.json.decode(answer.body)
    return content


async def _read(api: HttpCaller, path: str) -> Json:
    content: Json = msgspec.json.decode((await api.call("GET", path)).accepted().body)
    return content


# The cost of nodes.


def _nodes(size: NodesSize, quick: bool) -> Iterator[Result]:
    """The results for nodes."""
    say(f"{size.simulated} simulated nodes")
    yield less("memory of a simulated node", "KiB", _memory(size.simulated))
    if importlib.util.find_spec("bidplane.bench.support.node_start"):
        yield from importlib.import_module("bidplane.bench.support.node_start").results(quick=quick)


def _memory(count: int) -> float:
    """The memory of a simulated node in KiB, measured in a separate process."""
    completed = subprocess.run(
        [sys.executable, "-m", "bidplane.bench.support.simulated_nodes", str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(completed.stdout)
