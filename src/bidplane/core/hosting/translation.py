"""
Translation of a plane's objects to the host's.

On the host every agent has one namespace, so a name there is made of the plane's namespace and
name. The map is one way; annotations lead back. Names never collide, because each ends in a hash of
the pair.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Collection, Mapping, Sequence

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import GPU_LEASE, Draft, Object
from bidplane.api.lease import DeviceRef
from bidplane.api.objects import annotations_of, labels_of, uid_of
from bidplane.api.reading import GPULease

_LONGEST_NAME = 63  # a pod's name is also its host name, a DNS label
# Among a million names of one agent, two collide with a chance of one in five hundred.
_HASH_DIGITS = 12


@functools.lru_cache(maxsize=16384)  # called on every reconcile of a pod
def host_name(namespace: str, name: str) -> str:
    """Return the host's name of a plane's object, such as `train-x-default-466e40ae9f8e`."""
    digest = hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:_HASH_DIGITS]
    readable = f"{name}-x-{namespace}".replace(".", "-")
    return f"{readable[: _LONGEST_NAME - _HASH_DIGITS - 1].rstrip('-')}-{digest}"


def tokens_name(namespace: str, account: str) -> str:
    """
    Return the host's name of the Secret with an account's tokens.

    No copied object can have that name, because the hash is of a text with two slashes.
    """
    digest = hashlib.sha256(f"{namespace}/{account}/tokens".encode()).hexdigest()[:_HASH_DIGITS]
    readable = f"{account}-tokens-x-{namespace}".replace(".", "-")
    return f"{readable[: _LONGEST_NAME - _HASH_DIGITS - 1].rstrip('-')}-{digest}"


def origin(obj: Object) -> tuple[str, str] | None:
    """Return the plane's namespace and name of a host's object; None if it came from no plane."""
    annotations = annotations_of(obj)
    if labels.PLANE_NAME not in annotations:
        return None
    return annotations[labels.PLANE_NAMESPACE], annotations[labels.PLANE_NAME]


def is_copy_of(copy: Object, original: Object | None) -> bool:
    """Return whether a host's object is a copy of this very object of a plane."""
    return original is not None and annotations_of(copy).get(labels.PLANE_UID) == uid_of(original)


def lease_label(host_pod: Object) -> str:
    """Return the lease that a pod on the host runs on; "" for a pod without one."""
    return labels_of(host_pod).get(labels.LEASE, "")


def host_metadata(agent: str, obj: Object) -> Draft:
    """Return the metadata of the host's copy: its labels and annotations, and its origin."""
    metadata = obj["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    return {
        "name": host_name(namespace, name),
        "namespace": host_namespace(agent),
        "labels": {**(metadata.get("labels") or {}), labels.AGENT: agent},
        "annotations": {
            **(metadata.get("annotations") or {}),
            labels.PLANE_NAMESPACE: namespace,
            labels.PLANE_NAME: name,
            labels.PLANE_UID: metadata["uid"],
        },
    }


def changed_marks(
    metadata: Object, copy: Object, *, keep: Collection[str]
) -> dict[str, dict[str, str | None]]:
    """
    Return a merge patch that gives the host's copy its labels and annotations; {} if it has them.

    Keys in `keep` belong to someone else on the host and stay as they are.
    """
    changes: dict[str, dict[str, str | None]] = {}
    for field in ("labels", "annotations"):
        desired = metadata.get(field) or {}
        current = copy["metadata"].get(field) or {}
        removed = {key: None for key in current if key not in desired and key not in keep}
        changed = {
            key: value
            for key, value in desired.items()
            if current.get(key) != value and key not in keep
        }
        if removed or changed:
            changes[field] = {**removed, **changed}
    return changes


def host_bid(agent: str, bid: Object) -> Draft:
    """Return the host's copy of a plane's Bid."""
    return {
        "apiVersion": bid["apiVersion"],
        "kind": bid["kind"],
        "metadata": host_metadata(agent, bid),
        "spec": bid["spec"],
    }


def host_config(agent: str, obj: Object) -> Draft:
    """Return the host's copy of a ConfigMap or Secret that a pod names."""
    content = {
        key: value
        for key, value in obj.items()
        if key in ("apiVersion", "kind", "data", "binaryData", "immutable", "type")
    }
    return {**content, "metadata": _copy_metadata(agent, obj)}


def host_volume_claim(agent: str, obj: Object) -> Draft:
    """
    Return the host's copy of a PersistentVolumeClaim that a pod names.

    The host chooses the volume: a claim that names a volume or a data source could name another
    agent's, so those fields are left out.
    """
    spec = obj["spec"]
    fields = ("accessModes", "resources", "storageClassName", "volumeMode")
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _copy_metadata(agent, obj),
        "spec": {key: spec[key] for key in fields if spec.get(key) is not None},
    }


def host_tokens(agent: str, namespace: str, account: str, tokens: Mapping[str, str]) -> Draft:
    """Return the Secret with the tokens by which the pods of an account reach their plane's API."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": tokens_name(namespace, account),
            "namespace": host_namespace(agent),
            "labels": {labels.AGENT: agent, labels.COPY: "true"},
        },
        "data": {key: base64.b64encode(token.encode()).decode() for key, token in tokens.items()},
    }


def _copy_metadata(agent: str, obj: Object) -> Draft:
    """
    Return `host_metadata` marked as a copy, without the author's annotations.

    `kubectl apply` keeps a second copy of the whole object in one of them.
    """
    metadata = host_metadata(agent, obj)
    origin_keys = (labels.PLANE_NAMESPACE, labels.PLANE_NAME, labels.PLANE_UID)
    return {
        **metadata,
        "labels": {**metadata["labels"], labels.COPY: "true"},
        "annotations": {key: metadata["annotations"][key] for key in origin_keys},
    }


def owned_by(lease: GPULease) -> dict[str, str]:
    """Return an owner reference to a lease."""
    return {
        "apiVersion": GPU_LEASE.api_version,
        "kind": GPU_LEASE.kind,
        "name": lease.name,
        "uid": lease.uid,
    }


def host_claim(
    lease: GPULease,
    devices: Sequence[DeviceRef],
    name: str = "",
    *,
    binding_conditions: Mapping[tuple[str, str, str], Mapping[str, Sequence[str]]] | None = None,
) -> tuple[Draft, Draft]:
    """
    Return the claim that pins devices of a lease, and its status with the exchange's allocation.

    `devices` are named as on the host. `binding_conditions` are, by device, the conditions that its
    driver sets before the device may be used.
    """
    exactly = {
        "deviceClassName": labels.DEVICE_CLASS,
        "allocationMode": "ExactCount",
        "count": len(devices),
    }
    claim: Draft = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name or lease.name,
            "namespace": host_namespace(lease.spec.agent),
            "labels": {labels.AGENT: lease.spec.agent, labels.LEASE: lease.name},
            "ownerReferences": [owned_by(lease)],
        },
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
    }
    results = [
        {
            "request": "gpus",
            "driver": device.driver,
            "pool": device.pool,
            "device": device.name,
            **(binding_conditions or {}).get((device.driver, device.pool, device.name), {}),
        }
        for device in devices
    ]
    shared = [device for device in devices if device.share]
    if shared:
        # DRA's opaque parameters tell the driver which part of each GPU to prepare.
        parameters = {
            "apiVersion": GPU_LEASE.api_version,
            "kind": "Share",
            "devices": [
                {
                    "name": device.name,
                    "share": device.share,
                    **({"units": list(device.units)} if device.units else {}),
                    **({"slots": list(device.slots)} if device.slots else {}),
                }
                for device in shared
            ],
        }
        opaque = {"driver": shared[0].driver, "parameters": parameters}
        claim["spec"]["devices"]["config"] = [{"requests": ["gpus"], "opaque": opaque}]
    on_node = {"key": "metadata.name", "operator": "In", "values": [lease.spec.node]}
    status = {
        "allocation": {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [on_node]}]},
        }
    }
    return claim, status
