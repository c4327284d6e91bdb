"""
Conversion of stored objects to the requested version of their kind.

Versions of a CRD differ in name only (conversion strategy None). Events are kept as `v1`
and shown as `events.k8s.io/v1` with that group's field names. Devices are kept as
`resource.k8s.io/v1`, autoscalers as `autoscaling/v2`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.wire.kinds import autoscalers, devices

_EVENTS = "events.k8s.io/v1"
_DEVICES_BETA = "resource.k8s.io/v1beta1"
# v1 field → events.k8s.io field
_RENAMED = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_BACK = {new: old for old, new in _RENAMED.items()}


def convert(obj: Mapping[str, Any], api_version: str) -> dict[str, Any]:
    """Return `obj` in `api_version`; unchanged parts are shared."""
    current, kind = obj.get("apiVersion"), obj.get("kind")
    if current == _EVENTS and api_version == "v1":
        return _rename(obj, _BACK, api_version)
    if current == "v1" and api_version == _EVENTS:
        return _rename(obj, _RENAMED, api_version)
    converted = {**obj, "apiVersion": api_version}
    if _DEVICES_BETA in (current, api_version):
        change = devices.from_beta if current == _DEVICES_BETA else devices.to_beta
        return change(converted)
    if kind == "HorizontalPodAutoscaler":
        change = autoscalers.to_v2 if current == "autoscaling/v1" else autoscalers.to_v1
        return change(converted)
    return converted


def _rename(obj: Mapping[str, Any], table: Mapping[str, str], api_version: str) -> dict[str, Any]:
    renamed = {table.get(key, key): value for key, value in obj.items()}
    return {**renamed, "apiVersion": api_version}
