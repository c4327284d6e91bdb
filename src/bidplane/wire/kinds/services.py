"""Services: fields that depend on their type. The plane assigns addresses and ports."""

from __future__ import annotations

from typing import Any

from bidplane.wire.kinds.rules import Object, Rules
from bidplane.wire.names import label_problems
from bidplane.wire.status import Cause

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
OUTSIDE = ("NodePort", "LoadBalancer")


def _default(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    kind = spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if spec["sessionAffinity"] == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {})
        config.setdefault("clientIP", {}).setdefault("timeoutSeconds", 10800)
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port", 0)
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        if not spec.get("clusterIPs") and spec.get("clusterIP"):
            spec["clusterIPs"] = [spec["clusterIP"]]
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
    if kind in OUTSIDE:
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)


def _create(obj: dict[str, Any]) -> None:
    obj["status"] = {"loadBalancer": {}}


def _validate(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    kind, ports = spec.get("type"), spec.get("ports") or ()
    causes = []
    if kind not in TYPES:
        allowed = ", ".join(f'"{type_name}"' for type_name in TYPES)
        message = f'Unsupported value: "{kind}": supported values: {allowed}'
        causes.append(Cause(message, "spec.type", "FieldValueNotSupported"))
    if kind == "ExternalName" and not spec.get("externalName"):
        causes.append(Cause("Required value", "spec.externalName", "FieldValueRequired"))
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        causes.append(Cause("Required value", "spec.ports", "FieldValueRequired"))
    names: set[str] = set()
    for index, port in enumerate(ports):
        name, number = port.get("name", ""), port.get("port", 0)
        path = f"spec.ports[{index}]"
        if not name and len(ports) > 1:
            causes.append(Cause("Required value", f"{path}.name", "FieldValueRequired"))
        elif name and name in names:
            message = f'Duplicate value: "{name}"'
            causes.append(Cause(message, f"{path}.name", "FieldValueDuplicate"))
        names.add(name)
        if not 0 < number < 65536:
            message = f"Invalid value: {number}: must be between 1 and 65535, inclusive"
            causes.append(Cause(message, f"{path}.port"))
    return causes


def _change(new: Object, old: Object) -> list[Cause]:
    before, after = old.get("spec") or {}, new.get("spec") or {}
    unchanged = before.get("clusterIP") == after.get("clusterIP")
    if (
        unchanged
        or not before.get("clusterIP")
        or "ExternalName" in (before["type"], after["type"])
    ):
        return []
    encoded = str(after.get("clusterIPs") or []).replace("'", '"')
    message = f"Invalid value: {encoded}: may not change once set"
    return [Cause(message, "spec.clusterIPs[0]")]


RULES = Rules(
    default=_default, create=_create, validate=_validate, change=_change, name=label_problems
)
