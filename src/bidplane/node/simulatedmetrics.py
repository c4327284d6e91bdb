"""The counters of simulated nodes: what each declared GPU would show under the pods it has."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.api import labels
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.fleet import Fleet, machine_of
from bidplane.node.simulated import SimulatedNodes, annotation_seconds, devices_of
from bidplane.telemetry.model import Counters, Holder
from bidplane.telemetry.simulated import simulated


async def read(fleet: Fleet, nodes: SimulatedNodes, *, clock: Clock) -> list[Counters]:
    """All nodes of the fleet, as they are now."""
    pods = [pod for pod in nodes.pods.items() if nodes.has(pod)]
    return list(counters(fleet, pods, now=clock.now()))


def counters(fleet: Fleet, pods: list[Object], *, now: float) -> Iterator[Counters]:
    held = {
        device: pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") == "Running"
        for device in devices_of(pod)
    }
    for node in fleet.nodes:
        for gpu in machine_of(node).gpus:
            pod = held.get(f"{node.name}/{gpu.name}")
            yield simulated(
                node=node.name,
                index=gpu.index,
                uuid=gpu.uuid,
                product=gpu.product,
                memory_bytes=gpu.memory,
                now=now,
                holder=_holder(pod),
                busy_percent=_percent(pod, labels.SIMULATED_UTILISATION, 85.0),
                memory_percent=_percent(pod, labels.SIMULATED_MEMORY, 60.0),
                link_width=gpu.width,
                link_width_max=gpu.max_width,
                link_generation=gpu.generation,
                xid=gpu.xid,
            )


def _holder(pod: Object | None) -> Holder | None:
    if pod is None:
        return None
    metadata = pod["metadata"]
    container = pod["spec"]["containers"][0]["name"]
    return Holder(namespace=metadata["namespace"], pod=metadata["name"], container=container)


def _percent(pod: Object | None, name: str, otherwise: float) -> float:
    given = annotation_seconds(pod, name) if pod is not None else None
    return otherwise if given is None else min(given, 100.0)
