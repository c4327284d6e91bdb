"""The counters of simulated nodes: what each declared GPU would show under the pods it has."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.core import mig, parts, simulation
from bidplane.core.parts import Part
from bidplane.core.topology import Gpu
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock, parse_rfc3339
from bidplane.node.fleet import Fleet, NodeDeclaration, machine_of
from bidplane.node.inventory.instances import simulated_number
from bidplane.node.inventory.slices import slices_of
from bidplane.node.simulated import SimulatedNodes
from bidplane.node.simulatedstatus import began_at, devices_of, restarts
from bidplane.telemetry.model import Counters, Holder
from bidplane.telemetry.simulated import Load, simulated


async def read(fleet: Fleet, nodes: SimulatedNodes, *, clock: Clock) -> list[Counters]:
    """All nodes of the fleet, as they are now."""
    pods = [pod for pod in nodes.pods.items() if nodes.has(pod)]
    return list(counters(fleet, pods, now=clock.now()))


def counters(fleet: Fleet, pods: list[Object], *, now: float) -> Iterator[Counters]:
    """Each GPU, and after one that is cut, each instance that a pod has of it."""
    held = {
        device: pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") == "Running"
        for device in devices_of(pod)
    }
    for node in fleet.nodes:
        pieces = _pieces(node, held) if node.mig else {}
        for gpu in machine_of(node).gpus:
            own = [(part, _load(fleet, pod, now)) for part, pod in pieces.get(gpu.uuid, [])]
            whole = _load(fleet, held.get(f"{node.name}/{gpu.name}"), now)
            if own:
                whole = _together(gpu, own)
            yield _one(node, gpu, whole, now, cut=bool(own))
            for part, load in own:
                yield _one(node, gpu, load, now, part=part)


def _pieces(node: NodeDeclaration, held: dict[str, Object]) -> dict[str, list[tuple[Part, Object]]]:
    """By the UUID of their GPU, the instances that pods of the node have."""
    found: dict[str, list[tuple[Part, Object]]] = {}
    if not any(device.startswith(f"{node.name}/") for device in held):
        return found
    for (_, pool, device), part in parts.of_slices(slices_of(machine_of(node))).items():
        pod = held.get(f"{pool}/{device}")
        if pod is not None:
            found.setdefault(part.gpu, []).append((part, pod))
    return found


def _together(gpu: Gpu, parts: list[tuple[Part, Load]]) -> Load:
    """What a card shows whose parts do that. An error is the card's, whoever caused it."""
    known = mig.profiles(mig.gigabytes(gpu.memory))
    shares = [known[part.slot.profile].memory / mig.MEMORY_SLICES for part, _ in parts]
    return Load(
        busy_percent=sum(
            share * one.busy_percent for share, (_, one) in zip(shares, parts, strict=True)
        ),
        memory_percent=sum(
            share * one.memory_percent for share, (_, one) in zip(shares, parts, strict=True)
        ),
        xid=max(load.xid for _, load in parts),
    )


def _one(
    node: NodeDeclaration,
    gpu: Gpu,
    load: Load,
    now: float,
    *,
    part: Part | None = None,
    cut: bool = False,
) -> Counters:
    memory, profile, number = gpu.memory, "", ""
    if part is not None:
        known = mig.profiles(mig.gigabytes(gpu.memory))[part.slot.profile]
        memory = gpu.memory * known.memory // mig.MEMORY_SLICES
        profile, number = part.slot.profile, str(simulated_number(known, part.slot.start))
    return simulated(
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
        script = simulation.Script()  # it runs already, and was told
    run = script.run(restarts(pod))
    running = max(0.0, now - parse_rfc3339(began_at(pod)))
    return Load(
        holder=holder,
        busy_percent=run.load_percent(running),
        memory_percent=run.memory_percent(running),
        xid=script.xid,
        pid=1 + int(metadata["uid"].replace("-", "")[-6:], 16) % 4_194_303,
    )
