"""
Devices that must be prepared before a pod is bound: DRA's binding conditions.

As kube-scheduler does: a claim's allocation names the conditions its devices' driver will report,
and when it was made. The pod waits until all are true. When one of failure is, or after ten
minutes, the allocation is given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from bidplane.api.kinds import Object

TIMEOUT_SECONDS = 600.0  # `bindingTimeout` of kube-scheduler's DynamicResources, as it comes
FIELDS = ("bindingConditions", "bindingFailureConditions")

DeviceKey = tuple[str, str, str]  # driver, pool, name


class Preparing(msgspec.Struct, frozen=True):
    message: str


class GivenUp(msgspec.Struct, frozen=True):
    message: str


def progress(claim: Object, *, now: float) -> Preparing | GivenUp | None:
    """How far the devices of an allocated claim are; None when nothing is waited for."""
    status = claim.get("status") or {}
    allocation = status.get("allocation") or {}
    said = {
        (one["driver"], one["pool"], one["device"]): {
            condition["type"]
            for condition in one.get("conditions") or ()
            if condition.get("status") == "True"
        }
        for one in status.get("devices") or ()
    }
    waits: Preparing | GivenUp | None = None
    for result in (allocation.get("devices") or {}).get("results") or ():
        device = f"{result['pool']}/{result['device']}"
        true = said.get((result["driver"], result["pool"], result["device"]), set())
        failed = true & set(result.get("bindingFailureConditions") or ())
        if failed:
            return GivenUp(f"{device} could not be prepared: {', '.join(sorted(failed))}")
        missing = set(result.get("bindingConditions") or ()) - true
        if missing and waits is None:
            words = f"its driver has not said yet: {', '.join(sorted(missing))}"
            since = allocation.get("allocationTimestamp")
            if since and now >= _seconds(since) + TIMEOUT_SECONDS:
                waits = GivenUp(f"{device} was not prepared in {TIMEOUT_SECONDS:.0f} s: {words}")
            else:
                waits = Preparing(f"{device} is allocated, and {words}")
    return waits


def stamped(allocation: dict[str, Any], *, now: float) -> dict[str, Any]:
    """An allocation that is waited for says since when."""
    results = (allocation.get("devices") or {}).get("results") or ()
    if not any(result.get("bindingConditions") for result in results):
        return allocation
    since = datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**allocation, "allocationTimestamp": since}


def asked_of(
    devices: Iterable[Object], slices: Iterable[Object]
) -> dict[DeviceKey, dict[str, list[str]]]:
    """Of a lease's devices that have any, the conditions that their drivers set."""
    wanted = {(one["driver"], one["pool"], one["name"]) for one in devices}
    pools = {key[:2] for key in wanted}
    found = {}
    for piece in slices:
        spec = piece["spec"]
        if (spec["driver"], spec["pool"]["name"]) not in pools:
            continue
        for device in spec.get("devices") or ():
            key = spec["driver"], spec["pool"]["name"], device["name"]
            own = device.get("basic") or device
            fields = {field: list(own[field]) for field in FIELDS if own.get(field)}
            if fields and key in wanted:
                found[key] = fields
    return found


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
