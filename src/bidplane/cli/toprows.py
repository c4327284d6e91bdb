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
from bidplane.kube.client import Object
from bidplane.telemetry.model import Counters

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


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was read for one picture."""

    nodes: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    leases: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    pods: Sequence[Object] = ()
    counters: Sequence[Counters] = ()


def rows(seen: Seen) -> list[Row]:
    """By node, then by the number in the device's name."""
    leases: dict[DeviceKey, list[tuple[str, Object]]] = {}
    for taken, share, lease in _leased(seen.leases):
        leases.setdefault(taken, []).append((share, lease))
    pods = dict(_reserved(seen.claims, seen.pods))
    by_uuid = {one.uuid: one for one in seen.counters}
    by_place = {(one.node, one.index): one for one in seen.counters}
    health = {node["metadata"]["name"]: _node_health(node) for node in seen.nodes}
    found = []
    for piece in seen.slices:
        spec = piece["spec"]
        node = spec.get("nodeName", "")
        for device in spec.get("devices") or ():
            key = spec["driver"], spec["pool"]["name"], device["name"]
            attributes = _attributes(device)
            if attributes.get("type") == "mig" and key not in leases:
                continue  # one of the many ways to cut a card, and nobody did
            uuid = str(attributes.get("uuid", ""))
            counters = by_uuid.get(uuid) or by_place.get((node, _number(device["name"])))
            row = Row(
                node=node,
                device=device["name"],
                uuid=uuid,
                product=str(attributes.get(labels.PRODUCT_ATTRIBUTE, "")),
                health=_health(health.get(node, "no node"), device, counters),
                link_domain=str(attributes.get(labels.LINK_DOMAIN_ATTRIBUTE, "")),
                **_measured(counters),
            )
            for share, lease in leases.get(key, ()):
                held = {"share": share, "pod": _pod(pods, key, lease), **_lease(lease)}
                found.append(msgspec.structs.replace(row, **held))
            if key not in leases:
                found.append(msgspec.structs.replace(row, pod=_pod(pods, key, None)))
    return sorted(found, key=lambda row: (row.node, _number(row.device), row.device, row.lease))


def _leased(leases: Iterable[Object]) -> Iterator[tuple[DeviceKey, str, Object]]:
    for lease in leases:
        if (lease.get("status") or {}).get("phase") != "Released":
            for device in lease["spec"]["devices"]:
                key = device["driver"], device["pool"], device["name"]
                yield key, device.get("share", ""), lease


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
        "link": f"{link}/{most}" if counters.link_is_degraded else link,
    }


def _node_health(node: Object) -> str:
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Ready":
            return "ok" if condition["status"] == "True" else "not ready"
    return "not ready"


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
