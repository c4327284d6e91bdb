"""
A lease as the agent sees it in its plane: a Node with exactly the leased devices.

Node, ResourceSlice and mirrored GPULease carry the lease's name, so any of them leads
to the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import GPU_LEASE, Object
from bidplane.api.lease import Phase
from bidplane.core import parts
from bidplane.core.chain import UNITS
from bidplane.wire.quantity import canonical, of_bytes, parse

# A lease says nothing of CPU and memory yet; a pod's requests must not be what stops it.
_ROOM = {"cpu": "256", "memory": "2Ti", "pods": "110", "ephemeral-storage": "1Ti"}


_OF_THE_HOST = ("consumesCounters", "nodeName", "nodeSelector", "allNodes")


def mirror(lease: Object, namespace: str) -> dict[str, Any]:
    """The lease in the agent's plane, in the namespace of the bid that won it."""
    return {
        "apiVersion": GPU_LEASE.api_version,
        "kind": GPU_LEASE.kind,
        "metadata": {
            "name": lease["metadata"]["name"],
            "namespace": namespace,
            "finalizers": [labels.LEASE_FINALIZER],
        },
        "spec": lease["spec"],
    }


def node(lease: Object, host_node: Object | None) -> dict[str, Any]:
    """The Node, without its status."""
    name = lease["metadata"]["name"]
    inherited = (host_node or {"metadata": {}})["metadata"].get("labels") or {}
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
        },
        "spec": {"providerID": f"bidplane://{lease['spec']['node']}/{name}"},
    }


def isolation(lease: Object) -> dict[str, str]:
    """A label that says what a part is: cut by the card (MIG), or shared by taking turns."""
    share = lease["spec"]["devices"][0].get("share", "")
    return {labels.ISOLATION: "none" if "/" in share else "mig"} if share else {}


def resources(lease: Object) -> dict[str, str]:
    """What the node has of GPUs: exactly what was won."""
    devices = lease["spec"]["devices"]
    share = devices[0].get("share", "")
    if not share:
        return {labels.GPU_RESOURCE: str(len(devices))}
    if "/" in share:
        return {labels.EIGHTHS_RESOURCE: str(sum(len(d["slots"]) for d in devices))}
    return {labels.MIG_PREFIX + share: str(len(devices))}


def node_status(lease: Object, *, now: str) -> dict[str, Any]:
    room = {**_ROOM, **resources(lease)}
    status = lease["status"]
    draining = status["phase"] == Phase.DRAINING
    conditions = [
        _condition("Ready", "True", "Leased", "the lease is held", now),
        _condition(
            "ReclaimNotice",
            "True" if draining else "False",
            status.get("reason") or "None" if draining else "None",
            f"pods must be gone by {status.get('reclaimAt')}" if draining else "",
            now,
        ),
    ]
    return {
        "capacity": room,
        "allocatable": room,
        "conditions": conditions,
        "addresses": [{"type": "Hostname", "address": lease["metadata"]["name"]}],
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


def taints(lease: Object) -> list[dict[str, Any]]:
    if lease["status"]["phase"] != Phase.DRAINING:
        return []
    return [{"key": labels.RECLAIM_TAINT, "effect": "NoSchedule"}]


def resource_slice(lease: Object, host_slices: Iterable[Object], node: Object) -> dict[str, Any]:
    """The leased devices, with the attributes the host's slices give them. Goes with `node`."""
    host_slices = list(host_slices)
    known = {
        (slice_["spec"]["driver"], slice_["spec"]["pool"]["name"], device["name"]): device
        for slice_ in host_slices
        if slice_["spec"].get("nodeName") == lease["spec"]["node"]
        for device in slice_["spec"].get("devices") or ()
    }
    name = lease["metadata"]["name"]
    devices = lease["spec"]["devices"]
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
                    "name": node["metadata"]["name"],
                    "uid": node["metadata"]["uid"],
                }
            ],
        },
        "spec": {
            "driver": devices[0]["driver"],
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                _shown(
                    device,
                    known.get((device["driver"], device["pool"], device["name"]))
                    or {"name": device["name"]},
                    parts.published(lease, device, host_slices),
                )
                for device in devices
            ],
        },
    }


def _shown(leased: Object, device: Object, part: Object | None) -> dict[str, Any]:
    """The device as its holder sees it: of a part, named after it and no larger than it."""
    # What it takes from the host's counters is taken, and where it is, is the lease's node.
    whole = {key: value for key, value in device.items() if key not in _OF_THE_HOST}
    share, slots = leased.get("share", ""), list(leased.get("slots") or ())
    if not share:
        return whole
    if part is not None:  # an instance says itself what it is
        shown = {key: value for key, value in part.items() if key not in _OF_THE_HOST}
        capacity = shown.get("capacity") or {}
    else:
        capacity = {
            name: _portion(value["value"], len(slots))
            for name, value in (device.get("capacity") or {}).items()
        }
        # With nothing that is used up, it could be claimed any number of times.
        shown = {**whole, **({"allowMultipleAllocations": True} if capacity else {})}
    attributes = {
        **(shown.get("attributes") or {}),
        labels.PARENT_ATTRIBUTE: {"string": device["name"]},
        labels.SHARE_ATTRIBUTE: {"string": share},
    }
    shown = {**shown, "name": parts.shown_name(leased), "attributes": attributes}
    return {**shown, "capacity": capacity} if capacity else shown


def _portion(amount: str, count: int) -> dict[str, Any]:
    """
    So many eighths of a capacity. A claim for some of it takes whole eighths, as they are sold;
    one that says nothing takes all of it.
    """
    value = _eighths(amount, count)
    if (parse(amount) / UNITS).denominator != 1:
        return {"value": value}  # nothing whole to round up to: a claim takes what it says
    eighth = _eighths(amount, 1)
    # Of one eighth there is no second step, and a slice that says there is one is refused.
    allowed = {"min": eighth, "max": value, **({"step": eighth} if count > 1 else {})}
    return {"value": value, "requestPolicy": {"default": value, "validRange": allowed}}


def _eighths(amount: str, count: int) -> str:
    """So many eighths of a quantity, and never more than that, in its own kind of unit."""
    number = math.floor(parse(amount) * count / UNITS)
    return of_bytes(number) if amount.endswith("i") else canonical(number)


def _condition(type_: str, status: str, reason: str, message: str, now: str) -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
