"""Kinds with a rule or two: volumes, network policies, limits, device claims, revisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.wire.kinds.rules import Object, Rules
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


VOLUME = Rules(default=_default_volume, create=_create_volume)
VOLUME_CLAIM = Rules(create=_protect)
NETWORK_POLICY = Rules(default=_default_network_policy, generation=True)
LIMIT_RANGE = Rules(default=_default_limits)
DEVICE_CLAIM = Rules(default=_default_claim)
DEVICE_CLAIM_TEMPLATE = Rules(default=_default_claim_template)
REVISION = Rules(validate=_revision, change=_same_revision)
