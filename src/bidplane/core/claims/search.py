"""
The allocator: which devices of one node some claims get.

The readable form, with upstream's order: claims, requests and devices one after the other, each
device tried in turn, and given up again when what comes after it cannot be had. The first full
answer is the answer. `fast` gives the same ones sooner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec

from bidplane.core.claims import capacity
from bidplane.core.claims.constraints import Watch
from bidplane.core.claims.model import (
    MOST_DEVICES,
    Claim,
    ClaimError,
    Device,
    DeviceId,
    PoolId,
    Request,
    Taken,
    matches_node,
)
from bidplane.core.claims.pools import Pool
from bidplane.core.claims.selecting import Selecting

# A fraction of a second, enough for any claim people write. Upstream gives up after ten seconds.
MOST_STEPS = 20_000


class Given(msgspec.Struct, frozen=True, eq=False):
    """One device for one request."""

    request: Request
    device: Device
    consumed: Mapping[str, Fraction] | None = None  # of a device that is shared


class Allocated(msgspec.Struct, frozen=True, eq=False):
    claims: tuple[tuple[Given, ...], ...]  # in the order they were asked for


class Refused(msgspec.Struct, frozen=True):
    """This node has not what the claims want. Another may."""

    reason: str


class _TooMany(Exception):
    """What is left of the claim asks for more devices than a claim may have."""


def allocate(
    claims: Sequence[Claim],
    *,
    node: str,
    labels: Mapping[str, str],
    pools: Sequence[Pool],
    selecting: Selecting,
    taken: Taken,
) -> Allocated | Refused:
    """Devices for all of the claims, or for none; raises `ClaimError`."""
    search = _Search(claims, node, labels, pools, selecting, taken)
    search.prepare()
    try:
        found = search.claim(0)
    except _TooMany:
        found = False
    if found:
        return Allocated(tuple(tuple(given) for given in search.given))
    invalid = [f"{pool.id}: {pool.invalid}" for pool in pools if pool.invalid]
    if invalid:
        return Refused(f"invalid resource pools were encountered ({'; '.join(invalid)})")
    return Refused("cannot allocate all claims")


class _Search:
    def __init__(
        self,
        claims: Sequence[Claim],
        node: str,
        labels: Mapping[str, str],
        pools: Sequence[Pool],
        selecting: Selecting,
        taken: Taken,
    ) -> None:
        self._claims, self._node, self._labels = claims, node, labels
        self._pools = {pool.id: pool for pool in pools}
        self._ordered = [device for pool in pools if pool.is_usable for device in pool.devices]
        self._selecting, self._taken = selecting, taken
        self._selected: dict[tuple[int, DeviceId], bool] = {}
        self._all: dict[int, list[Device]] = {}  # by request, for those that want everything
        self._watches = [[Watch(one) for one in claim.constraints] for claim in claims]
        self._mine: dict[DeviceId, list[int]] = defaultdict(list)  # which claims have it
        self._shares: dict[DeviceId, int] = defaultdict(int)
        self._amounts: dict[DeviceId, dict[str, Fraction]] = defaultdict(dict)
        self._left: dict[PoolId, dict[str, dict[str, Fraction]]] = {}
        self._steps = 0
        self.given: list[list[Given]] = [[] for _ in claims]

    # Before the search: what no search can change.

    def prepare(self) -> None:
        """Find what each request for everything wants, and refuse what no node can have."""
        for claim in self._claims:
            least = 0
            for choices in claim.requests:
                least += min(self._size(claim, request) for request in choices)
                if least > MOST_DEVICES:
                    raise ClaimError(
                        f"claim {claim.name}: asks for at least {least} devices;"
                        f" the most of one claim is {MOST_DEVICES}"
                    )

    def _size(self, claim: Claim, request: Request) -> int:
        self._selecting.of_class(claim.name, request)
        if not request.everything:
            return request.count
        wanted: list[Device] = []
        for pool in self._pools.values():
            if not pool.is_usable:
                what = "being updated" if pool.incomplete else "invalid"
                raise ClaimError(
                    f"claim {claim.name}, request {request.full_name}: asks for all devices,"
                    f" but resource pool {pool.id} is currently {what}"
                )
            wanted += (
                device
                for device in pool.devices
                if self._selects(claim, request, device) and capacity.fits(device, request.capacity)
            )
        self._all[id(request)] = wanted
        return len(wanted)

    def _selects(self, claim: Claim, request: Request, device: Device) -> bool:
        key = (id(request), device.id)
        said = self._selected.get(key)
        if said is None:
            said = self._selecting.selects(claim.name, request, device) and (
                matches_node(device.where, self._node, self._labels)
            )
            self._selected[key] = said
        return said

    # The search. Each step returns whether everything after it could be had as well.

    def claim(self, at: int) -> bool:
        return at == len(self._claims) or self._request(at, 0)

    def _request(self, claim: int, at: int) -> bool:
        requests = self._claims[claim].requests
        if at == len(requests):
            try:
                return self.claim(claim + 1)
            except _TooMany:
                # A later claim has too many with what is chosen now; other choices may do.
                return False
        only_too_many = True
        for request in requests[at]:
            try:
                if self._devices(claim, at, request, 0, 0):
                    return True
            except _TooMany:
                continue
            only_too_many = False
        if only_too_many:
            raise _TooMany
        return False

    def _devices(self, claim: int, at: int, request: Request, had: int, start: int) -> bool:
        wanted = self._all.get(id(request))
        if wanted is not None and not wanted:
            return False  # everything is at least one
        count = request.count if wanted is None else len(wanted)
        if had == count:
            return self._request(claim, at + 1)
        if count - had > MOST_DEVICES - len(self.given[claim]):
            raise _TooMany
        if wanted is not None:
            return self._with(claim, at, request, wanted[had], had, 0, must=True)
        # Combinations, not permutations: the next device of a request is behind the last.
        for index in range(start, len(self._ordered)):
            device = self._ordered[index]
            if (
                not self._is_in_use(claim, request, device)
                and self._selects(self._claims[claim], request, device)
                and self._has_capacity(request, device)
                and self._with(claim, at, request, device, had, index + 1)
            ):
                return True
        return False

    def _with(
        self,
        claim: int,
        at: int,
        request: Request,
        device: Device,
        had: int,
        start: int,
        *,
        must: bool = False,
    ) -> bool:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise ClaimError(
                f"claim {self._claims[claim].name}: no answer after {MOST_STEPS} steps; ask for"
                " less at once, or say more exactly what is wanted"
            )
        if not self._take(claim, request, device, must):
            return False
        try:
            done = self._devices(claim, at, request, had + 1, start)
        except _TooMany:
            self._give_back(claim)
            raise
        if not done:
            self._give_back(claim)
        return done

    # Taking a device, and giving it back.

    def _is_in_use(self, claim: int, request: Request, device: Device) -> bool:
        mine = self._mine.get(device.id, ())
        if request.admin:
            return claim in mine
        return device.id in self._taken.devices or bool(mine)

    def _has_capacity(self, request: Request, device: Device) -> bool:
        return capacity.fits(
            device,
            request.capacity,
            used=self._taken.capacity.get(device.id, {}),
            more=self._amounts.get(device.id, {}),
        )

    def _take(self, claim: int, request: Request, device: Device, must: bool) -> bool:
        if self._is_in_use(claim, request, device):
            return False
        charge = self._charges_counters(device)
        if charge and not self._has_counters(device):
            return False
        if not tolerates(request, device):
            return False
        watches = self._watches[claim]
        for index, watch in enumerate(watches):
            if not watch.add(request, device):
                for earlier in watches[:index]:
                    earlier.remove(request)
                if must:
                    raise ClaimError(
                        f"claim {self._claims[claim].name}, request {request.full_name}: cannot"
                        f" add device {device.id} because a claim constraint would not be satisfied"
                    )
                return False
        if not self._has_capacity(request, device):
            for watch in watches:
                watch.remove(request)
            return False
        consumed = None
        if device.multiple:
            consumed = capacity.consumed(device, request.capacity) or {}
            amounts = self._amounts[device.id]
            for name, amount in consumed.items():
                amounts[name] = amounts.get(name, Fraction(0)) + amount
            self._shares[device.id] += 1
        else:
            self._mine[device.id].append(claim)
        if charge:
            self._charge(device, 1)
        self.given[claim].append(Given(request, device, consumed))
        return True

    def _give_back(self, claim: int) -> None:
        given = self.given[claim].pop()
        device = given.device
        if given.consumed is not None:
            amounts = self._amounts[device.id]
            for name, amount in given.consumed.items():
                amounts[name] -= amount
            self._shares[device.id] -= 1
        else:
            self._mine[device.id].remove(claim)
        if self._charges_counters(device):
            self._charge(device, -1)
        for watch in self._watches[claim]:
            watch.remove(given.request)

    # Counters that devices of a pool share.

    def _charges_counters(self, device: Device) -> bool:
        """A shared device takes its counters once, however many have a share."""
        if not device.counters:
            return False
        shared = device.id in self._taken.shared or self._shares[device.id] > 0
        return not (device.multiple and shared)

    def _has_counters(self, device: Device) -> bool:
        left = self._counters(device.pool)
        # One that was overdrawn stops every device of the pool, as upstream has it.
        if any(count < 0 for counts in left.values() for count in counts.values()):
            return False
        needed: dict[tuple[str, str], Fraction] = {}
        for set_, counts in device.counters:
            for name, count in counts.items():
                needed[set_, name] = needed.get((set_, name), Fraction(0)) + count
        return all(left[set_][name] >= count for (set_, name), count in needed.items())

    def _charge(self, device: Device, sign: int) -> None:
        left = self._counters(device.pool)
        for set_, counts in device.counters:
            for name, count in counts.items():
                left[set_][name] -= sign * count

    def _counters(self, pool_id: PoolId) -> dict[str, dict[str, Fraction]]:
        left = self._left.get(pool_id)
        if left is None:
            pool = self._pools[pool_id]
            left = {name: dict(counts) for name, counts in pool.counters.items()}
            for device in (*pool.devices, *pool.elsewhere):
                if self._taken.holds(device.id):
                    for set_, counts in device.counters:
                        for name, count in counts.items():
                            left[set_][name] -= count
            self._left[pool_id] = left
        return left


def tolerates(request: Request, device: Device) -> bool:
    """Whether no taint of the device keeps the request off it."""
    return all(
        any(_tolerated(toleration, taint) for toleration in request.tolerations)
        for taint in device.taints
        # Other effects inform, and stop nobody.
        if taint.get("effect") in ("NoSchedule", "NoExecute")
    )


def _tolerated(toleration: Mapping[str, object], taint: Mapping[str, object]) -> bool:
    for field in ("effect", "key"):
        if toleration.get(field) and toleration[field] != taint.get(field):
            return False
    match toleration.get("operator") or "Equal":
        case "Equal":
            return (toleration.get("value") or "") == (taint.get("value") or "")
        case "Exists":
            return True
    return False
