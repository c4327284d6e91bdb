"""Kinds with a rule or two: volumes, policies, limits, claims, budgets, quotas, priorities."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from bidplane.wire import quantity
from bidplane.wire.kinds.rules import Object, Rules
from bidplane.wire.names import subdomain_problems
from bidplane.wire.status import Cause

CLAIM_PROTECTION = "kubernetes.io/pvc-protection"


def _protect(obj: dict[str, Any]) -> None:
    """Add the finalizer that keeps a claim while pods use it; the housekeeper removes it."""
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if CLAIM_PROTECTION not in finalizers:
        finalizers.append(CLAIM_PROTECTION)


def _default_volume(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    if "hostPath" in spec:
        spec["hostPath"].setdefault("type", "")


def _create_volume(obj: dict[str, Any]) -> None:
    created = obj["metadata"].get("creationTimestamp")
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": created}


def _default_network_policy(obj: dict[str, Any]) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or ():
            for port in rule.get("ports") or ():
                port.setdefault("protocol", "TCP")


def _default_limits(obj: dict[str, Any]) -> None:
    """Set defaults of containers: a maximum is also the default, and a default also the request."""
    for limit in (obj.get("spec") or {}).get("limits") or ():
        if limit.get("type") != "Container":
            continue
        limits = {**(limit.get("max") or {}), **(limit.get("default") or {})}
        if limits:
            limit["default"] = limits
        requests = {**(limit.get("min") or {}), **limits, **(limit.get("defaultRequest") or {})}
        if requests:
            limit["defaultRequest"] = requests


def _default_device_request(request: dict[str, Any]) -> None:
    if request.setdefault("allocationMode", "ExactCount") == "ExactCount":
        request.setdefault("count", 1)


def _default_devices(spec: Mapping[str, Any]) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        if isinstance(request.get("exactly"), dict):
            _default_device_request(request["exactly"])
        for choice in request.get("firstAvailable") or ():
            _default_device_request(choice)


def _default_claim(obj: dict[str, Any]) -> None:
    _default_devices(obj.get("spec") or {})


def _default_claim_template(obj: dict[str, Any]) -> None:
    _default_devices((obj.get("spec") or {}).get("spec") or {})


def _revision(obj: Object) -> list[Cause]:
    if obj.get("data") is None:
        return [Cause("Required value: data is mandatory", "data", "FieldValueRequired")]
    return []


def _same_revision(new: Object, old: Object) -> list[Cause]:
    if new.get("data") == old.get("data"):
        return []
    return [Cause("Invalid value: null: field is immutable", "data")]


def _share_problems(value: Any, path: str) -> list[Cause]:
    if isinstance(value, int):
        if value >= 0:
            return []
        return [Cause(f"Invalid value: {value}: must be greater than or equal to 0", path)]
    if isinstance(value, str) and not re.fullmatch(r"[0-9]+%", value):
        message = (
            f'Invalid value: "{value}": a valid percent string must be a numeric string followed by'
            " an ending '%' (e.g. '1%', or '93%', regex used for validation is '[0-9]+%')"
        )
        return [Cause(message, path)]
    return []


def _budget(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    causes = []
    if "minAvailable" in spec and "maxUnavailable" in spec:
        encoded = msgspec.json.encode(dict(spec)).decode()
        message = f"Invalid value: {encoded}: minAvailable and maxUnavailable cannot be both set"
        causes.append(Cause(message, "spec"))
    for field in ("minAvailable", "maxUnavailable"):
        causes += _share_problems(spec.get(field), f"spec.{field}")
    return causes


_STANDARD = frozenset(
    (
        *("cpu", "memory", "ephemeral-storage", "pods", "services", "replicationcontrollers"),
        *("resourcequotas", "secrets", "configmaps", "persistentvolumeclaims"),
        *("services.nodeports", "services.loadbalancers"),
    )
)


def _quota(obj: Object) -> list[Cause]:
    causes = []
    for name, amount in ((obj.get("spec") or {}).get("hard") or {}).items():
        path = f"spec.hard[{name}]"
        standard = name in _STANDARD or name.startswith(("requests.", "limits."))
        if "/" not in name and not standard:
            for rule in ("type or fully qualified", "for quota"):
                message = f'Invalid value: "{name}": must be a standard resource {rule}'
                causes.append(Cause(message, path))
        if quantity.parse(amount) < 0:
            message = f'Invalid value: "{amount}": must be greater than or equal to 0'
            causes.append(Cause(message, path))
    return causes


_HIGHEST = 1_000_000_000  # the highest priority that a user may define


def _priority(obj: Object) -> list[Cause]:
    name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
    if name in ("system-node-critical", "system-cluster-critical"):
        return []
    causes = []
    if name.startswith("system-"):
        message = (
            "Forbidden: priority class names with 'system-' prefix are reserved for system use"
            f" only. error: {name} is not a known system priority class"
        )
        causes.append(Cause(message, "metadata.name", "FieldValueForbidden"))
    if value > _HIGHEST:
        message = f"Forbidden: maximum allowed value of a user defined priority is {_HIGHEST}"
        causes.append(Cause(message, "value", "FieldValueForbidden"))
    return causes


def _same_priority(new: Object, old: Object) -> list[Cause]:
    """Refuse an update that changes the value of a PriorityClass."""
    if new.get("value") == old.get("value"):
        return []
    message = "Forbidden: may not be changed in an update."
    return [Cause(message, "value", "FieldValueForbidden")]


def _lease(obj: Object) -> list[Cause]:
    seconds = (obj.get("spec") or {}).get("leaseDurationSeconds")
    if seconds is None or seconds > 0:
        return []
    message = f"Invalid value: {seconds}: must be greater than 0"
    return [Cause(message, "spec.leaseDurationSeconds")]


def _same_spec(new: Object, old: Object) -> list[Cause]:
    if new.get("spec") == old.get("spec"):
        return []
    return [Cause("Invalid value: null: field is immutable", "spec")]


def _ingress(obj: Object) -> list[Cause]:
    return [
        Cause(f'Invalid value: "{host}": {problem}', f"spec.rules[{index}].host")
        for index, rule in enumerate((obj.get("spec") or {}).get("rules") or ())
        if (host := rule.get("host"))
        for problem in subdomain_problems(host.removeprefix("*."))
    ]


def _autoscaler(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    highest, lowest = spec.get("maxReplicas", 0), spec.get("minReplicas", 1)
    causes = []
    if highest < lowest:
        message = f"Invalid value: {highest}: must be greater than or equal to `minReplicas`"
        causes.append(Cause(message, "spec.maxReplicas"))
    if highest < 1:
        causes.append(Cause("Required value", "spec.maxReplicas", "FieldValueRequired"))
    return causes


BUDGET = Rules(validate=_budget)
QUOTA = Rules(validate=_quota)
PRIORITY = Rules(validate=_priority, change=_same_priority)
LEASE = Rules(validate=_lease)
INGRESS = Rules(validate=_ingress)
AUTOSCALER = Rules(validate=_autoscaler)
VOLUME = Rules(default=_default_volume, create=_create_volume)
VOLUME_CLAIM = Rules(create=_protect)
NETWORK_POLICY = Rules(default=_default_network_policy, generation=True)
LIMIT_RANGE = Rules(default=_default_limits)
DEVICE_CLAIM = Rules(default=_default_claim, change=_same_spec)
DEVICE_CLAIM_TEMPLATE = Rules(default=_default_claim_template)
REVISION = Rules(validate=_revision, change=_same_revision)
