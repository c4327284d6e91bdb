"""
The resource use of a node's pods, in a kubelet's two formats.

    /stats/summary      JSON, for people and for older monitoring
    /metrics/resource   Prometheus' text, which metrics-server reads: `kubectl top`

The runtime measures it; this file only formats it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bidplane.api.times import rfc3339

_SHORTEST_SECONDS = 1.0  # between two samples that make a rate


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU and memory use of a container, a pod or the machine, at one time."""

    at: float
    cpu_seconds: float
    working_set: int  # memory that cannot be reclaimed easily
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


class CpuRates:
    """
    Cores in use: from two samples of a container, pod or node, or since its start if there is only
    one.
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[str, ...], tuple[Sample, Sample]] = {}

    def cores(self, key: tuple[str, ...], now: Sample, started: float) -> float:
        older, newer = self._samples.get(key, (None, None))
        if newer is None or newer.cpu_seconds > now.cpu_seconds:  # a new one, or it was restarted
            self._samples[key] = (now, now)
            older = Sample(at=started, cpu_seconds=0.0, working_set=0)
        elif now.at - newer.at >= _SHORTEST_SECONDS:
            self._samples[key] = (newer, now)
            older = newer
        assert older is not None
        span = now.at - older.at
        return max(now.cpu_seconds - older.cpu_seconds, 0.0) / span if span > 0 else 0.0

    def forget_all_but(self, keys: set[tuple[str, ...]]) -> None:
        """Drop the samples of all other keys."""
        self._samples = {key: value for key, value in self._samples.items() if key in keys}


def summary(use: NodeUse, rates: CpuRates) -> dict[str, object]:
    """The answer to `/stats/summary`, as `stats/v1alpha1` defines it."""
    node: dict[str, object] = {
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
    container_keys = {(pod.uid, container.name) for pod in use.pods for container in pod.containers}
    rates.forget_all_but({(), *((pod.uid,) for pod in use.pods), *container_keys})
    return {"node": node, "pods": pods}


def _pod(pod: PodUse, rates: CpuRates) -> dict[str, object]:
    entry: dict[str, object] = {
        "podRef": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "startTime": rfc3339(pod.started),
        "containers": [_container(pod, container, rates) for container in pod.containers],
        "process_stats": {"process_count": pod.processes},
    }
    total = pod.total()
    if total is not None:
        entry["cpu"] = _cpu(total, rates.cores((pod.uid,), total, pod.started))
        entry["memory"] = _memory(total)
    if pod.network is not None and total is not None:
        received, sent = pod.network
        interface = {"name": "eth0", "rxBytes": received, "txBytes": sent}
        entry["network"] = {"time": rfc3339(total.at), **interface, "interfaces": [interface]}
    if pod.volumes:
        entry["volume"] = [{"name": name, **_disk(disk)} for name, disk in pod.volumes.items()]
    logs = [container.logs for container in pod.containers if container.logs is not None]
    if logs or pod.volumes:
        disks = [*logs, *pod.volumes.values()]
        entry["ephemeral-storage"] = _disk(
            msgspec.structs.replace(
                disks[0],
                used=sum(disk.used for disk in disks),
                inodes_used=sum(disk.inodes_used for disk in disks),
            )
        )
    return entry


def _container(pod: PodUse, container: ContainerUse, rates: CpuRates) -> dict[str, object]:
    entry: dict[str, object] = {
        "name": container.name,
        "startTime": rfc3339(container.started),
        "cpu": _cpu(
            container.sample,
            rates.cores((pod.uid, container.name), container.sample, container.started),
        ),
        "memory": _memory(container.sample),
    }
    if container.logs is not None:
        entry["logs"] = _disk(container.logs)
    return entry


def _cpu(sample: Sample, cores: float) -> dict[str, object]:
    return {
        "time": rfc3339(sample.at),
        "usageNanoCores": int(cores * 1e9),
        "usageCoreNanoSeconds": int(sample.cpu_seconds * 1e9),
    }


def _memory(sample: Sample) -> dict[str, object]:
    return {
        "time": rfc3339(sample.at),
        "usageBytes": sample.usage,
        "workingSetBytes": sample.working_set,
        "rssBytes": sample.rss,
        "pageFaults": sample.faults,
        "majorPageFaults": sample.major_faults,
    }


def _disk(disk: Disk) -> dict[str, object]:
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
    """The page for `/metrics/resource`. metrics-server takes no sample without its time."""
    lines: dict[str, list[str]] = {name: [] for name in _METRICS}
    for name, labels, value, measured_at in _metric_values(use):
        label_text = f"{{{labels}}}" if labels else ""
        stamp = f" {int(measured_at * 1000)}" if measured_at is not None else ""
        lines[name].append(f"{name}{label_text} {value!r}{stamp}")
    page = []
    for name, (kind, help) in _METRICS.items():
        if lines[name]:
            page += [f"# HELP {name} [STABLE] {help}", f"# TYPE {name} {kind}", *lines[name]]
    return "\n".join([*page, ""]).encode()


def _metric_values(use: NodeUse) -> Iterator[tuple[str, str, float, float | None]]:
    """Each metric's name, labels, value and time."""
    yield "node_cpu_usage_seconds_total", "", use.sample.cpu_seconds, use.sample.at
    yield "node_memory_working_set_bytes", "", use.sample.working_set, use.sample.at
    for pod in use.pods:
        # Kubernetes names contain no character that would need quoting.
        pod_labels = f'namespace="{pod.namespace}",pod="{pod.name}"'
        for container in pod.containers:
            labels, sample = f'container="{container.name}",{pod_labels}', container.sample
            yield "container_cpu_usage_seconds_total", labels, sample.cpu_seconds, sample.at
            yield "container_memory_working_set_bytes", labels, sample.working_set, sample.at
            yield "container_start_time_seconds", labels, container.started, None
        total = pod.total()
        if total is not None:
            yield "pod_cpu_usage_seconds_total", pod_labels, total.cpu_seconds, total.at
            yield "pod_memory_working_set_bytes", pod_labels, total.working_set, total.at
    yield "resource_scrape_error", "", 0, None
