"""
A machine as ResourceSlices.

Attributes have the names that NVIDIA's DRA driver and Kubernetes use, so that a claim written for
them works here; our own are under `bidplane.dev`. A GPU with MIG is published whole and as every
instance that could be made of it, each consuming from one set of counters, so that no two that
overlap are allocated together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.core.devices import mig
from bidplane.core.devices.freeing import TAINT
from bidplane.core.devices.topology import Gpu, Machine, link_domains
from bidplane.wire.quantity import canonical

DRIVER = labels.DEVICE_CLASS
DEGRADED_TAINT = "bidplane.dev/degraded"
XID_TAINT = "bidplane.dev/xid"
MOST_DEVICES = 64  # in a slice whose devices take from counters

Json = dict[str, Any]


def slices_of(machine: Machine, *, taint_degraded: bool = False) -> list[Json]:
    """
    One slice of whole GPUs; and if some have MIG, slices of their counters and their instances.
    """
    domains = {
        index: number for number, domain in enumerate(link_domains(machine)) for index in domain
    }
    gpus = [_gpu(machine, gpu, domains[gpu.index], taint_degraded) for gpu in machine.gpus]
    partitionable = [gpu for gpu in machine.gpus if gpu.mig and _profiles(gpu)]
    parts = [
        _part(machine, gpu, domains[gpu.index], name, start)
        for gpu in partitionable
        for name, profile in _profiles(gpu).items()
        for start in profile.starts
    ]
    specs: list[tuple[str, Json]] = [("gpus", {"devices": gpus})]
    if partitionable:
        # Counters and devices are in different slices, with at most eight counter sets in each.
        specs += [
            (
                f"counters-{number // 8}",
                {"sharedCounters": [_counters(gpu) for gpu in partitionable[number : number + 8]]},
            )
            for number in range(0, len(partitionable), 8)
        ]
        specs += [
            (f"mig-{number // MOST_DEVICES}", {"devices": parts[number : number + MOST_DEVICES]})
            for number in range(0, len(parts), MOST_DEVICES)
        ]
    pool = {"name": machine.name, "generation": 1, "resourceSliceCount": len(specs)}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{machine.name}-{suffix}"},
            "spec": {"driver": DRIVER, "nodeName": machine.name, "pool": pool, **spec},
        }
        for suffix, spec in specs
    ]


def with_memory_taints(slices: list[Json], in_use: Mapping[str, str]) -> list[Json]:
    """Taint the devices whose memory should be free and is not; `in_use`: how much, by device."""
    for slice_ in slices if in_use else ():
        for device in slice_["spec"].get("devices") or ():
            if device["name"] in in_use:
                taint = {"key": TAINT, "value": in_use[device["name"]], "effect": "NoSchedule"}
                device["taints"] = [*(device.get("taints") or ()), taint]
    return slices


def degraded(slices: Iterable[Object]) -> list[str]:
    """A message for each card whose PCIe link is trained below its maximum width."""
    messages = []
    for slice_ in slices:
        for device in slice_["spec"].get("devices") or ():
            attributes = device.get("attributes") or {}
            is_gpu = attributes.get(labels.TYPE_ATTRIBUTE, {}).get("string") == "gpu"
            if is_gpu and attributes.get("bidplane.dev/degraded", {}).get("bool"):
                width, max_width = (
                    attributes[f"bidplane.dev/{name}"]["int"]
                    for name in ("pcieLinkWidth", "pcieMaxLinkWidth")
                )
                messages.append(
                    f"{device['name']}: its PCIe link is trained at x{width} of x{max_width}:"
                    " reseat the card, or look for a slot that shares its lanes"
                )
    return messages


def _profiles(gpu: Gpu) -> Mapping[str, mig.Profile]:
    """
    The GPU's MIG profiles: as the card reports them, else by its memory; none if that is unknown.
    """
    if gpu.profiles:
        return gpu.profiles
    try:
        return mig.profiles(mig.gigabytes(gpu.memory))
    except mig.BadGeometry:
        return {}


def _memory_slices(gpu: Gpu) -> int:
    """The number of the GPU's memory slices."""
    return max(max(p.starts) + p.memory for p in _profiles(gpu).values())


def _gpu(machine: Machine, gpu: Gpu, domain: int, taint_degraded: bool) -> Json:
    """The device of a whole GPU."""
    device: Json = {
        "name": gpu.name,
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": gpu.uuid},
            **_common(machine, gpu, domain),
        },
        "capacity": {"memory": {"value": canonical(f"{gpu.memory // 2**20}Mi")}},
    }
    taints = []
    if taint_degraded and gpu.is_degraded:
        taints.append({"key": DEGRADED_TAINT, "value": gpu.link[:63], "effect": "NoSchedule"})
    if gpu.xid:
        taints.append({"key": XID_TAINT, "value": str(gpu.xid), "effect": "NoSchedule"})
    if taints:
        device["taints"] = taints
    if gpu.mig and _profiles(gpu):
        device["consumesCounters"] = [_counters(gpu, "counterSet")]
    return device


def _common(machine: Machine, gpu: Gpu, domain: int) -> Json:
    """The attributes that a GPU and its MIG instances share."""
    attributes: Json = {
        labels.PRODUCT_ATTRIBUTE: {"string": gpu.product},
        "brand": {"string": "Nvidia"},
        labels.LINK_DOMAIN_ATTRIBUTE: {"string": f"{machine.name}/{domain}"},
    }
    for name, text in (
        ("architecture", gpu.architecture),
        ("resource.kubernetes.io/pciBusID", gpu.bus),
        ("resource.kubernetes.io/pcieRoot", gpu.root),
    ):
        if text:
            attributes[name] = {"string": text}
    for name, version in (
        ("cudaComputeCapability", gpu.compute),
        ("driverVersion", machine.driver),
        ("cudaDriverVersion", machine.cuda),
    ):
        if version:
            attributes[name] = {"version": _semver(version)}
    if gpu.numa >= 0:
        attributes["resource.kubernetes.io/numaNode"] = {"int": gpu.numa}
    for name, number in (
        ("pcieLinkWidth", gpu.width),
        ("pcieMaxLinkWidth", gpu.max_width),
        ("pcieLinkGeneration", gpu.generation),
        ("pcieMaxLinkGeneration", gpu.max_generation),
    ):
        if number:
            attributes[f"bidplane.dev/{name}"] = {"int": number}
    if gpu.width:
        attributes["bidplane.dev/degraded"] = {"bool": gpu.is_degraded}
    links_per_peer = [count for pair, count in machine.nvlinks.items() if gpu.index in pair]
    attributes["bidplane.dev/nvlinksPerPeer"] = {"int": max(links_per_peer, default=0)}
    if gpu.mig and _profiles(gpu):
        attributes[labels.MIG_CAPABLE_ATTRIBUTE] = {"bool": True}
    return attributes


def _semver(text: str) -> str:
    """
    A version such as `580.126.09` or `9.0` as a semantic version: three numbers without leading
    zeros.
    """
    numbers = [str(int(part)) for part in text.split(".") if part.isdigit()]
    return ".".join([*numbers, "0", "0", "0"][:3])


def _part(machine: Machine, gpu: Gpu, domain: int, name: str, start: int) -> Json:
    """The device of a MIG instance."""
    profile = _profiles(gpu)[name]
    memory = gpu.memory * profile.memory // _memory_slices(gpu)
    return {
        "name": part_name(gpu, name, start),
        "attributes": {
            "type": {"string": "mig"},
            "profile": {"string": name},
            "parentUUID": {"string": gpu.uuid},
            **_common(machine, gpu, domain),
        },
        "capacity": {"memory": {"value": canonical(f"{memory // 2**20}Mi")}},
        "consumesCounters": [_consumed_counters(gpu, profile, start)],
    }


def part_name(gpu: Gpu, profile: str, start: int) -> str:
    """The device name of an instance, such as `gpu-0-mig-3g20gb-4`."""
    return f"{gpu.name}-mig-{profile.replace('.', '').replace('+', '-')}-{start}"


def _counters(gpu: Gpu, key: str = "name") -> Json:
    """The counters of a GPU with MIG: memory slices, compute slices, media engines."""
    counts: Json = {
        f"memory-slice-{number}": {"value": "1"} for number in range(_memory_slices(gpu))
    }
    most = max(profile.compute for profile in _profiles(gpu).values())
    counts["compute-slices"] = {"value": str(most)}
    counts["media-engines"] = {"value": "1"}
    return {key: f"{gpu.name}-counter-set", "counters": counts}


def _consumed_counters(gpu: Gpu, profile: mig.Profile, start: int) -> Json:
    """The counters that an instance consumes."""
    slices: Iterable[int] = range(start, start + profile.memory)
    counts: Json = {f"memory-slice-{number}": {"value": "1"} for number in slices}
    counts["compute-slices"] = {"value": str(profile.compute)}
    if profile.media:
        counts["media-engines"] = {"value": "1"}
    return {"counterSet": f"{gpu.name}-counter-set", "counters": counts}
