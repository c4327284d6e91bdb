"""
DRA's binding conditions: devices that must be prepared before a pod is bound.

As kube-scheduler does it: a claim's allocation has its time and names the conditions that the
driver of its devices will report. The pod waits until all of them are true. The allocation is given
up when a failure condition is true, or after ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from bidplane.api.kinds import Object
from bidplane.api.lease import DeviceRef
from bidplane.api.times import parse_rfc3339, rfc3339

TIMEOUT_SECONDS = 600.0  # the default `bindingTimeout` of kube-scheduler's DynamicResources
FIELDS = ("bindingConditions", "bindingFailureConditions")

DeviceKey = tuple[str, str, str]  # driver, pool, name


class Preparing(msgspec.Struct, frozen=True):
    """The claim's devices are not prepared yet."""

    message: str


class GivenUp(msgspec.Struct, frozen=True):
    """The claim's devices could not be prepared."""

    message: str


def progress(claim: Object, *, now: float) -> Preparing | GivenUp | None:
    """Return the state of an allocated claim's preparation; None when nothing is waited for."""
    status = claim.get("status") or {}
    allocation = status.get("allocation") or {}
    true_conditions = {
        (device_status["driver"], device_status["pool"], device_status["device"]): {
            condition["type"]
            for condition in device_status.get("conditions") or ()
            if condition.get("status") == "True"
        }
        for device_status in status.get("devices") or ()
    }
    outcome: Preparing | GivenUp | None = None
    for result in (allocation.get("devices") or {}).get("results") or ():
        device = f"{result['pool']}/{result['device']}"
        reported = true_conditions.get((result["driver"], result["pool"], result["device"]), set())
        failed = reported & set(result.get("bindingFailureConditions") or ())
        if failed:
            return GivenUp(f"{device} could not be prepared: {', '.join(sorted(failed))}")
        missing = set(result.get("bindingConditions") or ()) - reported
        if missing and outcome is None:
            detail = f"its driver has not reported {', '.join(sorted(missing))} yet"
            since = allocation.get("allocationTimestamp")
            if since and now >= parse_rfc3339(since) + TIMEOUT_SECONDS:
                outcome = GivenUp(f"{device} was not prepared in {TIMEOUT_SECONDS:.0f} s: {detail}")
            else:
                outcome = Preparing(f"{device} is allocated, and {detail}")
    return outcome


def stamped(allocation: dict[str, Any], *, now: float) -> dict[str, Any]:
    """Return the allocation with the time, if it waits for binding conditions."""
    results = (allocation.get("devices") or {}).get("results") or ()
    if not any(result.get("bindingConditions") for result in results):
        return allocation
    since = rfc3339(now)
    return {**allocation, "allocationTimestamp": since}


def required_by(
    devices: Iterable[DeviceRef], slices: Iterable[Object]
) -> dict[DeviceKey, dict[str, list[str]]]:
    """Return the binding conditions that drivers set for a lease's devices, by device."""
    keys = {(device.driver, device.pool, device.name) for device in devices}
    pools = {key[:2] for key in keys}
    conditions = {}
    for slice_ in slices:
        spec = slice_["spec"]
        if (spec["driver"], spec["pool"]["name"]) not in pools:
            continue
        for device in spec.get("devices") or ():
            key = spec["driver"], spec["pool"]["name"], device["name"]
            fields_of_device = device.get("basic") or device
            fields = {
                field: list(fields_of_device[field])
                for field in FIELDS
                if fields_of_device.get(field)
            }
            if fields and key in keys:
                conditions[key] = fields
    return conditions
