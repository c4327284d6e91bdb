"""
Counters under the names NVIDIA's dcgm-exporter gives them, and back.

So a Prometheus that knows a real fleet's dashboards knows a simulated one, and one reader
reads both. The exporter calls the node `Hostname`; a Prometheus that relabels, or newer
exporters, say `hostname`: both are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from bidplane.telemetry.model import Counters, Holder, ProcessMemory

MIB = 1 << 20
PREFIX = "DCGM_FI_"


class Metric(msgspec.Struct, frozen=True):
    """One metric: the field of `Counters` it is, its help, and how many of ours one unit is."""

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
# DCGM has no such metric; on the same page, under a name of our own.
PROCESS_MEMORY = "bidplane_gpu_process_memory_bytes"


class Point(msgspec.Struct, frozen=True):
    """One value of one metric."""

    name: str
    labels: Mapping[str, str]
    value: float


def exposition(counters: Iterable[Counters]) -> bytes:
    """The page a Prometheus scrapes."""
    families = {
        name: GaugeMetricFamily(name, metric.help, labels=_LABELS)
        for name, metric in METRICS.items()
    }
    processes = GaugeMetricFamily(
        PROCESS_MEMORY, "What a process holds of a GPU's memory.", labels=(*_LABELS, "pid")
    )
    for one in counters:
        labels = _labels(one)
        for name, metric in METRICS.items():
            value = getattr(one, metric.field)
            if value is not None:
                families[name].add_metric(labels, value / metric.unit)
        for process in one.processes:
            if process.bytes is not None:
                processes.add_metric([*labels, str(process.pid)], process.bytes)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once([*families.values(), processes]))
    return generate_latest(registry)


class _Once:
    """A collector that has its metrics already."""

    def __init__(self, families: list[GaugeMetricFamily]) -> None:
        self._families = families

    def collect(self) -> list[GaugeMetricFamily]:
        return self._families


def _labels(one: Counters) -> list[str]:
    holder = one.holder or Holder(namespace="", pod="")
    return [
        str(one.index),
        one.uuid,
        f"nvidia{one.index}",
        one.product,
        one.profile,
        one.instance,
        one.node,
        holder.namespace,
        holder.pod,
        holder.container,
    ]


def parse(page: str) -> list[Point]:
    """The DCGM points of a page; raises `ValueError` when it is no such page."""
    return [
        Point(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        if family.name.startswith(PREFIX) or family.name == PROCESS_MEMORY
        for sample in family.samples
    ]


def counters(points: Iterable[Point]) -> list[Counters]:
    """
    One `Counters` for each device that is named, by node and number; the MIG instances of a GPU
    after it.
    """
    fields: dict[tuple[str, str, str], dict[str, Any]] = {}
    for point in points:
        metric = METRICS.get(point.name)
        uuid = point.labels.get("UUID", "")
        if (metric is None and point.name != PROCESS_MEMORY) or not uuid:
            continue
        instance = point.labels.get("GPU_I_ID", "")
        known = fields.setdefault((_node(point.labels), uuid, instance), {})
        known |= _named(point.labels)
        if point.value != point.value:
            continue  # not a number is not a value
        if metric is not None:
            value = point.value * metric.unit
            known[metric.field] = int(value) if metric.field in _WHOLE else value
        elif (pid := point.labels.get("pid", "")).isdecimal():
            process = ProcessMemory(pid=int(pid), bytes=int(point.value))
            known["processes"] = (*known.get("processes", ()), process)
    found = [
        Counters(node=node, uuid=uuid, instance=instance, **known)
        for (node, uuid, instance), known in fields.items()
    ]
    return sorted(found, key=lambda one: (one.node, one.index, one.uuid, one.instance))


def _node(labels: Mapping[str, str]) -> str:
    for name in ("Hostname", "hostname", "node"):
        if labels.get(name):
            return labels[name]
    return labels.get("instance", "").rpartition(":")[0]


def _named(labels: Mapping[str, str]) -> dict[str, Any]:
    number = labels.get("gpu", "")
    named: dict[str, Any] = {
        "index": int(number) if number.isdecimal() else 0,
        "product": labels.get("modelName", ""),
        "profile": labels.get("GPU_I_PROFILE", ""),
    }
    # A Prometheus that scrapes by Kubernetes' discovery keeps the exporter's own labels apart.
    pod = labels.get("exported_pod") or labels.get("pod")
    namespace = labels.get("exported_namespace") or labels.get("namespace")
    if pod and namespace:
        container = labels.get("exported_container") or labels.get("container") or ""
        named["holder"] = Holder(namespace=namespace, pod=pod, container=container)
    return named
