"""
The use of the GPUs of running leases, looked at every few seconds: which leases are idle.

Nothing of it is written down. A new exchange knows nothing for one window, and what is not
known is in use; what a round made of it is in the round's record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import structlog

from bidplane.api import labels
from bidplane.api.lease import DeviceRef
from bidplane.core.devices import migdevices
from bidplane.core.leases import idle
from bidplane.core.leases.idle import Use
from bidplane.errors import UserError
from bidplane.exchange.round.conditions import lease_names
from bidplane.exchange.round.devices import DeviceView
from bidplane.kube.client import Object
from bidplane.ledger.records import Lease
from bidplane.telemetry.model import Counters

LOOK_SECONDS = 15.0
REST = 20  # times as long as a look took: a large fleet is looked at less often

Read = Callable[[Sequence[Object]], Awaitable[Sequence[Counters]]]  # given Nodes
Instance = tuple[str, str]  # a GPU's UUID, and of a MIG instance its number there

log = structlog.get_logger(__name__)


class UsageWatch:
    def __init__(self, read: Read) -> None:
        self._read = read
        self._uses: dict[str, Use] = {}  # by lease

    @property
    def idle(self) -> dict[str, int]:
        """By lease, since when."""
        return {id: use.idle_since for id, use in self._uses.items() if use.idle_since}

    @property
    def used(self) -> frozenset[str]:
        return frozenset(id for id, use in self._uses.items() if use.is_known_used)

    async def look(
        self,
        leases: Sequence[Lease],
        *,
        nodes: Iterable[Object],
        devices: Iterable[DeviceView],
        slices: Sequence[Object],
        claims: Iterable[Object],
        windows: Mapping[str, int],  # by pool, in seconds
        now: Callable[[], float],
    ) -> bool:
        """Read the counters once. Return True if a lease became idle, or is so no more."""
        node_names = {device.node for lease in leases for device in lease.devices}
        leased_nodes = [node for node in nodes if node["metadata"]["name"] in node_names]
        try:
            counters = await self._read(leased_nodes) if leased_nodes else []
        except UserError as error:  # it is told what is wrong, and nobody becomes idle by it
            log.warning("nothing is known of what GPUs do", error=str(error))
            counters = []
        at = round(now() * 1000)
        percents = _utilisation(counters)
        uuids = {view.device: view.traits.get("uuid", "") for view in devices}
        instances = _instances(leases, claims, slices) if any(map(_is_mig, leases)) else {}
        before = self.idle.keys()
        self._uses = {
            lease.id: idle.see(
                self._uses.get(lease.id, Use()),
                at,
                idle.together(percents.get(key) for key in _keys(lease, uuids, instances)),
                window_seconds=idle_window(lease, windows),
            )
            for lease in leases
        }
        return self.idle.keys() != before


def idle_window(lease: Lease, windows: Mapping[str, int]) -> int:
    """
    The time, in seconds, after which a lease is idle: of several pools the longest; 0, if one of
    them calls no lease idle.
    """
    pool_windows = [windows.get(pool, 0) for pool in lease.pool_names]
    return max(pool_windows) if all(pool_windows) else 0


def _utilisation(counters: Iterable[Counters]) -> dict[Instance, float]:
    """
    The utilisation of each device, in percent. Of two readings for one device the higher counts: a
    page that somebody else made must not take a rank away.
    """
    percents: dict[Instance, float] = {}
    for reading in counters:
        percent = reading.utilisation_percent
        percent = reading.engine_percent if percent is None or reading.instance else percent
        if percent is not None:
            key = reading.uuid, reading.instance
            percents[key] = max(percents.get(key, 0.0), percent)
    return percents


def _is_mig(lease: Lease) -> bool:
    return bool(lease.share) and not lease.devices[0].is_part


def _keys(
    lease: Lease, uuids: Mapping[DeviceRef, str], instances: Mapping[str, Sequence[Instance]]
) -> list[Instance]:
    """
    The keys of the lease's devices in the readings. A fraction has the key of the whole GPU: if
    that rests, so does each share of it; if it works, any of them may.
    """
    if _is_mig(lease):
        own = list(instances.get(lease.id, ()))
        missing = lease.gpus - len(own)  # not made yet, or by a driver that does not say
        return own + [("", "")] * missing
    return [(uuids.get(device.whole, ""), "") for device in lease.devices]


def _instances(
    leases: Iterable[Lease], claims: Iterable[Object], slices: Sequence[Object]
) -> dict[str, list[Instance]]:
    """By lease, the MIG instances that were made for it, as their nodes say in its claims."""
    devices = migdevices.of_slices(slices)
    ids = {name: lease.id for lease in leases for name in lease_names(lease)}
    by_lease: dict[str, dict[Instance, None]] = {}
    for claim in claims:
        id = ids.get((claim["metadata"].get("labels") or {}).get(labels.LEASE, ""))
        for allocated in (claim.get("status") or {}).get("devices") or ():
            part = devices.get((allocated["driver"], allocated["pool"], allocated["device"]))
            number = (allocated.get("data") or {}).get("gpuInstance")
            if id and part is not None and number is not None:
                by_lease.setdefault(id, {})[part.gpu, str(number)] = None
    return {id: list(instances) for id, instances in by_lease.items()}
