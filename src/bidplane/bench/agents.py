"""
An agent's life by the clock: a real installation (three processes, HTTPS, simulated nodes), and
the pods of many agents from `create` to running.

The peer is the rig's kube-scheduler with DRA: pods bound a second, each with a claim, on a
kube-apiserver with a durable etcd. Ours are counted from the first pod created to the last one
*running*: bid for, won, paid for, bound, carried to the host and started.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import msgspec

from bidplane.api import labels
from bidplane.api.kinds import AGENT, POD
from bidplane.bench import nodes
from bidplane.bench.report import Report, Result, at_most, less, more, ratio_at_least, say
from bidplane.kube.client import Client, Object
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import SystemClock
from bidplane.runtime.installation import Installation
from bidplane.wiring.hostclient import host_client

GPUS_A_NODE = 8
NOTICE_SECONDS = 3
ROUND_SECONDS = 1.0
AT_ONCE = 16
OVERLOAD = 4
_MIB = 2**20
_WATCHED_SECONDS = 8
SPACE = "default"


class Size(NamedTuple):
    agents: tuple[int, ...]
    nodes: int
    pods_each: int  # at the last number of agents: what memory is measured with
    peer: tuple[int, int]  # nodes, claims
    samples: int  # pods timed one after the other on an idle fleet
    urgent: int  # and on a full one, with OVERLOAD times as much work as it has GPUs


def run(*, quick: bool, data: Path | None) -> Report:
    size = Size((10, 100, 1000), 64, 10, (100, 300), 40, 10)
    if quick:
        size = Size((10,), 12, 10, (20, 50), 4, 2)
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as folder:
        results = asyncio.run(_measure(Path(folder), size))
    say("kube-scheduler with DRA, for comparison")
    bound = nodes.bound_per_second(*size.peer)
    return Report(
        name="agents",
        how=_how(size, quick, bound is not None),
        results=tuple(_beside(result, bound) for result in results),
    )


def _how(size: Size, quick: bool, with_peer: bool) -> str:
    parts = [
        f"server, exchange and node as processes, {size.nodes} simulated nodes × {GPUS_A_NODE}"
        f" GPUs, a round each second, notice {NOTICE_SECONDS} s; client on the same"
        f" {os.cpu_count()} cores (load average {os.getloadavg()[0]:.1f})"
    ]
    if quick:
        parts.append(
            f"--quick: {size.agents[-1]} agents instead of up to 1,000, a fifth of the GPUs,"
            f" {size.samples} pods timed instead of 40"
        )
    if not with_peer:
        parts.append("no peer: build it with `make kube`")
    return "; ".join(parts)


_PODS = "pods running"


def _beside(result: Result, bound: float | None) -> Result:
    if bound is None or not result.metric.startswith(_PODS):
        return result
    return more(
        result.metric,
        result.unit,
        result.ours,
        peer=bound,
        peer_name="kube-scheduler",
        aim=ratio_at_least(5),
    )


async def _measure(folder: Path, size: Size) -> list[Result]:
    place = Place(folder, size.nodes)
    await place.start()
    try:
        results: list[Result] = []
        for count in size.agents:
            results += await _with(place, count, size)
        results += await _crowd(place, size)
        return results
    finally:
        await place.stop()


async def _with(place: Place, count: int, size: Size) -> list[Result]:
    say(f"{count} agents: made")
    made = await place.agents_up_to(count)
    say(f"{count} agents: pods on an idle fleet")
    chosen = _spread(place.names, size.samples)
    timed = [await _timed(place, name, f"idle-{count}", price="1.00") for name in chosen]
    await place.clear(chosen)
    say(f"{count} agents: a burst of pods")
    gpus = size.nodes * GPUS_A_NODE
    rate, cost = await _burst(place, count, gpus)
    say(f"{count} agents: {OVERLOAD} times as much work as GPUs")
    full = await _overload(place, count, gpus, size.urgent)
    at = f"at {count} agents"
    return [
        less(f"agent to kubeconfig p50, {at}", "ms", 1e3 * _p(made, 0.5)),
        less(f"agent to kubeconfig p99, {at}", "ms", 1e3 * _p(made, 0.99)),
        less(f"pod to bound p50, idle, {at}", "s", _p([t.bound for t in timed], 0.5)),
        less(
            f"pod to bound p99, idle, {at}",
            "s",
            _p([t.bound for t in timed], 0.99),
            aim=at_most(1.5 * ROUND_SECONDS),
        ),
        less(f"pod to running p50, idle, {at}", "s", _p([t.running for t in timed], 0.5)),
        less(f"pod to running p99, idle, {at}", "s", _p([t.running for t in timed], 0.99)),
        more(f"{_PODS} a second, {at}", "1/s", rate),
        *(less(f"CPU a pod, {part}, {at}", "ms", 1e3 * spent) for part, spent in cost.items()),
        less(f"urgent pod to running p50, {OVERLOAD}× overload, {at}", "s", _p(full, 0.5)),
        less(
            f"urgent pod to running p99, {OVERLOAD}× overload, {at}",
            "s",
            _p(full, 0.99),
            aim=at_most(NOTICE_SECONDS + 2),
        ),
    ]


async def _overload(place: Place, count: int, gpus: int, samples: int) -> list[float]:
    """On a fleet that is full, with three times as much waiting: what is urgent does not wait."""
    chosen = place.names[:count]
    work = [(chosen[n % count], f"more-{count}-{n}") for n in range((OVERLOAD - 1) * gpus)]
    await _each([place.create(name, pod, price="1.00") for name, pod in work])
    timed = [
        await _timed(place, name, f"urgent-{count}", price="90.00")
        for name in _spread(chosen, samples)
    ]
    await place.clear(chosen)
    return [t.running for t in timed]


async def _crowd(place: Place, size: Size) -> list[Result]:
    """Every agent with its pods, most of them waiting: what that costs."""
    count = len(place.names)
    say(f"{count} agents with {size.pods_each} pods each")
    gpus = size.nodes * GPUS_A_NODE
    work = [(name, f"crowd-{number}") for number in range(size.pods_each) for name in place.names]
    await _each([place.create(name, pod, price="1.00") for name, pod in work])
    await place.running_at_least(min(gpus, len(work)))
    await asyncio.sleep(_WATCHED_SECONDS)  # those that wait are told why, once
    before, began = place.cpu_seconds(), time.monotonic()
    await asyncio.sleep(_WATCHED_SECONDS)
    passed = time.monotonic() - began
    busy = {name: (used - before[name]) / passed for name, used in place.cpu_seconds().items()}
    memory = place.memory()
    return [
        less(
            f"server memory, {count} agents × {size.pods_each} pods",
            "MiB",
            memory["server"] / _MIB,
            aim=at_most(1024),
        ),
        less("exchange memory, the same", "MiB", memory["exchange"] / _MIB),
        less("server CPU while they run and wait", "cores", busy["server"]),
        less("exchange CPU, the same", "cores", busy["exchange"]),
    ]


class Timed(NamedTuple):
    bound: float
    running: float


async def _timed(place: Place, agent: str, pod: str, *, price: str) -> Timed:
    """From before `create` is sent to when a watch says so."""
    client = place.client(agent)
    revision = (await client.list(POD, SPACE)).resource_version
    began = time.perf_counter()
    await place.create(agent, pod, price=price)
    bound = 0.0
    async with asyncio.timeout(120):
        async for event in client.watch(POD, SPACE, resource_version=revision):
            found = event.object
            if event.type == "BOOKMARK" or found["metadata"]["name"] != pod:
                continue
            now = time.perf_counter() - began
            if not bound and found["spec"].get("nodeName"):
                bound = now
            if (found.get("status") or {}).get("phase") == "Running":
                return Timed(bound or now, now)
    raise RuntimeError(f"{agent}/{pod}: the watch ended")


async def _burst(place: Place, count: int, gpus: int) -> tuple[float, dict[str, float]]:
    """
    One pod for every GPU, of as many agents as there are, all at once: pods running a second,
    and by process the CPU seconds that each took. They go on running.
    """
    work = [(place.names[n % count], f"burst-{count}-{n}") for n in range(gpus)]
    before, began = place.cpu_seconds(), time.perf_counter()
    await _each([place.create(name, pod, price="1.00") for name, pod in work])
    await place.running_at_least(gpus)
    rate = gpus / (time.perf_counter() - began)
    after = place.cpu_seconds()
    return rate, {name: (after[name] - before[name]) / gpus for name in after}


class Place:
    """An installation of its own, and its agents."""

    def __init__(self, folder: Path, count: int) -> None:
        self._where = Installation(folder / "data")
        self._fleet = folder / "fleet.yaml"
        described = [
            {"name": f"n{at:04}", "product": "H100", "gpus": GPUS_A_NODE} for at in range(count)
        ]
        pool = {"product": "H100", "noticeSeconds": NOTICE_SECONDS, "restartSeconds": 3}
        self._fleet.write_bytes(msgspec.yaml.encode({"nodes": described, "pools": [pool]}))
        self._process: subprocess.Popen[str] | None = None
        self.names: list[str] = []
        self._clients: dict[str, HttpClient] = {}

    async def start(self) -> None:
        words = ["up", "--port", "0", "--data", str(self._where.folder), "--fleet"]
        self._process = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-m", "bidplane", *words, str(self._fleet)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        while "Ctrl-C stops it" not in (
            line := await asyncio.to_thread(self._process.stdout.readline)
        ):
            if not line:
                raise RuntimeError("the installation did not start")
        address = self._where.address()
        self._host = host_client(self._where, user="owner", clock=SystemClock())
        self._http = httpx2.AsyncClient(
            base_url=address.url,
            verify=ssl.create_default_context(cafile=self._where.ca_file),
            timeout=60,
            trust_env=False,
        )

    async def stop(self) -> None:
        for client in [*self._clients.values(), self._host]:
            await client.close()
        await self._http.aclose()
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, 60)
            assert self._process.stdout is not None
            self._process.stdout.close()

    def client(self, agent: str) -> Client:
        return self._clients[agent]

    async def agents_up_to(self, count: int) -> list[float]:
        """How long each took from `create` to a kubeconfig that works."""
        return [await self._agent(f"a{at:04}") for at in range(len(self.names), count)]

    async def _agent(self, name: str) -> float:
        spec = {"owner": name, "refill": "1000000", "maxPrice": "1.00"}
        began = time.perf_counter()
        await self._host.create(
            AGENT,
            {
                "apiVersion": AGENT.api_version,
                "kind": "Agent",
                "metadata": {"name": name},
                "spec": spec,
            },
        )
        while True:
            token = self._where.owner_token(user="owner", now=SystemClock().now())
            answer = await self._http.post(
                f"/bidplane/v1/agents/{name}/kubeconfig",
                headers={"Authorization": f"Bearer {token}"},
            )
            if answer.status_code == 200:
                break
            await asyncio.sleep(0.005)
        config = msgspec.yaml.decode(answer.content)
        client = HttpClient(
            config["clusters"][0]["cluster"]["server"],
            token=config["users"][0]["user"]["token"],
            ca_file=self._where.ca_file,
        )
        await client.list(POD, SPACE)
        took = time.perf_counter() - began
        self.names.append(name)
        self._clients[name] = client
        return took

    async def create(self, agent: str, name: str, *, price: str) -> None:
        await self._clients[agent].create(POD, _pod(name, price), SPACE)

    async def running_at_least(self, count: int) -> None:
        """As the host sees it: one watch for all agents."""
        running: set[str] = set()
        async with asyncio.timeout(600):
            listing = await self._host.list(POD)
            running |= {p["metadata"]["uid"] for p in listing.items if _runs(p)}
            if len(running) >= count:
                return
            async for event in self._host.watch(POD, resource_version=listing.resource_version):
                if event.type == "DELETED":
                    running.discard(event.object["metadata"]["uid"])
                elif event.type != "BOOKMARK" and _runs(event.object):
                    running.add(event.object["metadata"]["uid"])
                if len(running) >= count:
                    return

    async def clear(self, agents: Sequence[str]) -> None:
        """Delete every pod of these agents, and wait until no pod is left on the host."""

        async def empty(agent: str) -> None:
            client = self._clients[agent]
            for pod in (await client.list(POD, SPACE)).items:
                await client.delete(POD, pod["metadata"]["name"], SPACE, grace_seconds=1)

        await _each([empty(agent) for agent in agents])
        while (await self._host.list(POD)).items:
            await asyncio.sleep(0.2)

    def memory(self) -> dict[str, int]:
        return {name: _resident(pid) for name, pid in self._children().items()}

    def cpu_seconds(self) -> dict[str, float]:
        return {name: _cpu(pid) for name, pid in self._children().items()}

    def _children(self) -> dict[str, int]:
        assert self._process is not None
        found = {}
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                words = (status.parent / "cmdline").read_bytes().decode().split("\0")
            except (OSError, ValueError, IndexError):
                continue
            if parent == self._process.pid and "process" in words:
                found[words[words.index("process") + 1]] = int(status.parent.name)
        return found


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _runs(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"


def _pod(name: str, price: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {labels.MAX_PRICE: price}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "resources": {"limits": {labels.GPU_RESOURCE: "1"}},
                }
            ]
        },
    }


async def _each(work: list[Any]) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(job: Any) -> None:
        async with gate:
            await job

    async with asyncio.TaskGroup() as group:
        for job in work:
            group.create_task(one(job))


def _spread(names: Sequence[str], count: int) -> list[str]:
    step = max(1, len(names) // count)
    return list(names[::step])[:count]


def _p(values: Sequence[float], part: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(part * len(ranked)))]
