"""
Counters of GPUs that are declared and not measured: their holders, and the holders' usage.

Nothing here measures a GPU, so its load and memory are unknown. The memory and CPU time of the
processes in the containers that hold it are measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bidplane.api import labels
from bidplane.core.devices import migdevices
from bidplane.kube.client import Object
from bidplane.node.inventory import uuids
from bidplane.node.process.container import shims
from bidplane.node.process.container.container import Unit
from bidplane.node.process.supplies import container_devices
from bidplane.node.process.usage import counters as usage
from bidplane.node.process.worker import PodWorker
from bidplane.telemetry.model import Counters, Holder, HolderProcess

DeviceKey = tuple[str, str, str]


def counters(
    slices: Sequence[Object], workers: Iterable[PodWorker], *, at: float
) -> list[Counters]:
    """Return the counters of each whole GPU; holders of a part of it are listed with it."""
    holders_by_gpu = _holders(slices, workers)
    ids = uuids(slices)
    gpu_counters: list[Counters] = []
    for piece in slices:
        spec = piece["spec"]
        for device in spec.get("devices") or ():
            attributes = device.get("attributes") or {}
            if attributes.get("type", {}).get("string") != "gpu":
                continue
            key = spec["driver"], spec["pool"]["name"], device["name"]
            holders = holders_by_gpu.get(key, [])
            gpu_counters.append(
                Counters(
                    node=spec["nodeName"],
                    index=len(gpu_counters),
                    uuid=ids[key],
                    product=str(attributes.get(labels.PRODUCT_ATTRIBUTE, {}).get("string", "")),
                    declared=True,
                    holder=_holder(*holders[0]) if holders else None,
                    holder_processes=tuple(
                        process for _, unit in holders for process in _processes(unit, at=at)
                    ),
                )
            )
    return gpu_counters


def _holders(
    slices: Sequence[Object], workers: Iterable[PodWorker]
) -> dict[DeviceKey, list[tuple[PodWorker, Unit]]]:
    """Return the running containers that hold each whole GPU or a part of it."""
    names = {id: key for key, id in uuids(slices).items()}
    cut = {key: names.get(part.gpu, key) for key, part in migdevices.of_slices(slices).items()}
    holders: dict[DeviceKey, list[tuple[PodWorker, Unit]]] = {}
    for worker in workers:
        for unit in worker.units.values():
            if unit.run is None or not unit.run.running:
                continue
            for device in container_devices(unit.spec, worker.devices):
                holders.setdefault(cut.get(device.key, device.key), []).append((worker, unit))
    return holders


def _holder(worker: PodWorker, unit: Unit) -> Holder:
    metadata = worker.pod["metadata"]
    return Holder(namespace=metadata["namespace"], pod=metadata["name"], container=unit.name)


def _processes(unit: Unit, *, at: float) -> Iterator[HolderProcess]:
    """Yield the container's own processes, without those of its sandbox."""
    state = unit.attempt.state() if unit.attempt is not None else None
    first = shims.main_process(state) if state is not None and state.alive() else None
    for pid in usage.tree(first) if first is not None else ():
        sample = usage.process_sample([pid], at=at)
        if sample.usage:  # else it has ended
            yield HolderProcess(pid=pid, memory_bytes=sample.usage, cpu_seconds=sample.cpu_seconds)
