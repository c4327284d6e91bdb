"""The counters of simulated nodes: a function of their GPUs and the pods that use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec

from bidplane.api.times import parse_rfc3339
from bidplane.core.devices import mig
from bidplane.core.devices import migdevices as parts
from bidplane.core.devices.freeing import MemoryInUse, allowed_bytes, in_use
from bidplane.core.devices.migdevices import MigDevice
from bidplane.core.devices.topology import Gpu
from bidplane.core.nodes import simulation
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.fleet import Fleet, NodeDeclaration, machine_of
from bidplane.node.inventory.instances import simulated_number
from bidplane.node.inventory.slices import slices_of
from bidplane.node.simulatedleftovers import Leftover, ended_at
from bidplane.node.simulatedstatus import began_at, devices_of, restarts
from bidplane.telemetry.model import Counters, Holder, used_bytes
from bidplane.telemetry.simulated import CONTEXT_BYTES, Load, simulated_counters


class PodsOfNodes(Protocol):
    """The pods of simulated nodes, and the memory that ended ones have left in use."""

    @property
    def leftovers(self) -> Mapping[str, Leftover]: ...

    def own_pods(self) -> list[Object]: ...


async def read(fleet: Fleet, nodes: PodsOfNodes, *, clock: Clock) -> list[Counters]:
    """The present counters of all nodes of the fleet."""
    return list(counters(fleet, nodes.own_pods(), now=clock.now(), leftovers=nodes.leftovers))


def counters(
    fleet: Fleet,
    pods: list[Object],
    *,
    now: float,
    leftovers: Mapping[str, Leftover] | None = None,
) -> Iterator[Counters]:
    """The counters of each GPU, followed by those of its MIG instances that pods use."""
    pods_by_device = {
        device: pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") == "Running"
        for device in devices_of(pod)
    }
    for node in fleet.nodes:
        instances = _instances_by_gpu(node, pods_by_device) if node.mig else {}
        for gpu in machine_of(node).gpus:
            instance_loads = [
                (part, _load(fleet, pod, now)) for part, pod in instances.get(gpu.uuid, [])
            ]
            gpu_load = _load(fleet, pods_by_device.get(f"{node.name}/{gpu.name}"), now)
            if instance_loads:
                gpu_load = _combined_load(gpu, instance_loads)
            leftover = (leftovers or {}).get(f"{node.name}/{gpu.name}")
            if leftover is not None and now < leftover.until:
                gpu_load = msgspec.structs.replace(gpu_load, left_percent=leftover.percent)
            yield _device_counters(node, gpu, gpu_load, now, cut=bool(instance_loads))
            for part, load in instance_loads:
                yield _device_counters(node, gpu, load, now, part=part)


def memory_in_use(fleet: Fleet, pod: Object, *, now: float) -> dict[str, MemoryInUse]:
    """The whole GPUs that a pod has ended on and whose memory is in use, by POOL/NAME."""
    node = next(node for node in fleet.nodes if node.name == pod["spec"]["nodeName"])
    devices = set(devices_of(pod))
    gpus = {gpu.uuid: f"{node.name}/{gpu.name}" for gpu in machine_of(node).gpus}
    own = {uuid: allowed_bytes(CONTEXT_BYTES) for uuid, name in gpus.items() if name in devices}
    used = used_bytes(counters(Fleet(nodes=[node], seed=fleet.seed), [pod], now=now))
    return {gpus[memory.uuid]: memory for memory in in_use(used, own)}


def _instances_by_gpu(
    node: NodeDeclaration, pods_by_device: dict[str, Object]
) -> dict[str, list[tuple[MigDevice, Object]]]:
    """The instances that pods of the node use, by the UUID of their GPU."""
    instances: dict[str, list[tuple[MigDevice, Object]]] = {}
    if not any(device.startswith(f"{node.name}/") for device in pods_by_device):
        return instances
    for (_, pool, device), part in parts.of_slices(slices_of(machine_of(node))).items():
        pod = pods_by_device.get(f"{pool}/{device}")
        if pod is not None:
            instances.setdefault(part.gpu, []).append((part, pod))
    return instances


def _combined_load(gpu: Gpu, parts: list[tuple[MigDevice, Load]]) -> Load:
    """The load of a partitioned GPU, from that of its instances; an XID of one is the GPU's."""
    profiles = mig.profiles(mig.gigabytes(gpu.memory))
    shares = [profiles[part.slot.profile].memory / mig.MEMORY_SLICES for part, _ in parts]
    return Load(
        busy_percent=sum(
            share * load.busy_percent for share, (_, load) in zip(shares, parts, strict=True)
        ),
        memory_percent=sum(
            share * load.memory_percent for share, (_, load) in zip(shares, parts, strict=True)
        ),
        xid=max(load.xid for _, load in parts),
    )


def _device_counters(
    node: NodeDeclaration,
    gpu: Gpu,
    load: Load,
    now: float,
    *,
    part: MigDevice | None = None,
    cut: bool = False,
) -> Counters:
    """The counters of a GPU, or of a MIG instance of it."""
    memory, profile, number = gpu.memory, "", ""
    if part is not None:
        instance_profile = mig.profiles(mig.gigabytes(gpu.memory))[part.slot.profile]
        memory = gpu.memory * instance_profile.memory // mig.MEMORY_SLICES
        profile, number = (
            part.slot.profile,
            str(simulated_number(instance_profile, part.slot.start)),
        )
    return simulated_counters(
        node=node.name,
        index=gpu.index,
        uuid=gpu.uuid,
        product=gpu.product,
        memory_bytes=memory,
        now=now,
        load=load,
        profile=profile,
        instance=number,
        is_cut=cut,
        link_width=gpu.width,
        link_width_max=gpu.max_width,
        link_generation=gpu.generation,
        xid=gpu.xid,
    )


def _load(fleet: Fleet, pod: Object | None, now: float) -> Load:
    """The load of the device that the pod uses; idle without a pod."""
    if pod is None:
        return Load()
    metadata = pod["metadata"]
    holder = Holder(
        namespace=metadata["namespace"],
        pod=metadata["name"],
        container=pod["spec"]["containers"][0]["name"],
    )
    try:
        script = simulation.read(pod, seed=str(fleet.seed))
    except simulation.BadScript:
        script = simulation.Script()  # its pod runs already, and has an Event about it
    run = script.run(restarts(pod))
    running = max(0.0, now - parse_rfc3339(began_at(pod)))
    end = ended_at(pod, script)
    has_ended = now >= end
    memory = run.memory_percent(running) if now < end + script.linger else 0.0
    return Load(
        holder=holder,
        busy_percent=0.0 if has_ended else run.load_percent(running),
        memory_percent=memory,
        xid=script.xid,
        pid=1 + int(metadata["uid"].replace("-", "")[-6:], 16) % 4_194_303,
    )
