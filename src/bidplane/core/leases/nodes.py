"""
A lease as the agent sees it in its plane: a Node with exactly the leased devices.

Node, ResourceSlice and mirrored GPULease have the lease's name, so each leads to the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from bidplane.api import labels
from bidplane.api.kinds import GPU_LEASE, Draft, Object
from bidplane.api.lease import LINK_DEGRADED, DeviceRef, Phase
from bidplane.api.objects import labels_of, name_of, status_of, uid_of
from bidplane.api.reading import GPULease
from bidplane.api.shape import PART_UNITS
from bidplane.core.devices import links, migdevices
from bidplane.core.devices.ranges import occupied, size_of
from bidplane.core.nodes.fitting import SHARED
from bidplane.core.nodes.offers import offer_of
from bidplane.wire.quantity import canonical, of_bytes, parse

_OF_THE_HOST = ("consumesCounters", "nodeName", "nodeSelector", "allNodes")


def mirror(lease: GPULease, namespace: str) -> Draft:
    """Return the lease for the agent's plane, in the namespace of the bid that won it."""
    return {
        "apiVersion": GPU_LEASE.api_version,
        "kind": GPU_LEASE.kind,
        "metadata": {
            "name": lease.name,
            "namespace": namespace,
            "finalizers": [labels.LEASE_FINALIZER],
        },
        "spec": lease.json["spec"],
    }


def node(lease: GPULease, host_node: Object | None, devices: Sequence[Object] = ()) -> Draft:
    """
    Return the Node without its status; it records the links of `devices`, as its slice has them.
    """
    at_start = links.text(links.links_of(devices))
    name = lease.name
    inherited = labels_of(host_node) if host_node is not None else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                **{key: value for key, value in inherited.items() if key != labels.AGENT},
                "kubernetes.io/hostname": name,
                labels.LEASE: name,
                **isolation(lease),
            },
            **({"annotations": {labels.LINKS_AT_START: at_start}} if devices else {}),
        },
        "spec": {"providerID": f"bidplane://{lease.spec.node}/{name}"},
    }


def isolation(lease: GPULease) -> dict[str, str]:
    """
    Return the label for a leased part: cut by the card (MIG), or shared in turns without isolation.
    """
    if not lease.share:
        return {}
    return {labels.ISOLATION: "none" if lease.spec.devices[0].is_part else "mig"}


def resources(lease: GPULease) -> dict[str, str]:
    """Return the GPU resources of the node: exactly those that were won."""
    devices = lease.spec.devices
    if not lease.share:
        return {labels.GPU_RESOURCE: str(len(devices))}
    if devices[0].is_part:
        return {labels.PART_RESOURCE: str(math.floor(100 * share_of(devices)))}
    return {labels.MIG_PREFIX + lease.share: str(len(devices))}


def room(lease: GPULease, host_node: Object | None, gpus: int) -> dict[str, str]:
    """
    Return the node's resources: the lease's GPUs and a portion of the machine's CPU, memory, disk.

    The portion is the lease's GPUs out of the machine's `gpus`; what the owner offers to pods
    without GPUs is left out.
    """
    machine = machine_room(host_node)
    portion = share_of(lease.spec.devices) / max(gpus, 1)
    host_allocatable = status_of(host_node or {}).get("allocatable") or {}
    return {
        **{
            name: _quantity(name, amount * min(portion, Fraction(1)))
            for name, amount in machine.items()
        },
        "pods": str(host_allocatable.get("pods", "110")),
        **resources(lease),
    }


def machine_room(host_node: Object | None) -> dict[str, Fraction]:
    """
    Return the resources of a machine that leases share: all but what its owner offers separately.
    """
    allocatable = status_of(host_node or {}).get("allocatable") or {}
    offered = offer_of(host_node) if host_node is not None else {}
    return {
        name: max(Fraction(0), parse(allocatable[name]) - offered.get(name, Fraction(0)))
        for name in SHARED
        if name in allocatable
    }


def share_of(devices: Iterable[DeviceRef]) -> Fraction:
    """Return how many GPUs the devices are; a part counts by what it is of its GPU."""
    return Fraction(sum(size_of(occupied(device)) for device in devices), PART_UNITS)


def _quantity(name: str, amount: Fraction) -> str:
    """
    Return an amount as a quantity, rounded down: CPU to a thousandth, bytes to whole Mi if
    possible.
    """
    if name == "cpu":
        return canonical(f"{math.floor(amount * 1000)}m")
    return of_bytes(math.floor(amount) >> 20 << 20 or math.floor(amount))


def node_status(
    lease: GPULease,
    host_node: Object | None,
    gpus: int,
    *,
    degraded: Sequence[str] = (),
    now: str,
) -> Draft:
    """
    Return the Node's status. `gpus`: all of the machine. `degraded`: sentences on worse links.
    """
    allocatable = room(lease, host_node, gpus)
    draining = lease.phase == Phase.DRAINING
    reason, reclaim_at = (
        (lease.status.reason, lease.status.reclaim_at) if lease.status is not None else ("", "")
    )
    conditions = [
        _condition("Ready", "True", "Leased", "the lease is held", now),
        _condition(
            "ReclaimNotice",
            "True" if draining else "False",
            reason or "None" if draining else "None",
            f"pods must end by {reclaim_at}" if draining else "",
            now,
        ),
    ]
    if degraded:
        conditions.append(
            _condition(LINK_DEGRADED, "True", LINK_DEGRADED, "; ".join(degraded), now)
        )
    return {
        "capacity": allocatable,
        "allocatable": allocatable,
        "conditions": conditions,
        "addresses": [{"type": "Hostname", "address": lease.name}],
        "nodeInfo": {
            "architecture": "",
            "bootID": "",
            "containerRuntimeVersion": "",
            "kernelVersion": "",
            "kubeProxyVersion": "",
            "kubeletVersion": "bidplane",
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "",
            "systemUUID": "",
        },
    }


def taints(lease: GPULease) -> list[dict[str, str]]:
    """Return the taint of a lease under notice; [] for any other."""
    if lease.phase != Phase.DRAINING:
        return []
    return [{"key": labels.RECLAIM_TAINT, "effect": "NoSchedule"}]


def devices_shown(lease: GPULease, host_slices: Iterable[Object]) -> list[Draft]:
    """Return the leased devices with the attributes the host's slices give them now."""
    host_slices = list(host_slices)
    published = {
        (slice_["spec"]["driver"], slice_["spec"]["pool"]["name"], device["name"]): device
        for slice_ in host_slices
        if slice_["spec"].get("nodeName") == lease.spec.node
        for device in slice_["spec"].get("devices") or ()
    }
    return [
        _plane_device(
            device,
            published.get((device.driver, device.pool, device.name)) or {"name": device.name},
            migdevices.published(device, host_slices),
        )
        for device in lease.spec.devices
    ]


def resource_slice(lease: GPULease, host_slices: Iterable[Object], node: Object) -> Draft:
    """Return the slice of the leased devices, owned by `node`."""
    name = lease.name
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": name,
            "labels": {labels.LEASE: name},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": name_of(node),
                    "uid": uid_of(node),
                }
            ],
        },
        "spec": {
            "driver": lease.spec.devices[0].driver,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices_shown(lease, host_slices),
        },
    }


def _plane_device(leased: DeviceRef, device: Object, part: Object | None) -> Draft:
    """Return a device as its agent sees it: a part has a name of its own and only its capacity."""
    # The host's fields describe its place there; in the plane it is on the lease's node.
    plane_fields = {key: value for key, value in device.items() if key not in _OF_THE_HOST}
    if not leased.share:
        return plane_fields
    if part is not None:  # a published MIG instance describes itself
        visible = {key: value for key, value in part.items() if key not in _OF_THE_HOST}
        capacity = visible.get("capacity") or {}
    else:
        capacity = {
            name: _portion(value["value"], share_of([leased]))
            for name, value in (device.get("capacity") or {}).items()
        }
        # Without a consumable capacity it could be claimed any number of times.
        visible = {**plane_fields, **({"allowMultipleAllocations": True} if capacity else {})}
    attributes = {
        **(visible.get("attributes") or {}),
        labels.PARENT_ATTRIBUTE: {"string": device["name"]},
        labels.SHARE_ATTRIBUTE: {"string": leased.share},
    }
    visible = {**visible, "name": migdevices.shown_name(leased), "attributes": attributes}
    return {**visible, "capacity": capacity} if capacity else visible


def _portion(amount: str, share: Fraction) -> Draft:
    """
    Return a part of a capacity, rounded down, with a policy for claims on it.

    The part was cut for the claim that bid for it, as small as it could be. So a claim consumes all
    of the part, whether it says an amount or none.
    """
    number = math.floor(parse(amount) * share)
    value = of_bytes(number) if amount.endswith("i") else canonical(number)
    return {
        "value": value,
        "requestPolicy": {"default": value, "validRange": {"min": value, "max": value}},
    }


def _condition(type_: str, status: str, reason: str, message: str, now: str) -> dict[str, str]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
