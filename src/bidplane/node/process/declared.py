"""
GPUs that are declared and not read: which there are, who holds each, and what the holders use.

Nothing here measures a GPU, so nothing is said of how busy one is or of its memory. Of the
processes in the containers that hold it, the machine's memory and CPU time are measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bidplane.api import labels
from bidplane.core import parts
from bidplane.kube.client import Object
from bidplane.node.inventory import uuids
from bidplane.node.process import runs, usage
from bidplane.node.process.supplies import of_container
from bidplane.node.process.unit import Unit
from bidplane.node.process.worker import Worker
from bidplane.telemetry.model import Counters, Holder, HolderProcess

DeviceKey = tuple[str, str, str]


def counters(slices: Sequence[Object], workers: Iterable[Worker], *, at: float) -> list[Counters]:
    """One for each whole GPU; who has a part of one is told with it."""
    held = _held(slices, workers)
    ids = uuids(slices)
    found: list[Counters] = []
    for piece in slices:
        spec = piece["spec"]
        for device in spec.get("devices") or ():
            attributes = device.get("attributes") or {}
            if attributes.get("type", {}).get("string") != "gpu":
                continue
            key = spec["driver"], spec["pool"]["name"], device["name"]
            holders = held.get(key, [])
            found.append(
                Counters(
                    node=spec["nodeName"],
                    index=len(found),
                    uuid=ids[key],
                    product=str(attributes.get(labels.PRODUCT_ATTRIBUTE, {}).get("string", "")),
                    declared=True,
                    holder=_holder(*holders[0]) if holders else None,
                    holder_processes=tuple(
                        one for _, unit in holders for one in _processes(unit, at=at)
                    ),
                )
            )
    return found


def _held(
    slices: Sequence[Object], workers: Iterable[Worker]
) -> dict[DeviceKey, list[tuple[Worker, Unit]]]:
    """By whole GPU, the containers that run with it or with a part of it."""
    names = {id: key for key, id in uuids(slices).items()}
    cut = {key: names.get(part.gpu, key) for key, part in parts.of_slices(slices).items()}
    found: dict[DeviceKey, list[tuple[Worker, Unit]]] = {}
    for worker in workers:
        for unit in worker.units.values():
            if unit.run is None or not unit.run.running:
                continue
            for device in of_container(unit.spec, worker.devices):
                found.setdefault(cut.get(device.key, device.key), []).append((worker, unit))
    return found


def _holder(worker: Worker, unit: Unit) -> Holder:
    metadata = worker.pod["metadata"]
    return Holder(namespace=metadata["namespace"], pod=metadata["name"], container=unit.name)


def _processes(unit: Unit, *, at: float) -> Iterator[HolderProcess]:
    """The container's own, not those that make its sandbox."""
    state = unit.attempt.state() if unit.attempt is not None else None
    first = runs.main_process(state) if state is not None and state.alive() else None
    for pid in usage.tree(first) if first is not None else ():
        sample = usage.of_processes([pid], at=at)
        if sample.usage:  # else it has ended
            yield HolderProcess(pid=pid, memory_bytes=sample.usage, cpu_seconds=sample.cpu_seconds)
