"""
A plane's pod as the host runs it.

Every object that the pod names gets its name on the host. The pod's view of itself (its name, its
namespace, its node, its API address) stays that of its plane.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from bidplane.api import labels
from bidplane.api.kinds import Draft, Object
from bidplane.api.reading import GPULease
from bidplane.core.hosting.references import account, field_of, read_token_wish
from bidplane.core.hosting.translation import host_metadata, host_name, tokens_name
from bidplane.core.nodes.availability import TOLERATIONS

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
        "ephemeralContainers",  # added to a running pod, never created with it
    }
)
_CONFIGS = ("configMap", "configMapRef", "configMapKeyRef", "secret", "secretRef", "secretKeyRef")
# Downward API fields of the plane's pod, and the annotations of the host's pod that hold them.
_DOWNWARD_FIELDS = {
    "metadata.name": f"metadata.annotations['{labels.PLANE_NAME}']",
    "metadata.namespace": f"metadata.annotations['{labels.PLANE_NAMESPACE}']",
    "metadata.uid": f"metadata.annotations['{labels.PLANE_UID}']",
}


def host_pod(
    agent: str,
    pod: Object,
    lease: GPULease | None,
    claim: str = "",
    *,
    node: str = "",
    companion_claim: str = "",
    volume_claims: Collection[str] = (),
    api: str = "",
) -> Draft:
    """
    Return the pod for the lease's node, with the lease's devices from the claim `claim`.

    A pod without GPUs has no claim. A pod without a lease runs on a `node` whose owner offers it.
    `companion_claim` is the claim for companion devices. `volume_claims` are the plane's own volume
    claims; any other is provided by the host's owner under its own name. `api` is the plane's
    address.
    """
    spec = {key: value for key, value in pod["spec"].items() if key not in _LEFT_BEHIND}
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [_host_container(pod, container, api) for container in spec[field]]
    if {labels.GPU_FRACTION, labels.GPU_MEMORY} & set(pod["metadata"].get("annotations") or {}):
        # An annotation belongs to the pod, not to a container: as in KAI, the first has the GPU.
        first, *other_containers = spec["containers"]
        resources = {**first["resources"], "claims": [{"name": "gpus"}]}
        spec["containers"] = [{**first, "resources": resources}, *other_containers]
    namespace = pod["metadata"]["namespace"]
    if spec.get("volumes"):
        spec["volumes"] = [_host_volume(pod, volume, volume_claims) for volume in spec["volumes"]]
    if spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [
            {"name": host_name(namespace, secret["name"])}
            for secret in spec["imagePullSecrets"]
            if secret.get("name")
        ]
    spec["hostname"] = hostname(pod)
    spec["nodeName"] = lease.spec.node if lease is not None else node
    spec["automountServiceAccountToken"] = False
    spec["tolerations"] = TOLERATIONS
    spec.pop("resourceClaims", None)
    if claim:
        spec["resourceClaims"] = [{"name": "gpus", "resourceClaimName": claim}]
    if companion_claim:
        spec["resourceClaims"].append({"name": "beside", "resourceClaimName": companion_claim})
        for field in ("containers", "initContainers"):
            if spec.get(field):
                spec[field] = [_with_companion_devices(container) for container in spec[field]]
    metadata = pod_metadata(agent, pod, lease=lease.name if lease is not None else "", offer=node)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pod_metadata(agent: str, pod: Object, *, lease: str = "", offer: str = "") -> Draft:
    """
    Return a host pod's metadata, with a label for the lease that it is on, or for the host's node
    whose owner offers it.
    """
    metadata = host_metadata(agent, pod)
    # Only the plane's scheduler decides which of the two labels a pod has.
    metadata["labels"].pop(labels.OFFERED, None)
    metadata["labels"].pop(labels.LEASE, None)
    metadata["labels"] |= {labels.LEASE: lease} if lease else {labels.OFFERED: offer}
    return metadata


def _with_companion_devices(container: Object) -> Object:
    """Give the companion devices to a container that has the pod's GPUs."""
    resources = container.get("resources") or {}
    if not resources.get("claims"):
        return container
    claims = [*resources["claims"], {"name": "beside"}]
    return {**container, "resources": {**resources, "claims": claims}}


def ephemeral_containers(pod: Object, api: str) -> list[Draft]:
    """Return the pod's ephemeral containers as the host runs them."""
    containers = pod["spec"].get("ephemeralContainers") or ()
    return [_host_container(pod, container, api) for container in containers]


def hostname(pod: Object) -> str:
    """Return a pod's host name as a kubelet chooses it: its own field, or else the pod's name."""
    name = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return str(name).replace(".", "-")[:63].rstrip("-")


def _host_container(pod: Object, container: Object, api: str) -> Draft:
    """Return a container as the host runs it."""
    namespace = pod["metadata"]["namespace"]
    resources = dict(container.get("resources") or {})
    uses_gpus = bool(resources.get("claims"))
    for field in ("limits", "requests"):
        if resources.get(field):
            uses_gpus |= any(map(_is_gpu, resources[field]))
            resources[field] = {
                key: value for key, value in resources[field].items() if not _is_gpu(key)
            }
    if uses_gpus:
        resources["claims"] = [{"name": "gpus"}]
    result = {**container, "resources": resources}
    env = [*_api_variables(api, container), *(container.get("env") or ())]
    if env:
        result["env"] = [_host_variable(pod, variable) for variable in env]
    if container.get("envFrom"):
        result["envFrom"] = [_with_host_names(namespace, source) for source in container["envFrom"]]
    return result


def _api_variables(api: str, container: Object) -> list[dict[str, str]]:
    """Return the environment variables by which clients find their API, where not set already."""
    address = urlsplit(api)
    if not address.hostname:
        return []
    port = str(address.port or 443)
    defaults = {
        "KUBERNETES_SERVICE_HOST": address.hostname,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
    }
    own_names = {variable["name"] for variable in container.get("env") or ()}
    return [{"name": name, "value": defaults[name]} for name in defaults if name not in own_names]


def _host_variable(pod: Object, variable: Object) -> Object:
    """Return an environment variable with references to the plane's pod resolved or renamed."""
    source = variable.get("valueFrom")
    if not source:
        return variable
    metadata = pod["metadata"]
    plane_fields = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": account(pod),
    }
    path = (source.get("fieldRef") or {}).get("fieldPath")
    if path in plane_fields:
        return {"name": variable["name"], "value": plane_fields[path]}
    return {**variable, "valueFrom": _with_host_names(metadata["namespace"], source)}


def _is_gpu(resource: str) -> bool:
    return resource == labels.GPU_RESOURCE or resource.startswith(labels.MIG_PREFIX)


def _host_volume(pod: Object, volume: Object, claims: Collection[str]) -> Draft:
    """Return a volume with its sources named as on the host."""
    namespace = pod["metadata"]["namespace"]
    result = _with_host_names(namespace, volume)
    if volume.get("projected"):
        sources = [_host_source(pod, s) for s in volume["projected"].get("sources") or ()]
        result["projected"] = {**volume["projected"], "sources": sources}
    if volume.get("downwardAPI"):
        result["downwardAPI"] = _host_downward(volume["downwardAPI"])
    claim = volume.get("persistentVolumeClaim")
    if claim and claim["claimName"] in claims:
        name = host_name(namespace, claim["claimName"])
        result["persistentVolumeClaim"] = {**claim, "claimName": name}
    return result


def _host_source(pod: Object, source: Object) -> Draft:
    """
    Return a source of a projected volume; tokens come from a Secret, as the host has no issuer.
    """
    namespace = pod["metadata"]["namespace"]
    token = source.get("serviceAccountToken")
    if token:
        items = [{"key": read_token_wish(token).key, "path": token["path"]}]
        return {"secret": {"name": tokens_name(namespace, account(pod)), "items": items}}
    if source.get("downwardAPI"):
        return {"downwardAPI": _host_downward(source["downwardAPI"])}
    return _with_host_names(namespace, source)


def _host_downward(source: Object) -> Draft:
    """Return a downward API source that reads the plane's fields from annotations."""
    return {**source, "items": [_host_item(item) for item in source.get("items") or ()]}


def _host_item(item: Object) -> Object:
    """Return an item of a downward API source that reads the plane's field."""
    path = (item.get("fieldRef") or {}).get("fieldPath")
    if path not in _DOWNWARD_FIELDS:
        return item
    return {**item, "fieldRef": {**item["fieldRef"], "fieldPath": _DOWNWARD_FIELDS[path]}}


def _with_host_names(namespace: str, source: Object) -> Draft:
    """Return `source` with its ConfigMap or Secret named as on the host."""
    result = dict(source)
    for key in _CONFIGS:
        reference = source.get(key)
        if reference and reference.get(field_of(reference)):
            field = field_of(reference)
            result[key] = {**reference, field: host_name(namespace, reference[field])}
    return result
