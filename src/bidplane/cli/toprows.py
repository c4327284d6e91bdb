"""
`bidplane top`, before anything is drawn: every device, what it does, and who holds it.

A pure join of what the host's API, the exchange and the counters say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.core import nodestate, parts
from bidplane.kube.client import Object
from bidplane.telemetry.model import Counters, HolderProcess, ProcessMemory

DeviceKey = tuple[str, str, str]  # driver, the slice's pool, name
Use = tuple[str, str, str, str, str]  # and the claim on it: namespace, name


class Row(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """One device, or the part of one that a lease holds. What is not known is null."""

    node: str
    device: str
    uuid: str = ""
    product: str = ""
    health: str = "ok"
    agent: str = ""
    lease: str = ""
    share: str = ""  # of the device, if not all of it: 1/2, or a MIG profile
    phase: str = ""
    pod: str = ""  # as its agent calls it: NAMESPACE/NAME
    price: str = ""  # credits per GPU-hour
    utilisation_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    pcie_tx_bytes_per_second: float | None = None
    pcie_rx_bytes_per_second: float | None = None
    link: str = ""  # x16; x4/16 when it was trained below what it could do
    link_domain: str = ""
    processes: list[ProcessMemory] = []  # what each holds of its memory, where the source tells
    declared: bool = False  # its owner says that it is there; nothing measures it
    holder_processes: list[HolderProcess] = []  # what they use of the machine


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was read for one picture."""

    nodes: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    leases: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    counters: Sequence[Counters] = ()


def rows(seen: Seen) -> list[Row]:
    """By node, then by the number in the device's name; of one that is cut, a row for each part."""
    pods = dict(_reserved(seen.claims, seen.pods))
    held = _held(seen, {use[:3] for use in pods})
    numbers = dict(_instances(seen.claims))
    counters = {(one.uuid, one.instance): one for one in seen.counters}
    by_place = {(one.node, one.index): one for one in seen.counters if not one.instance}
    health = {node["metadata"]["name"]: _node_health(node) for node in seen.nodes}
    found = []
    for piece in seen.slices:
        spec = piece["spec"]
        node = spec.get("nodeName", "")
        for device in spec.get("devices") or ():
            attributes = _attributes(device)
            if attributes.get("type") == "mig":
                continue  # a part: shown with its GPU, if somebody has it
            key = spec["driver"], spec["pool"]["name"], device["name"]
            uuid = str(attributes.get("uuid", ""))
            whole = counters.get((uuid, "")) or by_place.get((node, _number(device["name"])))
            row = Row(
                node=node,
                device=device["name"],
                uuid=uuid,
                product=str(attributes.get(labels.PRODUCT_ATTRIBUTE, "")),
                health=_health(health.get(node, "no node"), device, whole),
                link_domain=str(attributes.get(labels.LINK_DOMAIN_ATTRIBUTE, "")),
                **_measured(whole),
            )
            for one in held.get(key, [_Held()]):
                use = one.part or key
                told = counters.get((uuid, numbers.get(use, "?")))
                found.append(
                    msgspec.structs.replace(
                        row,
                        share=one.share,
                        pod=_pod(pods, use, one.lease),
                        **_lease(one.lease),
                        **(_of_part(told) if one.part else {}),
                    )
                )
    return sorted(
        found, key=lambda row: (row.node, _number(row.device), row.device, row.share, row.lease)
    )


class _Held(msgspec.Struct, frozen=True):
    """Who has a GPU, or a part of it."""

    lease: Object | None = None
    share: str = ""
    part: DeviceKey | None = None  # the device that a MIG instance is


def _held(seen: Seen, claimed: set[DeviceKey]) -> dict[DeviceKey, list[_Held]]:
    """By whole GPU: each lease on it, and each instance of it that is claimed without one."""
    found: dict[DeviceKey, list[_Held]] = {}
    known: set[DeviceKey] = set()
    for lease in seen.leases:
        if (lease.get("status") or {}).get("phase") == "Released":
            continue
        there = parts.on_host(lease, seen.slices)["spec"]["devices"]
        for device, named in zip(lease["spec"]["devices"], there, strict=True):
            key, name = _key(device), _key(named)
            known.add(name)
            own = name if name != key else None
            found.setdefault(key, []).append(_Held(lease, device.get("share", ""), own))
    gpus = {
        (*_key_of(piece), str(_attributes(device).get("uuid"))): device["name"]
        for piece in seen.slices
        for device in piece["spec"].get("devices") or ()
        if _attributes(device).get("type") != "mig"
    }
    for key, part in parts.of_slices(seen.slices).items():
        gpu = gpus.get((key[0], key[1], part.gpu))
        if key in claimed and key not in known and gpu is not None:
            whole = key[0], key[1], gpu
            found.setdefault(whole, []).append(_Held(None, part.slot.profile, key))
    return found


def _key(device: Object) -> DeviceKey:
    return device["driver"], device["pool"], device["name"]


def _key_of(piece: Object) -> tuple[str, str]:
    return piece["spec"]["driver"], piece["spec"]["pool"]["name"]


def _instances(claims: Iterable[Object]) -> Iterator[tuple[DeviceKey, str]]:
    """The numbers under which the metrics of MIG instances are told, as their nodes say them."""
    for claim in claims:
        for one in (claim.get("status") or {}).get("devices") or ():
            number = (one.get("data") or {}).get("gpuInstance")
            if number is not None:
                yield (one["driver"], one["pool"], one["device"]), str(number)


def _of_part(told: Counters | None) -> dict[str, Any]:
    """What is measured of an instance by itself; power, link and health are its GPU's."""
    return {
        "utilisation_percent": told.engine_percent if told else None,
        "memory_used_bytes": told.memory_used_bytes if told else None,
        "memory_total_bytes": told.memory_total_bytes if told else None,
        "processes": [*told.processes] if told else [],
    }


def _pod(pods: Mapping[Use, str], key: DeviceKey, lease: Object | None) -> str:
    """The pod on a device, or on the part of it that a lease holds."""
    uses = {use[3:]: pod for use, pod in pods.items() if use[:3] == key}
    if lease is not None:
        namespace = host_namespace(lease["spec"]["agent"])
        name = lease["metadata"]["name"]
        uses = {use: pod for use, pod in uses.items() if use[0] == namespace}
        uses = {use: pod for use, pod in uses.items() if name in use[1]} or uses
    return next(iter(uses.values()), "")


def _lease(lease: Object | None) -> dict[str, Any]:
    if lease is None:
        return {}
    status = lease.get("status") or {}
    return {
        "agent": lease["spec"]["agent"],
        "lease": lease["metadata"]["name"],
        "phase": status.get("phase", ""),
        "price": status.get("price", ""),
    }


def _reserved(claims: Iterable[Object], pods: Iterable[Object]) -> Iterator[tuple[Use, str]]:
    """The pod that each allocated device is for: as the claim says, else who names the claim."""
    names: dict[tuple[str, str], str] = {}
    using: dict[tuple[str, str], str] = {}
    for pod in pods:
        namespace = pod["metadata"]["namespace"]
        names[namespace, pod["metadata"]["name"]] = _name(pod)
        if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
            using |= {(namespace, claim): _name(pod) for claim in _claims(pod)}
    for claim in claims:
        namespace = claim["metadata"]["namespace"]
        status = claim.get("status") or {}
        users = [user["name"] for user in status.get("reservedFor") or ()]
        shown = using.get((namespace, claim["metadata"]["name"]), "")
        if users:
            shown = names.get((namespace, users[0]), users[0])
        devices = ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()
        for result in devices:
            device = result["driver"], result["pool"], result["device"]
            yield (*device, namespace, claim["metadata"]["name"]), shown


def _claims(pod: Object) -> Iterator[str]:
    """The claims a pod uses: those it names, and those made for it from a template."""
    for claim in pod.get("spec", {}).get("resourceClaims") or ():
        if name := claim.get("resourceClaimName"):
            yield name
    for made in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
        if name := made.get("resourceClaimName"):
            yield name


def _name(pod: Object) -> str:
    """As the agent knows it, where the pod is an agent's."""
    metadata = pod["metadata"]
    notes = metadata.get("annotations") or {}
    namespace = notes.get(labels.PLANE_NAMESPACE) or metadata["namespace"]
    return f"{namespace}/{notes.get(labels.PLANE_NAME) or metadata['name']}"


def _measured(counters: Counters | None) -> dict[str, Any]:
    if counters is None:
        return {}
    width, most = counters.pcie_link_width, counters.pcie_link_width_max
    link = "" if width is None else f"x{width}"
    return {
        "utilisation_percent": counters.utilisation_percent,
        "memory_used_bytes": counters.memory_used_bytes,
        "memory_total_bytes": counters.memory_total_bytes,
        "power_watts": counters.power_watts,
        "pcie_tx_bytes_per_second": counters.pcie_tx_bytes_per_second,
        "pcie_rx_bytes_per_second": counters.pcie_rx_bytes_per_second,
        "processes": [*counters.processes],
        "declared": counters.declared,
        "holder_processes": [*counters.holder_processes],
        "link": f"{link}/{most}" if counters.link_is_degraded else link,
    }


def _node_health(node: Object) -> str:
    """In a word or two; "ok" while it takes pods."""
    trouble = nodestate.state_of(node).trouble
    return _IN_SHORT.get(trouble, "tainted") if trouble else "ok"


_IN_SHORT = {
    nodestate.NOT_READY: "not ready",
    nodestate.CORDONED: "cordoned",
    nodestate.GOING: "going",
}


def _health(node: str, device: Mapping[str, Any], counters: Counters | None) -> str:
    if node != "ok":
        return node
    if counters is not None and counters.xid:
        return f"xid {counters.xid}"
    if device.get("taints"):
        return "tainted"
    if counters is not None and counters.link_is_degraded:
        return "slow link"
    return "ok"


def _attributes(device: Mapping[str, Any]) -> dict[str, Any]:
    given = (device.get("basic") or device).get("attributes") or {}
    return {name: next(iter(value.values()), "") for name, value in given.items()}


def _number(name: str) -> int:
    digits = "".join(filter(str.isdigit, name.rpartition("-")[2]))
    return int(digits) if digits and len(digits) < 10 else 0
