"""The counters of simulated nodes: a function of their GPUs and the pods that use them."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.api.times import parse_rfc3339
from bidplane.core.devices import mig
from bidplane.core.devices import migdevices as parts
from bidplane.core.devices.migdevices import MigDevice
from bidplane.core.devices.topology import Gpu
from bidplane.core.nodes import simulation
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.fleet import Fleet, NodeDeclaration, machine_of
from bidplane.node.inventory.instances import simulated_number
from bidplane.node.inventory.slices import slices_of
from bidplane.node.simulated import SimulatedNodes
from bidplane.node.simulatedstatus import began_at, devices_of, restarts
from bidplane.telemetry.model import Counters, Holder
from bidplane.telemetry.simulated import Load, simulated_counters


async def read(fleet: Fleet, nodes: SimulatedNodes, *, clock: Clock) -> list[Counters]:
    """The present counters of all nodes of the fleet."""
    pods = [pod for pod in nodes.pods.items() if nodes.has(pod)]
    return list(counters(fleet, pods, now=clock.now()))


def counters(fleet: Fleet, pods: list[Object], *, now: float) -> Iterator[Counters]:
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
            yield _device_counters(node, gpu, gpu_load, now, cut=bool(instance_loads))
            for part, load in instance_loads:
                yield _device_counters(node, gpu, load, now, part=part)


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
    return Load(
        holder=holder,
        busy_percent=run.load_percent(running),
        memory_percent=run.memory_percent(running),
        xid=script.xid,
        pid=1 + int(metadata["uid"].replace("-", "")[-6:], 16) % 4_194_303,
    )
