"""
The rows of `bidplane top`: every device, its load, and who holds it.

A pure join of the host's objects, the exchange's leases and the counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.gate.proposal import ProposalPhase
from bidplane.api.lease import DeviceRef, Phase
from bidplane.api.objects import (
    Fields,
    annotations_of,
    has_ended,
    name_of,
    namespace_of,
    spec_of,
    status_of,
)
from bidplane.api.reading import GPULease, Invalid, read_lease, read_proposal
from bidplane.core.devices import migdevices
from bidplane.core.nodes import availability
from bidplane.kube.client import Object
from bidplane.telemetry.model import Counters, HolderProcess, ProcessMemory

DeviceKey = tuple[str, str, str]  # driver, the slice's pool, name
Use = tuple[str, str, str, str, str]  # a DeviceKey, and its claim's namespace and name


def pilot_line(objects: Iterable[Object]) -> str:
    """Return how many Proposals wait for a person, and the newest; "" if there are none."""
    proposals = [p for p in map(read_proposal, objects) if not isinstance(p, Invalid)]
    if not proposals:
        return ""
    waiting = sum(proposal.phase is ProposalPhase.WAITING for proposal in proposals)
    newest = max(proposals, key=lambda proposal: (proposal.creation_timestamp, proposal.name))
    parts = [f"proposals: {waiting} wait for you" if waiting else "proposals: none waits"]
    # The phase first: a narrow terminal cuts the end.
    phase = newest.phase or "New"
    parts.append(f"newest: {phase}: {newest.spec.action} by {newest.spec.proposer.name}")
    return "  ".join(parts)


class DeviceRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """One device, or the part of one that a lease holds. An unknown value is null."""

    node: str
    device: str
    uuid: str = ""
    product: str = ""
    health: str = "ok"
    agent: str = ""
    lease: str = ""
    share: str = ""  # of the device, if not all of it: 0.3, or a MIG profile
    phase: str = ""
    pod: str = ""  # as its agent calls it: NAMESPACE/NAME
    price: str = ""  # credits per GPU-hour
    utilisation_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    pcie_tx_bytes_per_second: float | None = None
    pcie_rx_bytes_per_second: float | None = None
    link: str = ""  # x16; x4/16 when it is trained below its maximum
    link_domain: str = ""
    processes: list[ProcessMemory] = []  # the device memory of each, where the source reports it
    declared: bool = False  # its owner declares it; nothing measures it
    holder_processes: list[HolderProcess] = []  # their CPU and main memory


class FleetReadings(msgspec.Struct, frozen=True, kw_only=True):
    """All objects and counters of one picture."""

    nodes: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    leases: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    counters: Sequence[Counters] = ()


def rows(snapshot: FleetReadings) -> list[DeviceRow]:
    """
    A row per device and holder, ordered by node and device number; a partitioned GPU has one per
    part.
    """
    pods = dict(_reserved(snapshot.claims, snapshot.pods))
    holdings_by_gpu = _holdings(snapshot, {use[:3] for use in pods})
    numbers = dict(_instance_numbers(snapshot.claims))
    counters = {(device.uuid, device.instance): device for device in snapshot.counters}
    by_place = {
        (device.node, device.index): device for device in snapshot.counters if not device.instance
    }
    health = {name_of(node): _node_health(node) for node in snapshot.nodes}
    result_rows = []
    for piece in snapshot.slices:
        spec = spec_of(piece)
        node = spec.get("nodeName", "")
        for device in spec.get("devices") or ():
            attributes = _attributes(device)
            if attributes.get("type") == "mig":
                continue  # a MIG instance: shown with its GPU, if it is held
            key = spec["driver"], spec["pool"]["name"], device["name"]
            uuid = str(attributes.get("uuid", ""))
            gpu_counters = counters.get((uuid, "")) or by_place.get((node, _number(device["name"])))
            row = DeviceRow(
                node=node,
                device=device["name"],
                uuid=uuid,
                product=str(attributes.get(labels.PRODUCT_ATTRIBUTE, "")),
                health=_health(health.get(node, "no node"), device, gpu_counters),
                link_domain=str(attributes.get(labels.LINK_DOMAIN_ATTRIBUTE, "")),
            )
            row = _with_counters(row, gpu_counters)
            for holding in holdings_by_gpu.get(key, [_Holding()]):
                use = holding.part or key
                held_row = _with_lease(row, holding.lease)
                if holding.part:
                    instance = numbers.get(use, "?")
                    held_row = _with_instance_counters(held_row, counters.get((uuid, instance)))
                pod = _pod(pods, use, holding.lease)
                result_rows.append(msgspec.structs.replace(held_row, share=holding.share, pod=pod))
    return sorted(
        result_rows,
        key=lambda row: (row.node, _number(row.device), row.device, row.share, row.lease),
    )


class _Holding(msgspec.Struct, frozen=True):
    """The lease or claim on a GPU, or on a part of it."""

    lease: GPULease | None = None
    share: str = ""
    part: DeviceKey | None = None  # the device that a MIG instance is


def _holdings(snapshot: FleetReadings, claimed: set[DeviceKey]) -> dict[DeviceKey, list[_Holding]]:
    """The holders of each GPU: leases, and MIG instances claimed without one."""
    holdings: dict[DeviceKey, list[_Holding]] = {}
    leased: set[DeviceKey] = set()
    for obj in snapshot.leases:
        lease = read_lease(obj)
        if isinstance(lease, Invalid) or _is_released(lease):
            continue
        host_devices = migdevices.on_host(lease.spec.devices, snapshot.slices)
        for device, host_device in zip(lease.spec.devices, host_devices, strict=True):
            key, part_key = _key(device), _key(host_device)
            leased.add(part_key)
            holdings.setdefault(key, []).append(
                _Holding(lease, device.share, part_key if part_key != key else None)
            )
    gpus = {
        (*_key_of(piece), str(_attributes(device).get("uuid"))): device["name"]
        for piece in snapshot.slices
        for device in spec_of(piece).get("devices") or ()
        if _attributes(device).get("type") != "mig"
    }
    for key, part in migdevices.of_slices(snapshot.slices).items():
        gpu = gpus.get((key[0], key[1], part.gpu))
        if key in claimed and key not in leased and gpu is not None:
            gpu_key = key[0], key[1], gpu
            holdings.setdefault(gpu_key, []).append(_Holding(None, part.slot.profile, key))
    return holdings


def _key(device: DeviceRef) -> DeviceKey:
    """The device's key in a lease."""
    return device.driver, device.pool, device.name


def _is_released(lease: GPULease) -> bool:
    return lease.status is not None and lease.status.phase is Phase.RELEASED


def _key_of(piece: Object) -> tuple[str, str]:
    """The driver and pool of a slice."""
    spec = spec_of(piece)
    return spec["driver"], spec["pool"]["name"]


def _instance_numbers(claims: Iterable[Object]) -> Iterator[tuple[DeviceKey, str]]:
    """The numbers by which metrics name MIG instances, from their nodes' claim statuses."""
    for claim in claims:
        for device in status_of(claim).get("devices") or ():
            number = (device.get("data") or {}).get("gpuInstance")
            if number is not None:
                yield (device["driver"], device["pool"], device["device"]), str(number)


def _with_instance_counters(row: DeviceRow, counters: Counters | None) -> DeviceRow:
    """Set the row's counters to those of a MIG instance; power, link and health are its GPU's."""
    return msgspec.structs.replace(
        row,
        utilisation_percent=counters.engine_percent if counters else None,
        memory_used_bytes=counters.memory_used_bytes if counters else None,
        memory_total_bytes=counters.memory_total_bytes if counters else None,
        processes=[*counters.processes] if counters else [],
    )


def _pod(pods: Mapping[Use, str], key: DeviceKey, lease: GPULease | None) -> str:
    """The pod on a device, or on the part of it that a lease holds."""
    uses = {use[3:]: pod for use, pod in pods.items() if use[:3] == key}
    if lease is not None:
        namespace = host_namespace(lease.spec.agent)
        uses = {use: pod for use, pod in uses.items() if use[0] == namespace}
        uses = {use: pod for use, pod in uses.items() if lease.name in use[1]} or uses
    return next(iter(uses.values()), "")


def _with_lease(row: DeviceRow, lease: GPULease | None) -> DeviceRow:
    """Set the row's fields of a lease."""
    if lease is None:
        return row
    status = lease.status
    return msgspec.structs.replace(
        row,
        agent=lease.spec.agent,
        lease=lease.name,
        phase=status.phase.value if status else "",
        price=status.price if status else "",
    )


def _reserved(claims: Iterable[Object], pods: Iterable[Object]) -> Iterator[tuple[Use, str]]:
    """
    The pod that each allocated device is for: the one in `reservedFor`, else one that names the
    claim.
    """
    names: dict[tuple[str, str], str] = {}
    pod_of_claim: dict[tuple[str, str], str] = {}
    for pod in pods:
        namespace = namespace_of(pod)
        names[namespace, name_of(pod)] = _name(pod)
        if not has_ended(pod):
            pod_of_claim |= {(namespace, claim): _name(pod) for claim in _claims(pod)}
    for claim in claims:
        namespace, status = namespace_of(claim), status_of(claim)
        users = [user["name"] for user in status.get("reservedFor") or ()]
        pod_name = pod_of_claim.get((namespace, name_of(claim)), "")
        if users:
            pod_name = names.get((namespace, users[0]), users[0])
        devices = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        for result in devices:
            device = result["driver"], result["pool"], result["device"]
            yield (*device, namespace, name_of(claim)), pod_name


def _claims(pod: Object) -> Iterator[str]:
    """The claims that a pod uses: those it names, and those made for it from a template."""
    for claim in spec_of(pod).get("resourceClaims") or ():
        if name := claim.get("resourceClaimName"):
            yield name
    for status in status_of(pod).get("resourceClaimStatuses") or ():
        if name := status.get("resourceClaimName"):
            yield name


def _name(pod: Object) -> str:
    """The pod's name in its agent's plane, or its own if it is no agent's."""
    annotations = annotations_of(pod)
    namespace = annotations.get(labels.PLANE_NAMESPACE) or namespace_of(pod)
    return f"{namespace}/{annotations.get(labels.PLANE_NAME) or name_of(pod)}"


def _with_counters(row: DeviceRow, counters: Counters | None) -> DeviceRow:
    """Set the row's fields of measured values."""
    if counters is None:
        return row
    width, most = counters.pcie_link_width, counters.pcie_link_width_max
    link = "" if width is None else f"x{width}"
    return msgspec.structs.replace(
        row,
        utilisation_percent=counters.utilisation_percent,
        memory_used_bytes=counters.memory_used_bytes,
        memory_total_bytes=counters.memory_total_bytes,
        power_watts=counters.power_watts,
        pcie_tx_bytes_per_second=counters.pcie_tx_bytes_per_second,
        pcie_rx_bytes_per_second=counters.pcie_rx_bytes_per_second,
        processes=[*counters.processes],
        declared=counters.declared,
        holder_processes=[*counters.holder_processes],
        link=f"{link}/{most}" if counters.link_is_degraded else link,
    )


def _node_health(node: Object) -> str:
    """The node's problem in a word or two; "ok" while it takes pods."""
    trouble = availability.state_of(node).trouble
    return _SHORT_NAMES.get(trouble, "tainted") if trouble else "ok"


_SHORT_NAMES = {
    availability.NOT_READY: "not ready",
    availability.CORDONED: "cordoned",
    availability.GOING: "going",
}


def _health(node: str, device: Fields, counters: Counters | None) -> str:
    """The device's health in a word or two: its node's, or its own."""
    if node != "ok":
        return node
    if counters is not None and counters.xid:
        return f"xid {counters.xid}"
    if device.get("taints"):
        return "tainted"
    if counters is not None and counters.link_is_degraded:
        return "slow link"
    return "ok"


def _attributes(device: Fields) -> Fields:
    attributes = (device.get("basic") or device).get("attributes") or {}
    return {name: next(iter(value.values()), "") for name, value in attributes.items()}


def _number(name: str) -> int:
    digits = "".join(filter(str.isdigit, name.rpartition("-")[2]))
    return int(digits) if digits and len(digits) < 10 else 0
