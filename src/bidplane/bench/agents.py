"""
The latency and throughput that agents see: a real installation (three processes, HTTPS, simulated
nodes), and the pods of many agents from `create` to running.

The peer is the rig's kube-scheduler with DRA: pods bound a second, each with a claim, on a
kube-apiserver with a durable etcd. Ours are counted from the first pod created to the last one
*running*: bid for, won, paid for, bound, carried to the host and started.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from bidplane.api import labels
from bidplane.api.agent import AgentSpec
from bidplane.api.kinds import AGENT, POD
from bidplane.api.manifests import manifest
from bidplane.api.objects import phase_of
from bidplane.bench import nodes
from bidplane.bench.report import BenchReport, Result, at_most, less, more, ratio_at_least, say
from bidplane.http.client.caller import HttpCaller, trust
from bidplane.kube.client import KubeClient, Object
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
NAMESPACE = "default"


class AgentsSize(NamedTuple):
    """The sizes of the benchmark."""

    agents: tuple[int, ...]
    nodes: int
    pods_each: int  # at the last number of agents: what memory is measured with
    peer: tuple[int, int]  # nodes, claims
    samples: int  # pods timed one after the other on an idle fleet
    urgent: int  # and on a full one, with OVERLOAD times as much work as it has GPUs


def run(*, quick: bool, data: Path | None) -> BenchReport:
    """Run the benchmark."""
    size = AgentsSize((10, 100, 1000), 64, 10, (100, 300), 40, 10)
    if quick:
        size = AgentsSize((10,), 12, 10, (20, 50), 4, 2)
    with tempfile.TemporaryDirectory(prefix="bidplane-bench-") as folder:
        results = asyncio.run(_measure(Path(folder), size))
    say("kube-scheduler with DRA, for comparison")
    bound = nodes.bound_per_second(*size.peer)
    return BenchReport(
        name="agents",
        how=_how(size, quick, bound is not None),
        results=tuple(_with_peer(result, bound) for result in results),
    )


def _how(size: AgentsSize, quick: bool, with_peer: bool) -> str:
    """A description of the measurement."""
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


def _with_peer(result: Result, bound: float | None) -> Result:
    """Return the result beside `bound`, the pods that kube-scheduler bound in a second."""
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


async def _measure(folder: Path, size: AgentsSize) -> list[Result]:
    """Start an installation and measure it."""
    installation = BenchInstallation(folder, size.nodes)
    await installation.start()
    try:
        results: list[Result] = []
        for count in size.agents:
            results += await _at_agent_count(installation, count, size)
        results += await _many_pods(installation, size)
        return results
    finally:
        await installation.stop()


async def _at_agent_count(
    installation: BenchInstallation, count: int, size: AgentsSize
) -> list[Result]:
    """The results with that many agents."""
    say(f"{count} agents: made")
    kubeconfig_times = await installation.agents_up_to(count)
    say(f"{count} agents: pods on an idle fleet")
    agents = _spread(installation.names, size.samples)
    pod_times = [
        await time_pod(installation, name, f"idle-{count}", price="1.00") for name in agents
    ]
    await installation.clear(agents)
    say(f"{count} agents: a burst of pods")
    gpus = size.nodes * GPUS_A_NODE
    rate, cost = await _burst(installation, count, gpus)
    say(f"{count} agents: {OVERLOAD} times as much work as GPUs")
    urgent_times = await _overload(installation, count, gpus, size.urgent)
    suffix = f"at {count} agents"
    return [
        less(f"agent to kubeconfig p50, {suffix}", "ms", 1e3 * percentile(kubeconfig_times, 0.5)),
        less(f"agent to kubeconfig p99, {suffix}", "ms", 1e3 * percentile(kubeconfig_times, 0.99)),
        less(
            f"pod to bound p50, idle, {suffix}", "s", percentile([t.bound for t in pod_times], 0.5)
        ),
        less(
            f"pod to bound p99, idle, {suffix}",
            "s",
            percentile([t.bound for t in pod_times], 0.99),
            aim=at_most(1.5 * ROUND_SECONDS),
        ),
        less(
            f"pod to running p50, idle, {suffix}",
            "s",
            percentile([t.running for t in pod_times], 0.5),
        ),
        less(
            f"pod to running p99, idle, {suffix}",
            "s",
            percentile([t.running for t in pod_times], 0.99),
        ),
        more(f"{_PODS} a second, {suffix}", "1/s", rate),
        *(less(f"CPU a pod, {part}, {suffix}", "ms", 1e3 * spent) for part, spent in cost.items()),
        less(
            f"urgent pod to running p50, {OVERLOAD}× overload, {suffix}",
            "s",
            percentile(urgent_times, 0.5),
        ),
        less(
            f"urgent pod to running p99, {OVERLOAD}× overload, {suffix}",
            "s",
            percentile(urgent_times, 0.99),
            aim=at_most(NOTICE_SECONDS + 2),
        ),
    ]


async def _overload(
    installation: BenchInstallation, count: int, gpus: int, samples: int
) -> list[float]:
    """
    The seconds to Running of urgent pods on a full fleet with three times as much work waiting.
    """
    agents = installation.names[:count]
    work = [(agents[n % count], f"more-{count}-{n}") for n in range((OVERLOAD - 1) * gpus)]
    await _run_all([installation.create(name, pod, price="1.00") for name, pod in work])
    pod_times = [
        await time_pod(installation, name, f"urgent-{count}", price="90.00")
        for name in _spread(agents, samples)
    ]
    await installation.clear(agents)
    return [t.running for t in pod_times]


async def _many_pods(installation: BenchInstallation, size: AgentsSize) -> list[Result]:
    """The memory and CPU use with every agent's pods created, most of them waiting."""
    count = len(installation.names)
    say(f"{count} agents with {size.pods_each} pods each")
    gpus = size.nodes * GPUS_A_NODE
    work = [
        (name, f"crowd-{number}") for number in range(size.pods_each) for name in installation.names
    ]
    await _run_all([installation.create(name, pod, price="1.00") for name, pod in work])
    await installation.running_at_least(min(gpus, len(work)))
    await asyncio.sleep(_WATCHED_SECONDS)  # waiting pods get their explanation once
    before, began = installation.cpu_seconds(), time.monotonic()
    await asyncio.sleep(_WATCHED_SECONDS)
    elapsed = time.monotonic() - began
    busy = {
        name: (used - before[name]) / elapsed for name, used in installation.cpu_seconds().items()
    }
    memory = installation.memory()
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


class PodTimes(NamedTuple):
    """Seconds from `create` until a pod is bound and until it runs."""

    bound: float
    running: float


async def time_pod(
    installation: BenchInstallation, agent: str, pod: str, *, price: str
) -> PodTimes:
    """Create a pod and time it, from sending `create` to the watch's events."""
    client = installation.client(agent)
    revision = (await client.list(POD, NAMESPACE)).resource_version
    began = time.perf_counter()
    await installation.create(agent, pod, price=price)
    bound = 0.0
    async with asyncio.timeout(120):
        async for event in client.watch(POD, NAMESPACE, resource_version=revision):
            seen_pod = event.object
            if event.type == "BOOKMARK" or seen_pod["metadata"]["name"] != pod:
                continue
            now = time.perf_counter() - began
            if not bound and seen_pod["spec"].get("nodeName"):
                bound = now
            if _is_running(seen_pod):
                return PodTimes(bound or now, now)
    raise RuntimeError(f"{agent}/{pod}: the watch ended")


async def _burst(
    installation: BenchInstallation, count: int, gpus: int
) -> tuple[float, dict[str, float]]:
    """
    Create one pod for every GPU at once, spread over all agents. Return the pods running per
    second, and the CPU seconds per pod of each process. The pods keep running.
    """
    work = [(installation.names[n % count], f"burst-{count}-{n}") for n in range(gpus)]
    before, began = installation.cpu_seconds(), time.perf_counter()
    await _run_all([installation.create(name, pod, price="1.00") for name, pod in work])
    await installation.running_at_least(gpus)
    rate = gpus / (time.perf_counter() - began)
    after = installation.cpu_seconds()
    return rate, {name: (after[name] - before[name]) / gpus for name in after}


class BenchInstallation:
    """An installation of its own, and its agents."""

    def __init__(self, folder: Path, count: int) -> None:
        self._installation = Installation(folder / "data")
        self._fleet = folder / "fleet.yaml"
        declared_nodes = [
            {"name": f"n{number:04}", "product": "H100", "gpus": GPUS_A_NODE}
            for number in range(count)
        ]
        pool = {"product": "H100", "noticeSeconds": NOTICE_SECONDS, "restartSeconds": 3}
        self._fleet.write_bytes(msgspec.yaml.encode({"nodes": declared_nodes, "pools": [pool]}))
        self._process: subprocess.Popen[str] | None = None
        self.names: list[str] = []
        self.tokens: dict[str, str] = {}  # by agent
        self.port = 0
        self._clients: dict[str, HttpClient] = {}

    async def start(self) -> None:
        arguments = ["up", "--port", "0", "--data", str(self._installation.folder), "--fleet"]
        self._process = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-m", "bidplane", *arguments, str(self._fleet)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        while "Ctrl-C stops it" not in (
            line := await asyncio.to_thread(self._process.stdout.readline)
        ):
            if not line:
                raise RuntimeError("the installation did not start")
        address = self._installation.address()
        self.port = urlsplit(address.url).port or 0
        self._host = host_client(self._installation, user="owner", clock=SystemClock())
        self._http = HttpCaller(
            address.url, trust=trust(ca_file=self._installation.ca_file), seconds=60
        )

    async def stop(self) -> None:
        for client in [*self._clients.values(), self._host]:
            await client.close()
        await self._http.close()
        if self._process is not None:
            self._process.terminate()
            await asyncio.to_thread(self._process.wait, 60)
            assert self._process.stdout is not None
            self._process.stdout.close()

    def client(self, agent: str) -> KubeClient:
        return self._clients[agent]

    async def agents_up_to(self, count: int) -> list[float]:
        """
        Create agents up to that number; return the seconds from `create` to a working kubeconfig.
        """
        return [await self._agent(f"a{number:04}") for number in range(len(self.names), count)]

    async def _agent(self, name: str) -> float:
        """Create an agent; return the seconds until its kubeconfig works."""
        spec = AgentSpec(owner=name, refill="1000000", max_price="1.00")
        began = time.perf_counter()
        await self._host.create(AGENT, manifest(AGENT, name, spec))
        while True:
            token = self._installation.owner_token(user="owner", now=SystemClock().now())
            answer = await self._http.call(
                "POST",
                f"/bidplane/v1/agents/{name}/kubeconfig",
                headers={"Authorization": f"Bearer {token}"},
            )
            if answer.code == 200:
                break
            await asyncio.sleep(0.005)
        config = msgspec.yaml.decode(answer.body)
        self.tokens[name] = config["users"][0]["user"]["token"]
        client = HttpClient(
            config["clusters"][0]["cluster"]["server"],
            token=self.tokens[name],
            ca_file=self._installation.ca_file,
        )
        await client.list(POD, NAMESPACE)
        elapsed = time.perf_counter() - began
        self.names.append(name)
        self._clients[name] = client
        return elapsed

    async def create(self, agent: str, name: str, *, price: str) -> None:
        await self._clients[agent].create(POD, _pod(name, price), NAMESPACE)

    async def running_at_least(self, count: int) -> None:
        """Wait until that many pods run on the host, with one watch for all agents."""
        running: set[str] = set()
        async with asyncio.timeout(600):
            listing = await self._host.list(POD)
            running |= {p["metadata"]["uid"] for p in listing.items if _is_running(p)}
            if len(running) >= count:
                return
            async for event in self._host.watch(POD, resource_version=listing.resource_version):
                if event.type == "DELETED":
                    running.discard(event.object["metadata"]["uid"])
                elif event.type != "BOOKMARK" and _is_running(event.object):
                    running.add(event.object["metadata"]["uid"])
                if len(running) >= count:
                    return

    async def clear(self, agents: Sequence[str]) -> None:
        """Delete every pod of these agents, and wait until no pod is left on the host."""

        async def empty(agent: str) -> None:
            client = self._clients[agent]
            for pod in (await client.list(POD, NAMESPACE)).items:
                await client.delete(POD, pod["metadata"]["name"], NAMESPACE, grace_seconds=1)

        await _run_all([empty(agent) for agent in agents])
        while (await self._host.list(POD)).items:
            await asyncio.sleep(0.2)

    def memory(self) -> dict[str, int]:
        return {name: _resident(pid) for name, pid in self._children().items()}

    def cpu_seconds(self) -> dict[str, float]:
        return {name: _cpu(pid) for name, pid in self._children().items()}

    def _children(self) -> dict[str, int]:
        """The process ids of the installation, by process name."""
        assert self._process is not None
        pids = {}
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                arguments = (status.parent / "cmdline").read_bytes().decode().split("\0")
            except (OSError, ValueError, IndexError):
                continue
            if parent == self._process.pid and "process" in arguments:
                pids[arguments[arguments.index("process") + 1]] = int(status.parent.name)
        return pids


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_running(pod: Object) -> bool:
    return phase_of(pod) == "Running"


def _pod(name: str, price: str) -> Object:
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


async def _run_all(work: list[Awaitable[object]]) -> None:
    """Await all jobs, a few at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def run_limited(job: Awaitable[object]) -> None:
        async with gate:
            await job

    async with asyncio.TaskGroup() as group:
        for job in work:
            group.create_task(run_limited(job))


def _spread(names: Sequence[str], count: int) -> list[str]:
    """That many of the names, evenly spread."""
    step = max(1, len(names) // count)
    return list(names[::step])[:count]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]
