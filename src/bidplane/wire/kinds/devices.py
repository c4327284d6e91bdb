"""
resource.k8s.io/v1beta1: a request's fields stand beside its name, a device's under `basic`.

Since v1 a request's fields are under `exactly`, and a device's are its own. v1beta2 is as v1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_REQUEST = ("name", "firstAvailable")

Part = Callable[[Mapping[str, Any]], dict[str, Any]]


def from_beta(obj: dict[str, Any]) -> dict[str, Any]:
    return _convert(obj, _exactly, _plain)


def to_beta(obj: dict[str, Any]) -> dict[str, Any]:
    return _convert(obj, _flat, _basic)


def _convert(obj: dict[str, Any], request: Part, device: Part) -> dict[str, Any]:
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        return obj
    match obj.get("kind"):
        case "ResourceClaim":
            return {**obj, "spec": _claim(spec, request)}
        case "ResourceClaimTemplate" if isinstance(spec.get("spec"), Mapping):
            return {**obj, "spec": {**spec, "spec": _claim(spec["spec"], request)}}
        case "ResourceSlice" if spec.get("devices"):
            return {
                **obj,
                "spec": {**spec, "devices": [device(entry) for entry in spec["devices"]]},
            }
        case _:
            return obj


def _claim(spec: Mapping[str, Any], request: Part) -> dict[str, Any]:
    devices = spec.get("devices")
    if not isinstance(devices, Mapping) or not devices.get("requests"):
        return dict(spec)
    changed = {**devices, "requests": [request(entry) for entry in devices["requests"]]}
    return {**spec, "devices": changed}


def _exactly(request: Mapping[str, Any]) -> dict[str, Any]:
    specific = {key: value for key, value in request.items() if key not in _REQUEST}
    common = {key: request[key] for key in _REQUEST if key in request}
    return {**common, "exactly": specific} if specific else common


def _flat(request: Mapping[str, Any]) -> dict[str, Any]:
    common = {key: request[key] for key in _REQUEST if key in request}
    return {**common, **(request.get("exactly") or {})}


def _plain(device: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": device.get("name", ""), **(device.get("basic") or {})}


def _basic(device: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in device.items() if key != "name"}
    return {"name": device.get("name", ""), "basic": fields}
