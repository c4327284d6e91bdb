"""
What a server adds to an object from what else it holds: addresses of Services, and what every pod
carries (its account's token, the certificate to trust, patience with a node that is away).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from bidplane.plane.feed import Key
from bidplane.plane.plane import Plane
from bidplane.wire import status
from bidplane.wire.kinds.services import OUTSIDE
from bidplane.wire.status import About, Cause

# As most installers choose them. The addresses are the plane's own: nobody else routes them.
ADDRESSES = ipaddress.ip_network("10.96.0.0/16")
NODE_PORTS = range(30000, 32768)
_API = ipaddress.ip_address("10.96.0.1")  # upstream's own service has it
ROOT_CA = "kube-root-ca.crt"
MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
ACCESS = "kube-api-access-"
_TOKEN_SECONDS = 3607
_PATIENCE_SECONDS = 300
_AWAY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
# What every pod carries, held once for all of them: nobody changes what a store holds.
_PATIENCE = {
    key: {
        "key": key,
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": _PATIENCE_SECONDS,
    }
    for key in _AWAY
}
_NAMESPACE = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
_PROJECTED = {
    "sources": [
        {"serviceAccountToken": {"expirationSeconds": _TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": _NAMESPACE}]}},
    ],
    "defaultMode": 0o644,
}

Object = Mapping[str, Any]


def admit(plane: Plane, storage: str, obj: dict[str, Any], old: Object | None) -> None:
    if storage == "pods" and old is None:
        _furnish_pod(plane, obj)
    elif storage == "services":
        _address(plane, obj, old)


# Services.


def _address(plane: Plane, obj: dict[str, Any], old: Object | None) -> None:
    spec = obj["spec"]
    before: Object = (old.get("spec") or {}) if old is not None else {}
    if spec["type"] == "ExternalName":
        for field in ("clusterIP", "clusterIPs"):
            spec.pop(field, None)
        return
    if not spec.get("clusterIP"):
        # A PUT that leaves out what the server gave keeps it.
        spec["clusterIP"] = before.get("clusterIP") or _free_address(plane)
    spec["clusterIPs"] = [spec["clusterIP"]]
    if spec["type"] in OUTSIDE:
        _open_ports(plane, obj, spec, before)
    elif before.get("type") in OUTSIDE:
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)


def _open_ports(plane: Plane, obj: Object, spec: dict[str, Any], before: Object) -> None:
    if spec["type"] == "LoadBalancer" and not spec.get("allocateLoadBalancerNodePorts", True):
        return
    meta = obj["metadata"]
    taken = {
        port["nodePort"]
        for service in plane.store.items("services")
        if (service.key.namespace, service.key.name) != (meta.get("namespace"), meta.get("name"))
        for port in service.obj["spec"].get("ports") or ()
        if "nodePort" in port
    }
    had = {
        (port.get("name", ""), port.get("port")): port["nodePort"]
        for port in before.get("ports") or ()
        if "nodePort" in port
    }
    for at, port in enumerate(spec.get("ports") or ()):
        number = port.get("nodePort") or had.get((port.get("name", ""), port.get("port")))
        if not number:
            number = plane.pick([one for one in NODE_PORTS if one not in taken])
        elif number in taken:
            about = About("services", "", str(meta.get("name", "")), "Service")
            words = f"Invalid value: {number}: provided port is already allocated"
            raise status.invalid(about, [Cause(words, f"spec.ports[{at}].nodePort")])
        port["nodePort"] = number
        taken.add(number)


def _free_address(plane: Plane) -> str:
    taken = {service.obj["spec"].get("clusterIP") for service in plane.store.items("services")}
    taken.add(str(_API))
    first, last = int(ADDRESSES.network_address) + 1, int(ADDRESSES.broadcast_address) - 1
    while True:
        found = str(ipaddress.ip_address(plane.pick(range(first, last + 1))))
        if found not in taken:
            return found


# Pods.


def _furnish_pod(plane: Plane, pod: dict[str, Any]) -> None:
    spec, meta = pod["spec"], pod["metadata"]
    key = Key("serviceaccounts", meta.get("namespace", ""), spec["serviceAccountName"])
    account = plane.store.latest(key)
    if account is not None:
        pulls = account.obj.get("imagePullSecrets")
        if pulls and not spec.get("imagePullSecrets"):
            spec["imagePullSecrets"] = list(pulls)
        wanted = spec.get("automountServiceAccountToken")
        if wanted is None:
            wanted = account.obj.get("automountServiceAccountToken", True)
        if wanted:
            _mount_token(plane, spec)
    held = list(spec.get("tolerations") or ())
    for key_ in _AWAY:
        if not any(_tolerates(one, key_) for one in held):
            held.append(_PATIENCE[key_])
    spec["tolerations"] = held


def _tolerates(toleration: Object, key: str) -> bool:
    return toleration.get("key") in (key, None, "") and toleration.get("effect") in (
        "NoExecute",
        None,
        "",
    )


def _mount_token(plane: Plane, spec: dict[str, Any]) -> None:
    volumes = spec.get("volumes") or []
    there = next((one["name"] for one in volumes if _is_access(one)), None)
    name = there or f"{ACCESS}{plane.new_suffix()}"
    used = False
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or ():
            mounts = container.get("volumeMounts") or []
            if any(mount.get("mountPath") == MOUNT for mount in mounts):
                continue  # its author has something else there
            mount = {"name": name, "readOnly": True, "mountPath": MOUNT}
            container["volumeMounts"] = [*mounts, mount]
            used = True
    if used and there is None:
        spec["volumes"] = [*volumes, _access(name)]


def _is_access(volume: Object) -> bool:
    return str(volume.get("name", "")).startswith(ACCESS) and "projected" in volume


def _access(name: str) -> dict[str, Any]:
    return {"name": name, "projected": _PROJECTED}
