"""
What the GPUs of running leases do, looked at every few seconds: who has been idle, and who has not.

Nothing of it is written down. A new exchange knows nothing for one window, and what is not
known is in use; what a round made of it is in the round's record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

import structlog

from bidplane.api import labels
from bidplane.api.lease import Device
from bidplane.core import idle, parts
from bidplane.core.idle import Use
from bidplane.errors import UserError
from bidplane.exchange.devices import DeviceView
from bidplane.exchange.marks import LEASE_PREFIX
from bidplane.kube.client import Object
from bidplane.ledger.records import Lease
from bidplane.telemetry.model import Counters

LOOK_SECONDS = 15.0
REST = 20  # times as long as a look took: a large fleet is looked at less often

Read = Callable[[Sequence[Object]], Awaitable[Sequence[Counters]]]  # given Nodes
Instance = tuple[str, str]  # a GPU's UUID, and of a MIG instance its number there

log = structlog.get_logger(__name__)


class Watch:
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
        """Look once; whether anybody became idle, or is so no more."""
        where = {device.node for lease in leases for device in lease.devices}
        known = [node for node in nodes if node["metadata"]["name"] in where]
        try:
            counters = await self._read(known) if known else []
        except UserError as error:  # it is told what is wrong, and nobody becomes idle by it
            log.warning("nothing is known of what GPUs do", error=str(error))
            counters = []
        at = round(now() * 1000)
        told = _told(counters)
        uuids = {view.device: view.traits.get("uuid", "") for view in devices}
        made = dict(_instances(claims, slices)) if any(map(_is_mig, leases)) else {}
        before = self.idle.keys()
        self._uses = {
            lease.id: idle.see(
                self._uses.get(lease.id, Use()),
                at,
                idle.together(told.get(key) for key in _keys(lease, uuids, made)),
                window_seconds=idle_window(lease, windows),
            )
            for lease in leases
        }
        return self.idle.keys() != before


def idle_window(lease: Lease, windows: Mapping[str, int]) -> int:
    """In seconds: of several pools, the longest; 0, if one of them calls nobody idle."""
    found = [windows.get(pool, 0) for pool in lease.pool_names]
    return max(found) if all(found) else 0


def _told(counters: Iterable[Counters]) -> dict[Instance, float]:
    """
    What each device says. Where two say it of one, the one that works is believed: a page that
    somebody else made must not take a rank away.
    """
    found: dict[Instance, float] = {}
    for one in counters:
        percent = one.utilisation_percent
        percent = one.engine_percent if percent is None or one.instance else percent
        if percent is not None:
            key = one.uuid, one.instance
            found[key] = max(found.get(key, 0.0), percent)
    return found


def _is_mig(lease: Lease) -> bool:
    return bool(lease.share) and "/" not in lease.share


def _keys(
    lease: Lease, uuids: Mapping[Device, str], made: Mapping[str, Sequence[Instance]]
) -> list[Instance]:
    """
    Under which its devices are told. Of a fraction it is the whole GPU: if that rests, so does
    each of its parts; if it works, any of them may.
    """
    if _is_mig(lease):
        found = list(made.get(lease.id, ()))
        missing = lease.gpus - len(found)  # not made yet, or by a driver that does not say
        return found + [("", "")] * missing
    return [(uuids.get(device.whole, ""), "") for device in lease.devices]


def _instances(
    claims: Iterable[Object], slices: Sequence[Object]
) -> Iterator[tuple[str, list[Instance]]]:
    """By lease, the MIG instances that were made for it, as their nodes say in its claims."""
    known = parts.of_slices(slices)
    found: dict[str, dict[Instance, None]] = {}
    for claim in claims:
        name = (claim["metadata"].get("labels") or {}).get(labels.LEASE, "")
        id = name.removeprefix(LEASE_PREFIX).partition("-")[0]
        for one in (claim.get("status") or {}).get("devices") or ():
            part = known.get((one["driver"], one["pool"], one["device"]))
            number = (one.get("data") or {}).get("gpuInstance")
            if id and part is not None and number is not None:
                found.setdefault(id, {})[part.gpu, str(number)] = None
    yield from ((id, list(instances)) for id, instances in found.items())
