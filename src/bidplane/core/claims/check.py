"""
What is wrong with an allocation, whoever made it: written down apart from the search, so that
one can be held against the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from bidplane.api.kinds import Object
from bidplane.core.claims import capacity
from bidplane.core.claims.model import (
    MOST_DEVICES,
    Claim,
    Device,
    DeviceId,
    PoolId,
    Request,
    Taken,
    matches_node,
    value_key,
)
from bidplane.core.claims.pools import Pool
from bidplane.core.claims.search import tolerates
from bidplane.core.claims.selecting import Selecting
from bidplane.wire.quantity import parse


def problems(
    claims: Sequence[Claim],
    allocations: Sequence[Object],
    *,
    node: str,
    labels: Mapping[str, str],
    pools: Sequence[Pool],
    selecting: Selecting,
    taken: Taken,
) -> list[str]:
    """One sentence for each rule that the allocations break together; none if they are right."""
    known = {device.id: device for pool in pools if pool.is_usable for device in pool.devices}
    found: list[str] = []
    uses: list[tuple[int, Request, Device, Object]] = []
    for at, (claim, allocation) in enumerate(zip(claims, allocations, strict=True)):
        results = allocation["devices"]["results"]
        if len(results) > MOST_DEVICES:
            found.append(f"{claim.name}: {len(results)} devices")
        requests = {r.full_name: r for choices in claim.requests for r in choices}
        for result in results:
            id = DeviceId(result["driver"], result["pool"], result["device"])
            request = requests.get(result["request"])
            if request is None or id not in known:
                found.append(f"{claim.name}: {result['request']} got {id}, which is not there")
                continue
            uses.append((at, request, known[id], result))
    for at, claim in enumerate(claims):
        mine = [(request, device) for who, request, device, _ in uses if who == at]
        found += _of_claim(claim, mine, known, selecting, node, labels)
    found += _of_devices(uses, taken)
    found += counter_problems(uses, pools, taken)
    return found


def _of_claim(
    claim: Claim,
    given: Sequence[tuple[Request, Device]],
    known: Mapping[DeviceId, Device],
    selecting: Selecting,
    node: str,
    labels: Mapping[str, str],
) -> Iterator[str]:
    for choices in claim.requests:
        used = [choice for choice in choices if any(r is choice for r, _ in given)]
        if len(used) != 1:
            yield f"{claim.name}: {choices[0].base_name} was given {len(used)} of its choices"
            continue
        request = used[0]
        devices = [device for r, device in given if r is request]
        if len({device.id for device in devices}) != len(devices):
            yield f"{claim.name}: {request.full_name} has one device twice"
        wanted = request.count
        if request.everything:
            wanted = sum(
                selecting.selects(claim.name, request, device)
                and matches_node(device.where, node, labels)
                and capacity.fits(device, request.capacity)
                for device in known.values()
            )
        if len(devices) != wanted:
            yield f"{claim.name}: {request.full_name} has {len(devices)} devices of {wanted}"
        for device in devices:
            if not selecting.selects(claim.name, request, device):
                yield f"{claim.name}: {request.full_name} does not mean {device.id}"
            if not matches_node(device.where, node, labels):
                yield f"{claim.name}: {device.id} is not on {node}"
            if not tolerates(request, device):
                yield f"{claim.name}: {request.full_name} does not tolerate {device.id}"
    for constraint in claim.constraints:
        name = constraint.match or constraint.distinct
        values = []
        for request, device in given:
            if constraint.concerns(request):
                attribute = device.attribute(name)
                values.append(None if attribute is None else value_key(attribute))
        if None in values:
            yield f"{claim.name}: a device has no {name}"
        elif constraint.match and len(set(values)) > 1:
            yield f"{claim.name}: {name} differs"
        elif constraint.distinct and len(set(values)) != len(values):
            yield f"{claim.name}: {name} is not distinct"


def _of_devices(uses: Sequence[tuple[int, Request, Device, Object]], taken: Taken) -> Iterator[str]:
    plain = Counter(d.id for _, r, d, _ in uses if not d.multiple and not r.admin)
    for id, times in plain.items():
        if times > 1 or id in taken.devices:
            yield f"{id} is given away twice"
    amounts: dict[DeviceId, dict[str, Fraction]] = defaultdict(dict)
    for _, request, device, result in uses:
        if not device.multiple:
            if not capacity.fits(device, request.capacity):
                yield f"{device.id} has not the capacity {request.full_name} asks for"
            continue
        said = {n: parse(v) for n, v in (result.get("consumedCapacity") or {}).items()}
        if said != (capacity.consumed(device, request.capacity) or {}):
            yield f"{device.id}: {request.full_name} consumes {result.get('consumedCapacity')}"
        for name, amount in said.items():
            amounts[device.id][name] = amounts[device.id].get(name, Fraction(0)) + amount
    by_id = {device.id: device for _, _, device, _ in uses}
    for id, used in amounts.items():
        for name, amount in used.items():
            before = taken.capacity.get(id, {}).get(name, 0)
            if amount + before > parse(by_id[id].capacity[name]["value"]):
                yield f"{id} has not so much {name}"


def counter_problems(
    uses: Sequence[tuple[int, Request, Device, Object]], pools: Sequence[Pool], taken: Taken
) -> Iterator[str]:
    left: dict[tuple[PoolId, str, str], Fraction] = {}
    for pool in pools:
        for set_, counts in pool.counters.items():
            for name, count in counts.items():
                left[pool.id, set_, name] = count
        for device in (*pool.devices, *pool.elsewhere):
            # Admin access charges as well; a shared device once.
            times = sum(d.id == device.id for _, _, d, _ in uses)
            if device.multiple:
                times = min(1, times + (device.id in taken.shared))
            elif device.id in taken.devices:
                times += 1
            for set_, counts in device.counters:
                for name, count in counts.items():
                    left[pool.id, set_, name] -= times * count
    for (pool_id, set_, name), count in left.items():
        if count < 0:
            yield f"{pool_id}: {set_} has not so much {name}"
