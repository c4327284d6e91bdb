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
    """A claim outlives the pods that use it; the housekeeper takes the finalizer off."""
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
    made = obj["metadata"].get("creationTimestamp")
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": made}


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
    """For containers a maximum is also the default, and a default is also the request."""
    for limit in (obj.get("spec") or {}).get("limits") or ():
        if limit.get("type") != "Container":
            continue
        given = {**(limit.get("max") or {}), **(limit.get("default") or {})}
        if given:
            limit["default"] = given
        asked = {**(limit.get("min") or {}), **given, **(limit.get("defaultRequest") or {})}
        if asked:
            limit["defaultRequest"] = asked


def _default_device_request(request: dict[str, Any]) -> None:
    if request.setdefault("allocationMode", "ExactCount") == "ExactCount":
        request.setdefault("count", 1)


def _default_devices(spec: Mapping[str, Any]) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        if isinstance(request.get("exactly"), dict):
            _default_device_request(request["exactly"])
        for one in request.get("firstAvailable") or ():
            _default_device_request(one)


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
        words = (
            f'Invalid value: "{value}": a valid percent string must be a numeric string followed by'
            " an ending '%' (e.g. '1%', or '93%', regex used for validation is '[0-9]+%')"
        )
        return [Cause(words, path)]
    return []


def _budget(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    found = []
    if "minAvailable" in spec and "maxUnavailable" in spec:
        said = msgspec.json.encode(dict(spec)).decode()
        words = f"Invalid value: {said}: minAvailable and maxUnavailable cannot be both set"
        found.append(Cause(words, "spec"))
    for field in ("minAvailable", "maxUnavailable"):
        found += _share_problems(spec.get(field), f"spec.{field}")
    return found


_STANDARD = frozenset(
    (
        *("cpu", "memory", "ephemeral-storage", "pods", "services", "replicationcontrollers"),
        *("resourcequotas", "secrets", "configmaps", "persistentvolumeclaims"),
        *("services.nodeports", "services.loadbalancers"),
    )
)


def _quota(obj: Object) -> list[Cause]:
    found = []
    for name, amount in ((obj.get("spec") or {}).get("hard") or {}).items():
        path = f"spec.hard[{name}]"
        standard = name in _STANDARD or name.startswith(("requests.", "limits."))
        if "/" not in name and not standard:
            for words in ("type or fully qualified", "for quota"):
                said = f'Invalid value: "{name}": must be a standard resource {words}'
                found.append(Cause(said, path))
        if quantity.parse(amount) < 0:
            said = f'Invalid value: "{amount}": must be greater than or equal to 0'
            found.append(Cause(said, path))
    return found


_HIGHEST = 1_000_000_000  # priority of a user's own


def _priority(obj: Object) -> list[Cause]:
    name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
    if name in ("system-node-critical", "system-cluster-critical"):
        return []
    found = []
    if name.startswith("system-"):
        words = (
            "Forbidden: priority class names with 'system-' prefix are reserved for system use"
            f" only. error: {name} is not a known system priority class"
        )
        found.append(Cause(words, "metadata.name", "FieldValueForbidden"))
    if value > _HIGHEST:
        words = f"Forbidden: maximum allowed value of a user defined priority is {_HIGHEST}"
        found.append(Cause(words, "value", "FieldValueForbidden"))
    return found


def _same_priority(new: Object, old: Object) -> list[Cause]:
    if new.get("value") == old.get("value"):
        return []
    words = "Forbidden: may not be changed in an update."
    return [Cause(words, "value", "FieldValueForbidden")]


def _lease(obj: Object) -> list[Cause]:
    lasts = (obj.get("spec") or {}).get("leaseDurationSeconds")
    if lasts is None or lasts > 0:
        return []
    words = f"Invalid value: {lasts}: must be greater than 0"
    return [Cause(words, "spec.leaseDurationSeconds")]


def _same_spec(new: Object, old: Object) -> list[Cause]:
    if new.get("spec") == old.get("spec"):
        return []
    return [Cause("Invalid value: null: field is immutable", "spec")]


def _ingress(obj: Object) -> list[Cause]:
    return [
        Cause(f'Invalid value: "{host}": {words}', f"spec.rules[{at}].host")
        for at, rule in enumerate((obj.get("spec") or {}).get("rules") or ())
        if (host := rule.get("host"))
        for words in subdomain_problems(host.removeprefix("*."))
    ]


def _autoscaler(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    most, least = spec.get("maxReplicas", 0), spec.get("minReplicas", 1)
    found = []
    if most < least:
        words = f"Invalid value: {most}: must be greater than or equal to `minReplicas`"
        found.append(Cause(words, "spec.maxReplicas"))
    if most < 1:
        found.append(Cause("Required value", "spec.maxReplicas", "FieldValueRequired"))
    return found


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
