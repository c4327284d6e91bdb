"""
What a node's pods use, in a kubelet's two shapes.

    /stats/summary      JSON, for people and for older monitoring
    /metrics/resource   Prometheus' text, which metrics-server reads: `kubectl top`

How it was measured is the runtime's; here is only what it is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.machinery.clock import rfc3339

_SHORTEST_SECONDS = 1.0  # between two samples that make a rate


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Of a container, a pod or the machine, at one time."""

    at: float
    cpu_seconds: float
    working_set: int  # what cannot be taken back without harm
    usage: int = 0
    rss: int = 0
    faults: int = 0
    major_faults: int = 0


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    used: int
    inodes_used: int = 0
    capacity: int = 0
    available: int = 0
    inodes: int = 0
    inodes_free: int = 0


class ContainerUse(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    started: float
    sample: Sample
    logs: Disk | None = None


class PodUse(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str
    started: float
    containers: Sequence[ContainerUse]
    processes: int = 0
    volumes: Mapping[str, Disk] = {}
    network: tuple[int, int] | None = None  # bytes received and sent, where it has its own

    def total(self) -> Sample | None:
        samples = [container.sample for container in self.containers]
        if not samples:
            return None
        return Sample(
            at=max(sample.at for sample in samples),
            cpu_seconds=sum(sample.cpu_seconds for sample in samples),
            working_set=sum(sample.working_set for sample in samples),
            usage=sum(sample.usage for sample in samples),
            rss=sum(sample.rss for sample in samples),
            faults=sum(sample.faults for sample in samples),
            major_faults=sum(sample.major_faults for sample in samples),
        )


class NodeUse(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    booted: float
    memory: int  # all there is
    sample: Sample
    disk: Disk | None = None
    pods: Sequence[PodUse] = ()


class Rates:
    """Cores in use: from two samples of one thing, or since it started if there is one only."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, ...], tuple[Sample, Sample]] = {}

    def cores(self, key: tuple[str, ...], now: Sample, started: float) -> float:
        older, newer = self._before.get(key, (None, None))
        if newer is None or newer.cpu_seconds > now.cpu_seconds:  # new, or another run of it
            self._before[key] = (now, now)
            older = Sample(at=started, cpu_seconds=0.0, working_set=0)
        elif now.at - newer.at >= _SHORTEST_SECONDS:
            self._before[key] = (newer, now)
            older = newer
        assert older is not None
        span = now.at - older.at
        return max(now.cpu_seconds - older.cpu_seconds, 0.0) / span if span > 0 else 0.0

    def forget_all_but(self, keys: set[tuple[str, ...]]) -> None:
        self._before = {key: value for key, value in self._before.items() if key in keys}


def summary(use: NodeUse, rates: Rates) -> dict[str, Any]:
    """`/stats/summary`, as `stats/v1alpha1` has it."""
    node: dict[str, Any] = {
        "nodeName": use.name,
        "startTime": rfc3339(use.booted),
        "cpu": _cpu(use.sample, rates.cores((), use.sample, use.booted)),
        "memory": {
            **_memory(use.sample),
            "availableBytes": max(use.memory - use.sample.working_set, 0),
        },
    }
    if use.disk is not None:
        node["fs"] = _disk(use.disk)
        node["runtime"] = {"imageFs": _disk(use.disk), "containerFs": _disk(use.disk)}
    pods = [_pod(pod, rates) for pod in use.pods]
    known = {(pod.uid, one.name) for pod in use.pods for one in pod.containers}
    rates.forget_all_but({(), *((pod.uid,) for pod in use.pods), *known})
    return {"node": node, "pods": pods}


def _pod(pod: PodUse, rates: Rates) -> dict[str, Any]:
    found: dict[str, Any] = {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": rfc3339(pod.started),
        "containers": [_container(pod, one, rates) for one in pod.containers],
        "process_stats": {"process_count": pod.processes},
    }
    total = pod.total()
    if total is not None:
        found["cpu"] = _cpu(total, rates.cores((pod.uid,), total, pod.started))
        found["memory"] = _memory(total)
    if pod.network is not None and total is not None:
        received, sent = pod.network
        counted = {"name": "eth0", "rxBytes": received, "txBytes": sent}
        found["network"] = {"time": rfc3339(total.at), **counted, "interfaces": [counted]}
    if pod.volumes:
        found["volume"] = [{"name": name, **_disk(disk)} for name, disk in pod.volumes.items()]
    logs = [one.logs for one in pod.containers if one.logs is not None]
    if logs or pod.volumes:
        every = [*logs, *pod.volumes.values()]
        found["ephemeral-storage"] = _disk(
            msgspec.structs.replace(
                every[0],
                used=sum(disk.used for disk in every),
                inodes_used=sum(disk.inodes_used for disk in every),
            )
        )
    return found


def _container(pod: PodUse, one: ContainerUse, rates: Rates) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": one.name,
        "startTime": rfc3339(one.started),
        "cpu": _cpu(one.sample, rates.cores((pod.uid, one.name), one.sample, one.started)),
        "memory": _memory(one.sample),
    }
    if one.logs is not None:
        found["logs"] = _disk(one.logs)
    return found


def _cpu(sample: Sample, cores: float) -> dict[str, Any]:
    return {
        "time": rfc3339(sample.at),
        "usageNanoCores": int(cores * 1e9),
        "usageCoreNanoSeconds": int(sample.cpu_seconds * 1e9),
    }


def _memory(sample: Sample) -> dict[str, Any]:
    return {
        "time": rfc3339(sample.at),
        "usageBytes": sample.usage,
        "workingSetBytes": sample.working_set,
        "rssBytes": sample.rss,
        "pageFaults": sample.faults,
        "majorPageFaults": sample.major_faults,
    }


def _disk(disk: Disk) -> dict[str, Any]:
    return {
        "time": rfc3339(disk.at),
        "availableBytes": disk.available,
        "capacityBytes": disk.capacity,
        "usedBytes": disk.used,
        "inodes": disk.inodes,
        "inodesFree": disk.inodes_free,
        "inodesUsed": disk.inodes_used,
    }


_CPU = "Cumulative cpu time consumed by the {} in core-seconds"
_SET = "Current working set of the {} in bytes"
_METRICS = {
    "container_cpu_usage_seconds_total": ("counter", _CPU.format("container")),
    "container_memory_working_set_bytes": ("gauge", _SET.format("container")),
    "container_start_time_seconds": (
        "gauge",
        "Start time of the container since unix epoch in seconds",
    ),
    "node_cpu_usage_seconds_total": ("counter", _CPU.format("node")),
    "node_memory_working_set_bytes": ("gauge", _SET.format("node")),
    "pod_cpu_usage_seconds_total": ("counter", _CPU.format("pod")),
    "pod_memory_working_set_bytes": ("gauge", _SET.format("pod")),
    "resource_scrape_error": (
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    ),
}


def resource_metrics(use: NodeUse) -> bytes:
    """`/metrics/resource`. metrics-server takes no sample without its time."""
    lines: dict[str, list[str]] = {name: [] for name in _METRICS}
    for name, labels, value, at in _measured(use):
        shown = f"{{{labels}}}" if labels else ""
        stamp = f" {int(at * 1000)}" if at is not None else ""
        lines[name].append(f"{name}{shown} {value!r}{stamp}")
    page = []
    for name, (kind, words) in _METRICS.items():
        if lines[name]:
            page += [f"# HELP {name} [STABLE] {words}", f"# TYPE {name} {kind}", *lines[name]]
    return "\n".join([*page, ""]).encode()


def _measured(use: NodeUse) -> Iterator[tuple[str, str, float, float | None]]:
    yield "node_cpu_usage_seconds_total", "", use.sample.cpu_seconds, use.sample.at
    yield "node_memory_working_set_bytes", "", use.sample.working_set, use.sample.at
    for pod in use.pods:
        # Names of Kubernetes hold nothing that would have to be quoted.
        where = f'namespace="{pod.namespace}",pod="{pod.name}"'
        for one in pod.containers:
            labels, sample = f'container="{one.name}",{where}', one.sample
            yield "container_cpu_usage_seconds_total", labels, sample.cpu_seconds, sample.at
            yield "container_memory_working_set_bytes", labels, sample.working_set, sample.at
            yield "container_start_time_seconds", labels, one.started, None
        total = pod.total()
        if total is not None:
            yield "pod_cpu_usage_seconds_total", where, total.cpu_seconds, total.at
            yield "pod_memory_working_set_bytes", where, total.working_set, total.at
    yield "resource_scrape_error", "", 0, None
