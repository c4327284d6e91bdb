"""
Server-side defaults that depend on other objects: addresses and node ports of Services, and for
pods the account's token, the cluster's certificate and tolerations of a node that is away.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from bidplane.api.kinds import Object
from bidplane.plane.plane import Plane
from bidplane.plane.storage import baseline
from bidplane.plane.storage.feed import Key
from bidplane.wire import status
from bidplane.wire.kinds.services import OUTSIDE
from bidplane.wire.status import About, Cause

# As most installers choose them. The addresses are the plane's own: nobody else routes them.
ADDRESSES = ipaddress.ip_network("10.96.0.0/16")
NODE_PORTS = range(30000, 32768)
ROOT_CA = "kube-root-ca.crt"
MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
ACCESS = "kube-api-access-"
_TOKEN_SECONDS = 3607
_AWAY_SECONDS = 300
_AWAY_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
# One copy for all pods: stored objects are never changed in place.
_TOLERATIONS = {
    key: {
        "key": key,
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": _AWAY_SECONDS,
    }
    for key in _AWAY_TAINTS
}
_NAMESPACE = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
_TOKEN_SOURCES = {
    "sources": [
        {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": _NAMESPACE}]}},
    ],
    "defaultMode": 0o644,
}


def admit(plane: Plane, storage: str, obj: dict[str, Any], old: Object | None) -> None:
    """Set the fields that the server itself chooses for a new pod, or for a Service."""
    if storage == "pods" and old is None:
        _complete_pod(plane, obj)
    elif storage == "services":
        _assign_address(plane, obj, old)


# Services.


def _assign_address(plane: Plane, obj: dict[str, Any], old: Object | None) -> None:
    """Keep, check or choose the cluster address of a Service, and its node ports."""
    spec = obj["spec"]
    before: Object = (old.get("spec") or {}) if old is not None else {}
    if spec["type"] == "ExternalName":
        for field in ("clusterIP", "clusterIPs"):
            spec.pop(field, None)
        return
    if not spec.get("clusterIP"):
        # A PUT without the address keeps the one that the server chose.
        spec["clusterIP"] = before.get("clusterIP") or _free_address(plane)
    elif spec["clusterIP"] not in ("None", before.get("clusterIP")):
        _require_free(plane, obj, spec["clusterIP"])
    spec["clusterIPs"] = [spec["clusterIP"]]
    if spec["type"] in OUTSIDE:
        _assign_node_ports(plane, obj, spec, before)
    elif before.get("type") in OUTSIDE:
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)


def _assign_node_ports(plane: Plane, obj: Object, spec: dict[str, Any], before: Object) -> None:
    """Keep or choose a node port for each port of a Service; raise 422 for a port in use."""
    if spec["type"] == "LoadBalancer" and not spec.get("allocateLoadBalancerNodePorts", True):
        return
    meta = obj["metadata"]
    used_ports = {
        port["nodePort"]
        for service in plane.store.items("services")
        if (service.key.namespace, service.key.name) != (meta.get("namespace"), meta.get("name"))
        for port in service.obj["spec"].get("ports") or ()
        if "nodePort" in port
    }
    earlier_ports = {
        (port.get("name", ""), port.get("port")): port["nodePort"]
        for port in before.get("ports") or ()
        if "nodePort" in port
    }
    for index, port in enumerate(spec.get("ports") or ()):
        number = port.get("nodePort") or earlier_ports.get((port.get("name", ""), port.get("port")))
        if not number:
            number = plane.pick([free for free in NODE_PORTS if free not in used_ports])
        elif number in used_ports:
            about = About("services", "", str(meta.get("name", "")), "Service")
            message = f"Invalid value: {number}: provided port is already allocated"
            raise status.invalid(about, [Cause(message, f"spec.ports[{index}].nodePort")])
        port["nodePort"] = number
        used_ports.add(number)


def _require_free(plane: Plane, service: Object, address: str) -> None:
    """Raise 422 when another Service has the address."""
    meta = service["metadata"]
    about = About("services", "", str(meta.get("name", "")), "Service")
    for other in plane.store.items("services"):
        is_same = (other.key.namespace, other.key.name) == (meta.get("namespace"), meta.get("name"))
        if not is_same and other.obj["spec"].get("clusterIP") == address:
            message = f"failed to allocate IP {address}: provided IP is already allocated"
            cause = Cause(f'Invalid value: ["{address}"]: {message}', "spec.clusterIPs")
            raise status.invalid(about, [cause])


def _free_address(plane: Plane) -> str:
    """Return a random cluster address that no Service has."""
    used_addresses = {
        service.obj["spec"].get("clusterIP") for service in plane.store.items("services")
    }
    used_addresses.add(baseline.API_ADDRESS)  # also when its Service was deleted
    first, last = int(ADDRESSES.network_address) + 1, int(ADDRESSES.broadcast_address) - 1
    while True:
        address = str(ipaddress.ip_address(plane.pick(range(first, last + 1))))
        if address not in used_addresses:
            return address


# Pods.


def _complete_pod(plane: Plane, pod: dict[str, Any]) -> None:
    """Give a pod its account's pull secrets and token, and the tolerations every pod has."""
    spec, meta = pod["spec"], pod["metadata"]
    account_key = Key("serviceaccounts", meta.get("namespace", ""), spec["serviceAccountName"])
    account = plane.store.latest(account_key)
    if account is not None:
        pull_secrets = account.obj.get("imagePullSecrets")
        if pull_secrets and not spec.get("imagePullSecrets"):
            spec["imagePullSecrets"] = list(pull_secrets)
        mounts_token = spec.get("automountServiceAccountToken")
        if mounts_token is None:
            mounts_token = account.obj.get("automountServiceAccountToken", True)
        if mounts_token:
            _mount_token(plane, spec)
    tolerations = list(spec.get("tolerations") or ())
    for taint in _AWAY_TAINTS:
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            tolerations.append(_TOLERATIONS[taint])
    spec["tolerations"] = tolerations


def _tolerates(toleration: Object, key: str) -> bool:
    return toleration.get("key") in (key, None, "") and toleration.get("effect") in (
        "NoExecute",
        None,
        "",
    )


def _mount_token(plane: Plane, spec: dict[str, Any]) -> None:
    """Mount the account's token in every container that mounts nothing else at that path."""
    volumes = spec.get("volumes") or []
    existing = next((volume["name"] for volume in volumes if _is_token_volume(volume)), None)
    name = existing or f"{ACCESS}{plane.new_suffix()}"
    is_mounted = False
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or ():
            mounts = container.get("volumeMounts") or []
            if any(mount.get("mountPath") == MOUNT for mount in mounts):
                continue  # the author mounts something else there
            mount = {"name": name, "readOnly": True, "mountPath": MOUNT}
            container["volumeMounts"] = [*mounts, mount]
            is_mounted = True
    if is_mounted and existing is None:
        spec["volumes"] = [*volumes, _token_volume(name)]


def _is_token_volume(volume: Object) -> bool:
    return str(volume.get("name", "")).startswith(ACCESS) and "projected" in volume


def _token_volume(name: str) -> dict[str, Any]:
    return {"name": name, "projected": _TOKEN_SOURCES}
