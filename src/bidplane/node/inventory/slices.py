"""
A machine as ResourceSlices.

Names of attributes are those NVIDIA's DRA driver and Kubernetes publish, so that a claim written
for them works here; what nobody else publishes is under `bidplane.dev`. A GPU that can be cut is
published whole and as every instance that could be made of it, each taking from one set of
counters, so that no two that overlap are ever given away together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.core import mig
from bidplane.core.topology import Gpu, Machine, link_domains
from bidplane.wire.quantity import canonical

DRIVER = labels.DEVICE_CLASS
DEGRADED_TAINT = "bidplane.dev/degraded"
SICK_TAINT = "bidplane.dev/xid"
MOST_DEVICES = 64  # in a slice whose devices take from counters

Json = dict[str, Any]


def slices_of(machine: Machine, *, taint_degraded: bool = False) -> list[Json]:
    """One slice of whole GPUs; and where some can be cut, the counters and the parts."""
    domains = {index: at for at, found in enumerate(link_domains(machine)) for index in found}
    whole = [_gpu(machine, gpu, domains[gpu.index], taint_degraded) for gpu in machine.gpus]
    cut = [gpu for gpu in machine.gpus if gpu.mig and _profiles(gpu)]
    parts = [
        _part(machine, gpu, domains[gpu.index], name, start)
        for gpu in cut
        for name, profile in _profiles(gpu).items()
        for start in profile.starts
    ]
    specs: list[tuple[str, Json]] = [("gpus", {"devices": whole})]
    if cut:
        # Counters and devices stand in different slices, and counters in eights.
        specs += [
            (
                f"counters-{at // 8}",
                {"sharedCounters": [_counters(gpu) for gpu in cut[at : at + 8]]},
            )
            for at in range(0, len(cut), 8)
        ]
        specs += [
            (f"mig-{at // MOST_DEVICES}", {"devices": parts[at : at + MOST_DEVICES]})
            for at in range(0, len(parts), MOST_DEVICES)
        ]
    pool = {"name": machine.name, "generation": 1, "resourceSliceCount": len(specs)}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{machine.name}-{what}"},
            "spec": {"driver": DRIVER, "nodeName": machine.name, "pool": pool, **spec},
        }
        for what, spec in specs
    ]


def degraded(slices: Iterable[Object]) -> list[str]:
    """A sentence for each card whose link is trained below what it could be."""
    found = []
    for slice_ in slices:
        for device in slice_["spec"].get("devices") or ():
            said = device.get("attributes") or {}
            whole = said.get(labels.TYPE_ATTRIBUTE, {}).get("string") == "gpu"
            if whole and said.get("bidplane.dev/degraded", {}).get("bool"):
                now, could = (
                    said[f"bidplane.dev/{name}"]["int"]
                    for name in ("pcieLinkWidth", "pcieMaxLinkWidth")
                )
                found.append(
                    f"{device['name']}: its PCIe link is trained at x{now} of x{could}: reseat the"
                    " card, or look for a slot that shares its lanes"
                )
    return found


def _profiles(gpu: Gpu) -> Mapping[str, mig.Profile]:
    """What it can be cut into: as the card says; else by its memory; none if that is not known."""
    if gpu.profiles:
        return gpu.profiles
    try:
        return mig.profiles(mig.gigabytes(gpu.memory))
    except mig.BadGeometry:
        return {}


def _memory_slices(gpu: Gpu) -> int:
    return max(max(p.starts) + p.memory for p in _profiles(gpu).values())


def _gpu(machine: Machine, gpu: Gpu, domain: int, taint_degraded: bool) -> Json:
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
        taints.append({"key": SICK_TAINT, "value": str(gpu.xid), "effect": "NoSchedule"})
    if taints:
        device["taints"] = taints
    if gpu.mig and _profiles(gpu):
        device["consumesCounters"] = [_counters(gpu, "counterSet")]
    return device


def _common(machine: Machine, gpu: Gpu, domain: int) -> Json:
    """What a GPU and the parts of it have in common."""
    found: Json = {
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
            found[name] = {"string": text}
    for name, version in (
        ("cudaComputeCapability", gpu.compute),
        ("driverVersion", machine.driver),
        ("cudaDriverVersion", machine.cuda),
    ):
        if version:
            found[name] = {"version": _semver(version)}
    if gpu.numa >= 0:
        found["resource.kubernetes.io/numaNode"] = {"int": gpu.numa}
    for name, number in (
        ("pcieLinkWidth", gpu.width),
        ("pcieMaxLinkWidth", gpu.max_width),
        ("pcieLinkGeneration", gpu.generation),
        ("pcieMaxLinkGeneration", gpu.max_generation),
    ):
        if number:
            found[f"bidplane.dev/{name}"] = {"int": number}
    if gpu.width:
        found["bidplane.dev/degraded"] = {"bool": gpu.is_degraded}
    to_one = [count for pair, count in machine.nvlinks.items() if gpu.index in pair]
    found["bidplane.dev/nvlinksPerPeer"] = {"int": max(to_one, default=0)}
    if gpu.mig and _profiles(gpu):
        found[labels.MIG_CAPABLE_ATTRIBUTE] = {"bool": True}
    return found


def _semver(text: str) -> str:
    """`580.126.09` and `9.0` as semantic versions: three numbers, no zeros before them."""
    numbers = [str(int(part)) for part in text.split(".") if part.isdigit()]
    return ".".join([*numbers, "0", "0", "0"][:3])


def _part(machine: Machine, gpu: Gpu, domain: int, name: str, start: int) -> Json:
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
        "consumesCounters": [_taken(gpu, profile, start)],
    }


def part_name(gpu: Gpu, profile: str, start: int) -> str:
    """`gpu-0-mig-3g20gb-4`."""
    return f"{gpu.name}-mig-{profile.replace('.', '').replace('+', '-')}-{start}"


def _counters(gpu: Gpu, key: str = "name") -> Json:
    counts: Json = {f"memory-slice-{at}": {"value": "1"} for at in range(_memory_slices(gpu))}
    most = max(profile.compute for profile in _profiles(gpu).values())
    counts["compute-slices"] = {"value": str(most)}
    counts["media-engines"] = {"value": "1"}
    return {key: f"{gpu.name}-counter-set", "counters": counts}


def _taken(gpu: Gpu, profile: mig.Profile, start: int) -> Json:
    slices: Iterable[int] = range(start, start + profile.memory)
    counts: Json = {f"memory-slice-{at}": {"value": "1"} for at in slices}
    counts["compute-slices"] = {"value": str(profile.compute)}
    if profile.media:
        counts["media-engines"] = {"value": "1"}
    return {"counterSet": f"{gpu.name}-counter-set", "counters": counts}
