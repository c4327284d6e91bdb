"""
Counters under the names of NVIDIA's dcgm-exporter, written and read.

A Prometheus with dashboards for a real fleet can show a simulated one, and one reader reads both.
The exporter calls the node `Hostname`; a Prometheus that relabels, or newer exporters, call it
`hostname`: both are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from bidplane.telemetry.model import Counters, Holder, HolderProcess, ProcessMemory

MIB = 1 << 20
PREFIX = "DCGM_FI_"


class Metric(msgspec.Struct, frozen=True):
    """
    A metric: its field of `Counters`, its help, and how many of our units one of its units is.
    """

    field: str
    help: str
    unit: int = 1


METRICS = {
    "DCGM_FI_DEV_GPU_UTIL": Metric("utilisation_percent", "GPU utilization (in %)."),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Metric(
        "engine_percent", "Ratio of time the graphics engine is active.", 100
    ),
    "DCGM_FI_DEV_FB_USED": Metric("memory_used_bytes", "Framebuffer memory used (in MiB).", MIB),
    "DCGM_FI_DEV_FB_FREE": Metric("memory_free_bytes", "Framebuffer memory free (in MiB).", MIB),
    "DCGM_FI_DEV_POWER_USAGE": Metric("power_watts", "Power draw (in W)."),
    "DCGM_FI_DEV_GPU_TEMP": Metric("temperature_celsius", "GPU temperature (in C)."),
    "DCGM_FI_PROF_PCIE_TX_BYTES": Metric(
        "pcie_tx_bytes_per_second", "The rate of data transmitted over the PCIe bus (in B/s)."
    ),
    "DCGM_FI_PROF_PCIE_RX_BYTES": Metric(
        "pcie_rx_bytes_per_second", "The rate of data received over the PCIe bus (in B/s)."
    ),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": Metric("pcie_link_width", "PCIe current link width."),
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": Metric("pcie_link_width_max", "PCIe max link width."),
    "DCGM_FI_DEV_PCIE_LINK_GEN": Metric("pcie_link_generation", "PCIe current link generation."),
    "DCGM_FI_DEV_XID_ERRORS": Metric("xid", "Value of the last XID error encountered."),
}
# The metrics of a GPU's utilisation.
WORK_METRICS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
_WHOLE = {
    "memory_used_bytes",
    "memory_free_bytes",
    "pcie_link_width",
    "pcie_link_width_max",
    "pcie_link_generation",
    "xid",
}
_LABELS = (
    "gpu",
    "UUID",
    "device",
    "modelName",
    "GPU_I_PROFILE",
    "GPU_I_ID",
    "Hostname",
    "namespace",
    "pod",
    "container",
)
# Metrics that DCGM does not have: on the same page, under our own names.
PROCESS_MEMORY = "bidplane_gpu_process_memory_bytes"
DECLARED = "bidplane_gpu_declared"
HOLDER_MEMORY = "bidplane_gpu_holder_memory_bytes"
HOLDER_CPU = "bidplane_gpu_holder_cpu_seconds"
OWN = {
    DECLARED: "1 for a GPU that its owner declares; nothing measures it.",
    PROCESS_MEMORY: "GPU memory that a process uses.",
    HOLDER_MEMORY: "Main memory that a process of the pod that holds a GPU uses.",
    HOLDER_CPU: "CPU time of a process of the pod that holds a GPU.",
}


class Point(msgspec.Struct, frozen=True):
    """One value of one metric."""

    name: str
    labels: Mapping[str, str]
    value: float


def exposition(counters: Iterable[Counters]) -> bytes:
    """The page that a Prometheus scrapes."""
    families = {
        name: GaugeMetricFamily(name, metric.help, labels=_LABELS)
        for name, metric in METRICS.items()
    }
    own_families = {
        name: GaugeMetricFamily(
            name, help, labels=_LABELS if name == DECLARED else (*_LABELS, "pid")
        )
        for name, help in OWN.items()
    }
    for device in counters:
        labels = _labels(device)
        for name, metric in METRICS.items():
            value = getattr(device, metric.field)
            if value is not None:
                families[name].add_metric(labels, value / metric.unit)
        for process in device.processes:
            if process.bytes is not None:
                own_families[PROCESS_MEMORY].add_metric([*labels, str(process.pid)], process.bytes)
        if device.declared:
            own_families[DECLARED].add_metric(labels, 1)
        for worker in device.holder_processes:
            process_labels = [*labels, str(worker.pid)]
            own_families[HOLDER_MEMORY].add_metric(process_labels, worker.memory_bytes)
            own_families[HOLDER_CPU].add_metric(process_labels, worker.cpu_seconds)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FixedCollector([*families.values(), *own_families.values()]))
    return generate_latest(registry)


class _FixedCollector:
    """A collector of given metrics."""

    def __init__(self, families: list[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> list[GaugeMetricFamily]:
        return self._families


def _labels(device: Counters) -> list[str]:
    """The label values of a device's metrics."""
    holder = device.holder or Holder(namespace="", pod="")
    return [
        str(device.index),
        device.uuid,
        f"nvidia{device.index}",
        device.product,
        device.profile,
        device.instance,
        device.node,
        holder.namespace,
        holder.pod,
        holder.container,
    ]


def parse(page: str) -> list[Point]:
    """The DCGM points of a page; raises `ValueError` when it is not such a page."""
    return [
        Point(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        if family.name.startswith(PREFIX) or family.name in OWN
        for sample in family.samples
    ]


def counters(points: Iterable[Point]) -> list[Counters]:
    """One `Counters` per device, ordered by node and index; a GPU's MIG instances follow it."""
    fields: dict[tuple[str, str, str], dict[str, Any]] = {}
    workers: dict[tuple[str, str, str], dict[int, dict[str, float]]] = {}
    for point in points:
        metric = METRICS.get(point.name)
        uuid = point.labels.get("UUID", "")
        if (metric is None and point.name not in OWN) or not uuid:
            continue
        instance = point.labels.get("GPU_I_ID", "")
        key = _node(point.labels), uuid, instance
        device = fields.setdefault(key, {})
        device |= _identity(point.labels)
        if point.value != point.value:
            continue  # NaN is no value
        if metric is not None:
            value = point.value * metric.unit
            device[metric.field] = int(value) if metric.field in _WHOLE else value
        elif point.name == DECLARED:
            device["declared"] = point.value == 1
        elif (pid := point.labels.get("pid", "")).isdecimal():
            workers.setdefault(key, {}).setdefault(int(pid), {})[point.name] = point.value
    devices = [
        Counters(
            node=key[0], uuid=key[1], instance=key[2], **device, **_processes(workers.get(key))
        )
        for key, device in fields.items()
    ]
    return sorted(
        devices,
        key=lambda device_counters: (
            device_counters.node,
            device_counters.index,
            device_counters.uuid,
            device_counters.instance,
        ),
    )


def _processes(values_by_pid: Mapping[int, Mapping[str, float]] | None) -> dict[str, Any]:
    """The process fields of `Counters`, from the values of each pid by metric name."""
    values_by_pid = values_by_pid or {}
    return {
        "processes": tuple(
            ProcessMemory(pid=pid, bytes=int(values[PROCESS_MEMORY]))
            for pid, values in values_by_pid.items()
            if PROCESS_MEMORY in values
        ),
        "holder_processes": tuple(
            HolderProcess(
                pid=pid, memory_bytes=int(values[HOLDER_MEMORY]), cpu_seconds=values[HOLDER_CPU]
            )
            for pid, values in values_by_pid.items()
            if HOLDER_MEMORY in values and HOLDER_CPU in values
        ),
    }


def _node(labels: Mapping[str, str]) -> str:
    """The node that a point's labels name."""
    for name in ("Hostname", "hostname", "node"):
        if labels.get(name):
            return labels[name]
    return labels.get("instance", "").rpartition(":")[0]


def _identity(labels: Mapping[str, str]) -> dict[str, Any]:
    """The fields of `Counters` that the labels hold."""
    number = labels.get("gpu", "")
    fields: dict[str, Any] = {
        "index": int(number) if number.isdecimal() else 0,
        "product": labels.get("modelName", ""),
        "profile": labels.get("GPU_I_PROFILE", ""),
    }
    # A Prometheus that scrapes by Kubernetes' discovery keeps the exporter's own labels apart.
    pod = labels.get("exported_pod") or labels.get("pod")
    namespace = labels.get("exported_namespace") or labels.get("namespace")
    if pod and namespace:
        container = labels.get("exported_container") or labels.get("container") or ""
        fields["holder"] = Holder(namespace=namespace, pod=pod, container=container)
    return fields
