"""
A plane's pod as the host runs it: everything it names is called as it is there, and what it
learns of itself (its name, its namespace, its node, its way to the API) is its plane's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.core.nodestate import TOLERATIONS
from bidplane.core.references import account, field_of, wish
from bidplane.core.translation import host_metadata, host_name, tokens_name

# The plane's service accounts, scheduler and priorities mean nothing on the host.
_LEFT_BEHIND = frozenset(
    {
        "nodeName",
        "nodeSelector",
        "affinity",
        "tolerations",
        "schedulerName",
        "schedulingGroup",
        "serviceAccount",
        "serviceAccountName",
        "priority",
        "priorityClassName",
        "preemptionPolicy",
        "ephemeralContainers",  # no pod is created with any: they join it
    }
)
_CONFIGS = ("configMap", "configMapRef", "configMapKeyRef", "secret", "secretRef", "secretKeyRef")
# Where the host's pod has what its plane's pod would read of itself, in a file.
_ITSELF = {
    "metadata.name": f"metadata.annotations['{labels.PLANE_NAME}']",
    "metadata.namespace": f"metadata.annotations['{labels.PLANE_NAMESPACE}']",
    "metadata.uid": f"metadata.annotations['{labels.PLANE_UID}']",
}


def host_pod(
    agent: str,
    pod: Object,
    lease: Object,
    claim: str = "",
    *,
    beside: str = "",
    volume_claims: Collection[str] = (),
    api: str = "",
) -> dict[str, Any]:
    """
    On the lease's node, with the lease's devices claimed; or with those of `claim`, where the
    pod's own claims have only some of them. `volume_claims` are those its plane has: any other
    is one the host's owner keeps for it, under its own name. `api` is the plane's address.
    `beside` is the claim for what it has that is no GPU.
    """
    spec = {key: value for key, value in pod["spec"].items() if key not in _LEFT_BEHIND}
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [_container(pod, container, api) for container in spec[field]]
    if {labels.GPU_FRACTION, labels.GPU_MEMORY} & set(pod["metadata"].get("annotations") or {}):
        # An annotation is the pod's, not a container's: as in KAI, the first one has the GPU.
        first, *others = spec["containers"]
        resources = {**first["resources"], "claims": [{"name": "gpus"}]}
        spec["containers"] = [{**first, "resources": resources}, *others]
    namespace = pod["metadata"]["namespace"]
    if spec.get("volumes"):
        spec["volumes"] = [_volume(pod, volume, volume_claims) for volume in spec["volumes"]]
    if spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [
            {"name": host_name(namespace, secret["name"])}
            for secret in spec["imagePullSecrets"]
            if secret.get("name")
        ]
    spec["hostname"] = hostname(pod)
    spec["nodeName"] = lease["spec"]["node"]
    spec["automountServiceAccountToken"] = False
    spec["tolerations"] = TOLERATIONS
    name = claim or lease["metadata"]["name"]
    spec["resourceClaims"] = [{"name": "gpus", "resourceClaimName": name}]
    if beside:
        spec["resourceClaims"].append({"name": "beside", "resourceClaimName": beside})
        for field in ("containers", "initContainers"):
            if spec.get(field):
                spec[field] = [_with_beside(container) for container in spec[field]]
    metadata = host_metadata(agent, pod)
    metadata["labels"][labels.LEASE] = lease["metadata"]["name"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _with_beside(container: Object) -> Object:
    """Who has the pod's GPUs has what is beside them."""
    resources = container.get("resources") or {}
    if not resources.get("claims"):
        return container
    claims = [*resources["claims"], {"name": "beside"}]
    return {**container, "resources": {**resources, "claims": claims}}


def ephemeral_containers(pod: Object, api: str) -> list[dict[str, Any]]:
    """Those that joined the pod, as the host runs them."""
    found = pod["spec"].get("ephemeralContainers") or ()
    return [_container(pod, container, api) for container in found]


def hostname(pod: Object) -> str:
    """As a kubelet names it: after the pod, unless it says otherwise."""
    said = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return str(said).replace(".", "-")[:63].rstrip("-")


def _container(pod: Object, container: Object, api: str) -> dict[str, Any]:
    namespace = pod["metadata"]["namespace"]
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
    env = [*_way_to(api, container), *(container.get("env") or ())]
    if env:
        result["env"] = [_variable(pod, variable) for variable in env]
    if container.get("envFrom"):
        result["envFrom"] = [_renamed(namespace, source) for source in container["envFrom"]]
    return result


def _way_to(api: str, container: Object) -> list[dict[str, str]]:
    """Where its plane is, as clients look for it; what its author says stays."""
    address = urlsplit(api)
    if not address.hostname:
        return []
    port = str(address.port or 443)
    ours = {
        "KUBERNETES_SERVICE_HOST": address.hostname,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
    }
    said = {variable["name"] for variable in container.get("env") or ()}
    return [{"name": name, "value": ours[name]} for name in ours if name not in said]


def _variable(pod: Object, variable: Object) -> Object:
    source = variable.get("valueFrom")
    if not source:
        return variable
    metadata = pod["metadata"]
    itself = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": account(pod),
    }
    path = (source.get("fieldRef") or {}).get("fieldPath")
    if path in itself:
        return {"name": variable["name"], "value": itself[path]}
    return {**variable, "valueFrom": _renamed(metadata["namespace"], source)}


def _is_gpu(resource: str) -> bool:
    return resource == labels.GPU_RESOURCE or resource.startswith(labels.MIG_PREFIX)


def _volume(pod: Object, volume: Object, claims: Collection[str]) -> dict[str, Any]:
    namespace = pod["metadata"]["namespace"]
    result = _renamed(namespace, volume)
    if volume.get("projected"):
        sources = [_source(pod, s) for s in volume["projected"].get("sources") or ()]
        result["projected"] = {**volume["projected"], "sources": sources}
    if volume.get("downwardAPI"):
        result["downwardAPI"] = _downward(volume["downwardAPI"])
    claim = volume.get("persistentVolumeClaim")
    if claim and claim["claimName"] in claims:
        name = host_name(namespace, claim["claimName"])
        result["persistentVolumeClaim"] = {**claim, "claimName": name}
    return result


def _source(pod: Object, source: Object) -> dict[str, Any]:
    """Of a projected volume. The host cannot make a plane's tokens: it is given them."""
    namespace = pod["metadata"]["namespace"]
    token = source.get("serviceAccountToken")
    if token:
        items = [{"key": wish(token).key, "path": token["path"]}]
        return {"secret": {"name": tokens_name(namespace, account(pod)), "items": items}}
    if source.get("downwardAPI"):
        return {"downwardAPI": _downward(source["downwardAPI"])}
    return _renamed(namespace, source)


def _downward(source: Object) -> dict[str, Any]:
    return {**source, "items": [_item(item) for item in source.get("items") or ()]}


def _item(item: Object) -> Object:
    path = (item.get("fieldRef") or {}).get("fieldPath")
    if path not in _ITSELF:
        return item
    return {**item, "fieldRef": {**item["fieldRef"], "fieldPath": _ITSELF[path]}}


def _renamed(namespace: str, source: Object) -> dict[str, Any]:
    """`source` with the ConfigMap or Secret it names called as on the host."""
    result = dict(source)
    for key in _CONFIGS:
        named = source.get(key)
        if named and named.get(field_of(named)):
            field = field_of(named)
            result[key] = {**named, field: host_name(namespace, named[field])}
    return result
