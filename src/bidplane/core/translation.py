"""
A plane's objects as they are on the host.

On the host every agent has one namespace, so a name there carries the plane's namespace
and name. The map is one way: the way back is in the annotations. Names never collide,
because a hash of the pair ends each of them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import CONFIG_MAP, SECRET, Kind, Object
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


def host_config(agent: str, obj: Object, lease: Object) -> dict[str, Any]:
    """A ConfigMap or Secret that a pod on `lease` names: it goes when the lease goes."""
    content = {
        key: value
        for key, value in obj.items()
        if key in ("apiVersion", "kind", "data", "binaryData", "immutable", "type")
    }
    metadata = host_metadata(agent, obj)
    return {**content, "metadata": {**metadata, "ownerReferences": [owned_by(lease)]}}


def owned_by(lease: Object) -> dict[str, Any]:
    return {
        "apiVersion": lease["apiVersion"],
        "kind": lease["kind"],
        "name": lease["metadata"]["name"],
        "uid": lease["metadata"]["uid"],
    }


def host_pod(agent: str, pod: Object, lease: Object, claim: str = "") -> dict[str, Any]:
    """
    The pod as the host runs it: on the lease's node, with the lease's devices claimed; or with
    those of `claim`, where the pod's own claims have only some of them.
    """
    namespace = pod["metadata"]["namespace"]
    spec = {
        key: value
        for key, value in pod["spec"].items()
        # The plane's service accounts, scheduler and priorities mean nothing on the host.
        if key
        not in (
            "nodeName",
            "nodeSelector",
            "affinity",
            "tolerations",
            "schedulerName",
            "serviceAccount",
            "serviceAccountName",
            "priority",
            "priorityClassName",
            "preemptionPolicy",
        )
    }
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [_host_container(namespace, container) for container in spec[field]]
    if {labels.GPU_FRACTION, labels.GPU_MEMORY} & set(pod["metadata"].get("annotations") or {}):
        # An annotation is the pod's, not a container's: as in KAI, the first one has the GPU.
        first, *others = spec["containers"]
        resources = {**first["resources"], "claims": [{"name": "gpus"}]}
        spec["containers"] = [{**first, "resources": resources}, *others]
    if spec.get("volumes"):
        spec["volumes"] = [
            _host_volume(namespace, volume) for volume in spec["volumes"] if not _is_access(volume)
        ]
    if spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [
            {"name": host_name(namespace, secret["name"])}
            for secret in spec["imagePullSecrets"]
            if secret.get("name")
        ]
    spec["nodeName"] = lease["spec"]["node"]
    spec["automountServiceAccountToken"] = False
    name = claim or lease["metadata"]["name"]
    spec["resourceClaims"] = [{"name": "gpus", "resourceClaimName": name}]
    metadata = host_metadata(agent, pod)
    metadata["labels"][labels.LEASE] = lease["metadata"]["name"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def some_of(lease: Object, devices: Collection[str]) -> Object:
    """The lease, as if it had only the devices its agent knows by these names."""
    kept = [one for one in lease["spec"]["devices"] if shown_name(one) in devices]
    return {**lease, "spec": {**lease["spec"], "devices": kept}}


def host_claim(agent: str, lease: Object, name: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """The claim that pins a lease's devices, and its status: the exchange has placed it."""
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


class Reference(msgspec.Struct, frozen=True):
    """A ConfigMap or Secret that a pod names."""

    kind: Kind
    name: str
    required: bool = True  # the pod cannot start without it


def references(pod: Object, *, access: bool = False) -> list[Reference]:
    """
    What a pod names, each once, in the order they appear.

    With `access` also what its way to its own API is made of: for whoever runs it, not for
    whoever carries it to another.
    """
    found: dict[tuple[Kind, str], bool] = {}
    for one in _references(pod["spec"], access):
        if one.name:
            found[one.kind, one.name] = found.get((one.kind, one.name), False) or one.required
    return [Reference(kind, name, required) for (kind, name), required in found.items()]


def _references(spec: Object, access: bool) -> Iterator[Reference]:
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            for source in container.get("envFrom") or ():
                yield from _named(source, "configMapRef", "secretRef")
            for variable in container.get("env") or ():
                yield from _named(
                    variable.get("valueFrom") or {}, "configMapKeyRef", "secretKeyRef"
                )
    for volume in (one for one in spec.get("volumes") or () if access or not _is_access(one)):
        yield from _named(volume, "configMap", "secret")
        for source in (volume.get("projected") or {}).get("sources") or ():
            yield from _named(source, "configMap", "secret")
    for secret in spec.get("imagePullSecrets") or ():
        # An image may be public after all: a kubelet goes on without.
        yield Reference(SECRET, secret.get("name") or "", required=False)


def _named(source: Object, config_map: str, secret: str) -> Iterator[Reference]:
    for kind, key in ((CONFIG_MAP, config_map), (SECRET, secret)):
        named = source.get(key)
        if named:
            yield Reference(kind, named.get(_field(named)) or "", not named.get("optional"))


def _field(named: Object) -> str:
    """A volume calls a Secret's name `secretName`; everything else says `name`."""
    return "secretName" if "secretName" in named else "name"


# The token every pod gets is for its plane's API, and signed there: on the host it means nothing.
_ACCESS = "kube-api-access-"


def _is_access(volume: Object) -> bool:
    return "projected" in volume and _is_access_name(volume)


def _is_access_name(named: Object) -> bool:
    return str(named.get("name", "")).startswith(_ACCESS)


def _host_container(namespace: str, container: Object) -> dict[str, Any]:
    resources = dict(container.get("resources") or {})
    asked = bool(resources.get("claims"))
    for field in ("limits", "requests"):
        if resources.get(field):
            asked |= any(map(_is_gpu, resources[field]))
            resources[field] = {
                key: value for key, value in resources[field].items() if not _is_gpu(key)
            }
    if asked:
        resources["claims"] = [{"name": "gpus"}]
    result = {**container, "resources": resources}
    mounts = container.get("volumeMounts") or ()
    if any(_is_access_name(mount) for mount in mounts):
        result["volumeMounts"] = [mount for mount in mounts if not _is_access_name(mount)]
    if container.get("env"):
        result["env"] = [
            {**variable, "valueFrom": _renamed(namespace, variable["valueFrom"])}
            if variable.get("valueFrom")
            else variable
            for variable in container["env"]
        ]
    if container.get("envFrom"):
        result["envFrom"] = [_renamed(namespace, source) for source in container["envFrom"]]
    return result


def _is_gpu(resource: str) -> bool:
    return resource == labels.GPU_RESOURCE or resource.startswith(labels.MIG_PREFIX)


def _host_volume(namespace: str, volume: Object) -> dict[str, Any]:
    result = _renamed(namespace, volume)
    if "projected" in volume:
        sources = [_renamed(namespace, s) for s in volume["projected"].get("sources") or ()]
        result["projected"] = {**volume["projected"], "sources": sources}
    return result


def _renamed(namespace: str, source: Object) -> dict[str, Any]:
    """`source` with the ConfigMap or Secret it names called as on the host."""
    result = dict(source)
    for key in (
        "configMap",
        "configMapRef",
        "configMapKeyRef",
        "secret",
        "secretRef",
        "secretKeyRef",
    ):
        named = source.get(key)
        if named and named.get(_field(named)):
            field = _field(named)
            result[key] = {**named, field: host_name(namespace, named[field])}
    return result
