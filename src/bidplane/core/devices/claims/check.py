"""
Verification of an allocation, whoever made it. It is written independently of the search, so that
each can be tested against the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from bidplane.api.kinds import Object
from bidplane.core.devices.claims import capacity
from bidplane.core.devices.claims.model import (
    MOST_DEVICES,
    AllocatedDevices,
    Claim,
    Device,
    DeviceId,
    DeviceRequest,
    PoolId,
    matches_node,
    value_key,
)
from bidplane.core.devices.claims.pools import SlicePool
from bidplane.core.devices.claims.search import tolerates
from bidplane.core.devices.claims.selecting import DeviceMatcher
from bidplane.wire.quantity import parse


def problems(
    claims: Sequence[Claim],
    allocations: Sequence[Object],
    *,
    node: str,
    labels: Mapping[str, str],
    pools: Sequence[SlicePool],
    matcher: DeviceMatcher,
    allocated: AllocatedDevices,
) -> list[str]:
    """Return a sentence for each rule that the allocations break together; [] if they are right."""
    devices = {device.id: device for pool in pools if pool.is_usable for device in pool.devices}
    broken_rules: list[str] = []
    grants: list[tuple[int, DeviceRequest, Device, Object]] = []
    for index, (claim, allocation) in enumerate(zip(claims, allocations, strict=True)):
        results = allocation["devices"]["results"]
        if len(results) > MOST_DEVICES:
            broken_rules.append(f"{claim.name}: {len(results)} devices")
        requests = {r.full_name: r for choices in claim.requests for r in choices}
        for result in results:
            id = DeviceId(result["driver"], result["pool"], result["device"])
            request = requests.get(result["request"])
            if request is None or id not in devices:
                broken_rules.append(
                    f"{claim.name}: {result['request']} got {id}, which is not there"
                )
                continue
            grants.append((index, request, devices[id], result))
    for index, claim in enumerate(claims):
        claim_grants = [
            (request, device) for claim_index, request, device, _ in grants if claim_index == index
        ]
        broken_rules += _claim_problems(claim, claim_grants, devices, matcher, node, labels)
    broken_rules += _device_problems(grants, allocated)
    broken_rules += counter_problems(grants, pools, allocated)
    return broken_rules


def _claim_problems(
    claim: Claim,
    grants: Sequence[tuple[DeviceRequest, Device]],
    all_devices: Mapping[DeviceId, Device],
    matcher: DeviceMatcher,
    node: str,
    labels: Mapping[str, str],
) -> Iterator[str]:
    """Yield the rules that one claim's allocation breaks."""
    for choices in claim.requests:
        used_choices = [choice for choice in choices if any(r is choice for r, _ in grants)]
        if len(used_choices) != 1:
            name = choices[0].base_name
            yield f"{claim.name}: {name} was given {len(used_choices)} of its choices"
            continue
        request = used_choices[0]
        devices = [device for r, device in grants if r is request]
        if len({device.id for device in devices}) != len(devices):
            yield f"{claim.name}: {request.full_name} has one device twice"
        expected = request.count
        if request.everything:
            expected = sum(
                matcher.selects(claim.name, request, device)
                and matches_node(device.scope, node, labels)
                and capacity.fits(device, request.capacity)
                for device in all_devices.values()
            )
        if len(devices) != expected:
            yield f"{claim.name}: {request.full_name} has {len(devices)} devices of {expected}"
        for device in devices:
            if not matcher.selects(claim.name, request, device):
                yield f"{claim.name}: {request.full_name} does not mean {device.id}"
            if not matches_node(device.scope, node, labels):
                yield f"{claim.name}: {device.id} is not on {node}"
            if not tolerates(request, device):
                yield f"{claim.name}: {request.full_name} does not tolerate {device.id}"
    for constraint in claim.constraints:
        name = constraint.match or constraint.distinct
        values = []
        for request, device in grants:
            if constraint.concerns(request):
                attribute = device.attribute(name)
                values.append(None if attribute is None else value_key(attribute))
        if None in values:
            yield f"{claim.name}: a device has no {name}"
        elif constraint.match and len(set(values)) > 1:
            yield f"{claim.name}: {name} differs"
        elif constraint.distinct and len(set(values)) != len(values):
            yield f"{claim.name}: {name} is not distinct"


def _device_problems(
    grants: Sequence[tuple[int, DeviceRequest, Device, Object]], allocated: AllocatedDevices
) -> Iterator[str]:
    """Yield the devices that are allocated twice or beyond their capacity."""
    exclusive = Counter(d.id for _, r, d, _ in grants if not d.multiple and not r.admin)
    for id, times in exclusive.items():
        if times > 1 or id in allocated.devices:
            yield f"{id} is given away twice"
    amounts: dict[DeviceId, dict[str, Fraction]] = defaultdict(dict)
    for _, request, device, result in grants:
        if not device.multiple:
            if not capacity.fits(device, request.capacity):
                yield f"{device.id} has not the capacity {request.full_name} asks for"
            continue
        stated = {n: parse(v) for n, v in (result.get("consumedCapacity") or {}).items()}
        if stated != (capacity.consumed(device, request.capacity) or {}):
            yield f"{device.id}: {request.full_name} consumes {result.get('consumedCapacity')}"
        for name, amount in stated.items():
            amounts[device.id][name] = amounts[device.id].get(name, Fraction(0)) + amount
    by_id = {device.id: device for _, _, device, _ in grants}
    for id, used in amounts.items():
        for name, amount in used.items():
            already_used = allocated.capacity.get(id, {}).get(name, 0)
            if amount + already_used > parse(by_id[id].capacity[name]["value"]):
                yield f"{id} has not so much {name}"


def counter_problems(
    grants: Sequence[tuple[int, DeviceRequest, Device, Object]],
    pools: Sequence[SlicePool],
    allocated: AllocatedDevices,
) -> Iterator[str]:
    """Yield the shared counters that are overdrawn."""
    remaining: dict[tuple[PoolId, str, str], Fraction] = {}
    for pool in pools:
        for set_, counts in pool.counters.items():
            for name, count in counts.items():
                remaining[pool.id, set_, name] = count
        for device in (*pool.devices, *pool.elsewhere):
            # Admin access counts as well; a shared device counts once.
            times = sum(d.id == device.id for _, _, d, _ in grants)
            if device.multiple:
                times = min(1, times + (device.id in allocated.shared))
            elif device.id in allocated.devices:
                times += 1
            for set_, counts in device.counters:
                for name, count in counts.items():
                    remaining[pool.id, set_, name] -= times * count
    for (pool_id, set_, name), count in remaining.items():
        if count < 0:
            yield f"{pool_id}: {set_} has not so much {name}"
