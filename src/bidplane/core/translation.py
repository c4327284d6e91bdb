"""
A plane's objects as they are on the host.

On the host every agent has one namespace, so a name there carries the plane's namespace
and name. The map is one way: the way back is in the annotations. Names never collide,
because a hash of the pair ends each of them.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import Object
from bidplane.core.parts import shown_name

_LONGEST_NAME = 63  # a pod's name is also its host name, a DNS label
# Of a million names of one agent, the chance that any two meet is one in five hundred.
_HASH_DIGITS = 12


@functools.lru_cache(maxsize=16384)  # asked for at every look at a pod
def host_name(namespace: str, name: str) -> str:
    """`("default", "train")` → `train-x-default-466e40ae9f8e`."""
    digest = hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:_HASH_DIGITS]
    readable = f"{name}-x-{namespace}".replace(".", "-")
    return f"{readable[: _LONGEST_NAME - _HASH_DIGITS - 1].rstrip('-')}-{digest}"


def tokens_name(namespace: str, account: str) -> str:
    """Of the Secret with an account's tokens: a name no copy can have, as no name has a slash."""
    digest = hashlib.sha256(f"{namespace}/{account}/tokens".encode()).hexdigest()[:_HASH_DIGITS]
    readable = f"{account}-tokens-x-{namespace}".replace(".", "-")
    return f"{readable[: _LONGEST_NAME - _HASH_DIGITS - 1].rstrip('-')}-{digest}"


def origin(obj: Object) -> tuple[str, str] | None:
    """The plane's namespace and name of an object on the host, if it came from a plane."""
    annotations = obj["metadata"].get("annotations") or {}
    if labels.PLANE_NAME not in annotations:
        return None
    return annotations[labels.PLANE_NAMESPACE], annotations[labels.PLANE_NAME]


def lease_label(host_pod: Object) -> str:
    """The lease a pod on the host runs on; "" of a pod that is not an agent's."""
    lease: str = (host_pod["metadata"].get("labels") or {}).get(labels.LEASE, "")
    return lease


def host_metadata(agent: str, obj: Object) -> dict[str, Any]:
    """Metadata of the host's copy: the user's labels and annotations, and who it is."""
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


def changed_marks(wanted: Object, copy: Object, *, keep: Collection[str]) -> dict[str, Any]:
    """
    A merge patch that gives the host's copy the labels and annotations it should have; empty
    when it has them. What `keep` names is somebody else's there.
    """
    changes: dict[str, Any] = {}
    for field in ("labels", "annotations"):
        ours = wanted.get(field) or {}
        theirs = copy["metadata"].get(field) or {}
        gone = {key: None for key in theirs if key not in ours and key not in keep}
        new = {
            key: value
            for key, value in ours.items()
            if theirs.get(key) != value and key not in keep
        }
        if gone or new:
            changes[field] = {**gone, **new}
    return changes


def host_bid(agent: str, bid: Object) -> dict[str, Any]:
    return {
        "apiVersion": bid["apiVersion"],
        "kind": bid["kind"],
        "metadata": host_metadata(agent, bid),
        "spec": bid["spec"],
    }


def host_config(agent: str, obj: Object) -> dict[str, Any]:
    """A ConfigMap or Secret that a pod names."""
    content = {
        key: value
        for key, value in obj.items()
        if key in ("apiVersion", "kind", "data", "binaryData", "immutable", "type")
    }
    return {**content, "metadata": _copied(agent, obj)}


def host_volume_claim(agent: str, obj: Object) -> dict[str, Any]:
    """
    A PersistentVolumeClaim that a pod names. Which volume it gets is the host's to say: one
    that names a volume, or another claim to begin from, could name somebody else's.
    """
    spec = obj["spec"]
    kept = ("accessModes", "resources", "storageClassName", "volumeMode")
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _copied(agent, obj),
        "spec": {key: spec[key] for key in kept if spec.get(key) is not None},
    }


def host_tokens(
    agent: str, namespace: str, account: str, tokens: Mapping[str, str]
) -> dict[str, Any]:
    """What a plane's pods of one account show their own plane's API, by what they asked for."""
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


def _copied(agent: str, obj: Object) -> dict[str, Any]:
    """
    As `host_metadata`, and marked as a copy. The author's annotations stay behind: of what
    `kubectl apply` made, one of them is all of the object once more.
    """
    metadata = host_metadata(agent, obj)
    ours = (labels.PLANE_NAMESPACE, labels.PLANE_NAME, labels.PLANE_UID)
    return {
        **metadata,
        "labels": {**metadata["labels"], labels.COPY: "true"},
        "annotations": {key: metadata["annotations"][key] for key in ours},
    }


def owned_by(lease: Object) -> dict[str, Any]:
    return {
        "apiVersion": lease["apiVersion"],
        "kind": lease["kind"],
        "name": lease["metadata"]["name"],
        "uid": lease["metadata"]["uid"],
    }


def some_of(lease: Object, devices: Collection[str]) -> Object:
    """The lease, as if it had only the devices its agent knows by these names."""
    kept = [one for one in lease["spec"]["devices"] if shown_name(one) in devices]
    return {**lease, "spec": {**lease["spec"], "devices": kept}}


def host_claim(
    agent: str,
    lease: Object,
    name: str = "",
    *,
    asked: Mapping[tuple[str, str, str], Mapping[str, Any]] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    The claim that pins a lease's devices, and its status: the exchange has placed it. `asked` are
    the conditions that drivers set before their devices may be used.
    """
    spec = lease["spec"]
    name = name or lease["metadata"]["name"]
    exactly = {
        "deviceClassName": labels.DEVICE_CLASS,
        "allocationMode": "ExactCount",
        "count": len(spec["devices"]),
    }
    claim: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name,
            "namespace": host_namespace(agent),
            "labels": {labels.AGENT: agent, labels.LEASE: lease["metadata"]["name"]},
            "ownerReferences": [owned_by(lease)],
        },
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
    }
    results = [
        {
            "request": "gpus",
            "driver": device["driver"],
            "pool": device["pool"],
            "device": device["name"],
            **(asked or {}).get((device["driver"], device["pool"], device["name"]), {}),
        }
        for device in spec["devices"]
    ]
    shared = [device for device in spec["devices"] if device.get("share")]
    if shared:
        # What the driver must do to hand out a part, in the words DRA has for it.
        parameters = {
            "apiVersion": lease["apiVersion"],
            "kind": "Share",
            "devices": [
                {"name": device["name"], "share": device["share"], "slots": device["slots"]}
                for device in shared
            ],
        }
        opaque = {"driver": shared[0]["driver"], "parameters": parameters}
        claim["spec"]["devices"]["config"] = [{"requests": ["gpus"], "opaque": opaque}]
    on_node = {"key": "metadata.name", "operator": "In", "values": [spec["node"]]}
    status = {
        "allocation": {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [on_node]}]},
        }
    }
    return claim, status
