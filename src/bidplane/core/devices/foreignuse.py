"""
GPUs of the host that are used outside the market: by claims of no lease, and by pods that request a
number of GPUs.

A device of such a claim is not for sale. A pod's number does not tell which cards it has; only the
kubelet knows, so no device of that node is for sale. Where claims serve the number
(`status.extendedResourceClaimStatus`), the claim names the cards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import Object

DeviceKey = tuple[str, str, str]  # driver, pool, name
_FINISHED = ("Succeeded", "Failed")


class ForeignUse(NamedTuple):
    """Devices in claims of no lease, and nodes where pods of no lease have unnamed devices."""

    devices: Mapping[DeviceKey, str]  # by device: the claim's name
    nodes: Mapping[str, str]  # by node: the pod and the number it has


def held_by_claim(claim: Object) -> dict[DeviceKey, str]:
    """Return the devices of an allocated claim of no lease, without those of admin access."""
    metadata = claim["metadata"]
    if _belongs_to_lease(metadata):
        return {}
    name = f"{metadata.get('namespace', '')}/{metadata['name']}"
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return {
        (result["driver"], result["pool"], result["device"]): name
        for result in (allocation.get("devices") or {}).get("results") or ()
        if not result.get("adminAccess")
    }


def held_by_pod(pod: Object) -> tuple[str, str] | None:
    """Return the node of a bound pod with unnamed GPUs of no lease, and a description of them."""
    spec, status = pod["spec"], pod.get("status") or {}
    node = spec.get("nodeName")
    if not node or status.get("phase") in _FINISHED or _belongs_to_lease(pod["metadata"]):
        return None
    if status.get("extendedResourceClaimStatus"):
        return None
    gpu_requests = sorted(set(_gpu_requests(spec)))
    if not gpu_requests:
        return None
    metadata = pod["metadata"]
    return node, f"pod {metadata['namespace']}/{metadata['name']} has {', '.join(gpu_requests)}"


def held(
    claims: Iterable[Mapping[DeviceKey, str]], pods: Iterable[tuple[str, str] | None]
) -> ForeignUse:
    """Collect the devices and nodes that `held_by_claim` and `held_by_pod` returned."""
    devices: dict[DeviceKey, str] = {}
    for claim_devices in claims:
        devices.update(claim_devices)
    return ForeignUse(devices, dict(filter(None, pods)))


def parents(slice_: Object) -> dict[DeviceKey, str]:
    """Return the UUID of the GPU that each device of a slice is a part of."""
    spec = slice_.get("spec") or {}
    return {
        (spec["driver"], spec["pool"]["name"], device["name"]): parent
        for device in spec.get("devices") or ()
        if (parent := _string(device, "parentUUID"))
    }


def _string(device: Object, name: str) -> str:
    value = ((device.get("attributes") or {}).get(name) or {}).get("string", "")
    return value if isinstance(value, str) else ""


def _belongs_to_lease(metadata: Object) -> bool:
    """
    Return whether an object belongs to a lease. Its labels count only in the agent's namespace.
    """
    object_labels = metadata.get("labels") or {}
    agent = object_labels.get(labels.AGENT, "")
    return bool(agent and labels.LEASE in object_labels) and (
        metadata.get("namespace") == host_namespace(agent)
    )


def _gpu_requests(spec: Object) -> Iterator[str]:
    """Yield each number of GPUs, or of parts of them, that a pod requests."""
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            resources = container.get("resources") or {}
            amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
            for name, amount in amounts.items():
                is_gpu = name == labels.GPU_RESOURCE or name.startswith(labels.MIG_PREFIX)
                if is_gpu and str(amount) != "0":
                    yield f"{amount} {name}"
