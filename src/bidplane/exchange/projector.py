"""
The projection of the ledger to Kubernetes objects.

Nothing here decides. What the ledger says is compared with what the host says, and the
difference is written; so it does not matter how often that was tried, or where a crash
cut it short. Each GPULease carries the ledger's sequence number of what it shows: the
watermark is in the objects themselves, and is right even for a host restored from an
older copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Coroutine, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias

import msgspec
import structlog

from bidplane.api import labels
from bidplane.api.agent import AgentStatus, host_namespace
from bidplane.api.bid import BidPhase, BidStatus
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, POOL, Kind
from bidplane.api.lease import FINALIZER, BidReference, LeaseSpec, LeaseStatus, Phase
from bidplane.api.money import GPU_WEIGHT, format_credits, parse_credits
from bidplane.api.objects import (
    finalizers_of,
    is_deleted,
    metadata_of,
    name_of,
    namespace_of,
    uid_of,
)
from bidplane.api.pool import PoolStatus
from bidplane.api.reading import Invalid, ViewCache, read_lease, read_status
from bidplane.api.times import rfc3339_ms
from bidplane.core.market.clearing.preemption import LEVY_PERCENT
from bidplane.core.market.pricing.metering import reprice as worth_repricing
from bidplane.errors import AlreadyExists, ApiError, Conflict, NotFound
from bidplane.exchange.engine import RoundReport
from bidplane.exchange.round.conditions import lease_names, lease_of
from bidplane.exchange.views import standing
from bidplane.kube.client import KubeClient, Object
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import Lease, wallet_of
from bidplane.machinery.informer import Informer

Call: TypeAlias = Coroutine[object, object, None]
Status: TypeAlias = BidStatus | PoolStatus | LeaseStatus

_NOTHING_SOLD: Mapping[str, BidStatus] = {}
_NOBODY: Mapping[str, str] = {}
AT_ONCE = 16  # calls to the API in flight
LOSERS_AT_ONCE = 64  # statuses of bids that have not won, in one projection
_FOLLOWS = frozenset({"round", "message", "wallet"})  # not worth a write by themselves

log = structlog.get_logger(__name__)


class ShownLease(NamedTuple):
    """An object on the host, and the lease of the ledger that it shows."""

    obj: Object
    id: str  # "" if the object cannot be read
    name: str


def _shown_lease(obj: Object) -> ShownLease:
    lease = read_lease(obj)
    if isinstance(lease, Invalid):
        log.warning("cannot read a lease's object", problem=str(lease))
        return ShownLease(obj, "", lease.name)
    return ShownLease(obj, lease_of(lease), lease.name)


class Projector:
    def __init__(
        self, client: KubeClient, ledger: Ledger, informers: Mapping[Kind, Informer]
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._informers = informers
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._written: dict[str, tuple[Object, BidStatus]] = {}  # by uid of a bid
        self.deferred = 0  # statuses that the last projection left to the next
        self._next_namespace = ""  # the agent whose statuses are written first the next time
        self._shown = ViewCache(_shown_lease)
        # By name: an object, and the state of its lease that it was seen to show.
        self._up_to_date: dict[str, tuple[Object, int]] = {}

    async def project(
        self,
        report: RoundReport | None = None,
        sold: Mapping[str, BidStatus] = _NOTHING_SOLD,
        quarantined: Mapping[str, str] = _NOBODY,
    ) -> int:
        """
        Write every difference. Return how many could not be written; they are tried again the next
        time. `sold`: the statuses of bids since the round. `quarantined`: by agent uid, why an
        agent takes no part.
        """
        work: list[Call] = [*self._lease_work(), *self._agent_work(quarantined)]
        self.deferred = 0
        if report is not None:
            work += [*self._bid_work({**report.bids, **sold}), *self._pool_work(report)]
        done = await asyncio.gather(*(self._attempt(item) for item in work))
        return done.count(False) + self.deferred

    async def _attempt(self, item: Call) -> bool:
        async with self._slots:
            try:
                await item
            except (Conflict, NotFound) as error:
                # The object changed or went since it was read; the cache will say so.
                log.debug("will be projected again", error=str(error))
                return False
            except ApiError as error:
                log.warning("could not project", error=str(error))
                return False
            return True

    # Leases

    def _lease_work(self) -> list[Call]:
        work: list[Call] = []
        live = {lease.id: lease for lease in self._ledger.live_leases() if not lease.is_reservation}
        present: set[str] = set()
        right, self._up_to_date = self._up_to_date, {}
        for obj, id, name in self._shown.of(self._informers[GPU_LEASE].items()):
            lease = live.get(id)
            checked, sequence = right.get(name, (None, 0))
            if lease is not None and checked is obj and sequence == lease.sequence:
                present.add(name)
                self._up_to_date[name] = obj, sequence
            elif lease is not None and name in lease_names(lease):
                present.add(name)
                if read_status(obj, LeaseStatus) == lease_status(lease):
                    self._up_to_date[name] = obj, lease.sequence
                else:
                    work.append(self._show_status(lease, name))
            elif id or not any(name in lease_names(lease) for lease in live.values()):
                work.append(self._retire(obj, self._ledger.lease(id)))
        for lease in live.values():
            work += [
                self._show(lease, part)
                for part, name in enumerate(lease_names(lease))
                if name not in present
            ]
        return work

    async def _show(self, lease: Lease, part: int) -> None:
        obj = lease_object(lease, part)
        # It may be there: written before a crash, or the cache is late.
        with contextlib.suppress(AlreadyExists):
            await self._client.create(GPU_LEASE, obj, host_namespace(lease.agent))
        await self._show_status(lease, name_of(obj))

    async def _show_status(self, lease: Lease, name: str) -> None:
        await self._client.patch(
            GPU_LEASE,
            name,
            {"status": msgspec.to_builtins(lease_status(lease))},
            host_namespace(lease.agent),
            subresource="status",
        )

    async def _retire(self, obj: Object, lease: Lease | None) -> None:
        """Delete the object of a lease that is over, or never was, with its last status."""
        name, namespace = name_of(obj), namespace_of(obj)
        if lease is not None and read_status(obj, LeaseStatus) != lease_status(lease):
            await self._show_status(lease, name)
        if not is_deleted(obj):
            await self._client.delete(GPU_LEASE, name, namespace, uid=uid_of(obj))
        if FINALIZER in finalizers_of(obj):
            latest = await self._client.get(GPU_LEASE, name, namespace)
            await self._set_finalizers(GPU_LEASE, latest, without=FINALIZER)

    # Agents

    def _agent_work(self, quarantined: Mapping[str, str]) -> list[Call]:
        work: list[Call] = []
        for agent in self._informers[AGENT].items():
            uid = uid_of(agent)
            wallet = self._ledger.account(wallet_of(uid))
            has = labels.WALLET_FINALIZER in finalizers_of(agent)
            is_open = wallet is not None and wallet.is_open
            message = quarantined.get(uid, "")
            status = read_status(agent, AgentStatus)
            if status is None or status.message != message:
                work.append(self._write_message(agent, message))
            if is_deleted(agent):
                if has and not is_open:
                    work.append(self._set_finalizers(AGENT, agent, without=labels.WALLET_FINALIZER))
            elif is_open and not has:
                work.append(self._set_finalizers(AGENT, agent, having=labels.WALLET_FINALIZER))
        return work

    async def _write_message(self, agent: Object, message: str) -> None:
        """Write the message of an Agent's status; its controller writes the rest."""
        patch = {"status": {"message": message}}
        await self._client.patch(AGENT, name_of(agent), patch, subresource="status")

    async def _set_finalizers(
        self, kind: Kind, obj: Object, *, having: str = "", without: str = ""
    ) -> None:
        """
        Write the finalizers, bound to the version that was read: others keep theirs in the same
        list.
        """
        finalizers = [f for f in finalizers_of(obj) if f not in (having, without)]
        if having:
            finalizers.append(having)
        version = metadata_of(obj)["resourceVersion"]
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
        await self._client.patch(kind, name_of(obj), patch, namespace_of(obj) or None)

    # Bids and pools

    def _bid_work(self, statuses: Mapping[str, BidStatus]) -> list[Call]:
        """
        Write the status of all bids that won, and of some that lost: an agent with thousands of
        bids must not delay the leases of others. Agents take turns, by namespace.
        """
        work: list[Call] = []
        waiting: dict[str, list[tuple[Object, BidStatus]]] = {}
        for bid in self._informers[BID].items():
            status = statuses.get(uid_of(bid))
            if status is None or self._is_written(bid, status):
                continue
            if not _is_news(
                read_status(bid, BidStatus), status, price="price_to_win", follows=_FOLLOWS
            ):
                self._written[uid_of(bid)] = bid, status
            elif status.phase is BidPhase.WON:
                work.append(self._write_status(BID, bid, status))
            else:
                waiting.setdefault(namespace_of(bid), []).append((bid, status))
        self._written = {uid: written for uid, written in self._written.items() if uid in statuses}
        chosen = self._in_turn(waiting)
        self.deferred = sum(map(len, waiting.values())) - len(chosen)
        return work + [self._write_status(BID, bid, status) for bid, status in chosen]

    def _is_written(self, bid: Object, status: BidStatus) -> bool:
        """Return True if this very object was seen with this very status."""
        written = self._written.get(uid_of(bid))
        return written is not None and written[0] is bid and written[1] == status

    def _in_turn(
        self, waiting: Mapping[str, list[tuple[Object, BidStatus]]]
    ) -> list[tuple[Object, BidStatus]]:
        """Choose bids of each agent in turn, as many as one projection writes."""
        names = sorted(waiting)
        names = [n for n in names if n >= self._next_namespace] + [
            n for n in names if n < self._next_namespace
        ]
        rows = itertools.zip_longest(*(waiting[name] for name in names))
        chosen = [item for row in rows for item in row if item is not None][:LOSERS_AT_ONCE]
        self._next_namespace = names[len(chosen) % len(names)] if names else ""
        return chosen

    def _pool_work(self, report: RoundReport) -> list[Call]:
        return [
            self._write_status(POOL, pool, status)
            for pool in self._informers[POOL].items()
            if (status := report.pools.get(name_of(pool))) is not None
            and _is_news(read_status(pool, PoolStatus), status, price="price")
        ]

    async def _write_status(self, kind: Kind, obj: Object, status: Status) -> None:
        await self._client.patch(
            kind,
            name_of(obj),
            {"status": msgspec.to_builtins(status)},
            namespace_of(obj) or None,
            subresource="status",
        )


def lease_object(lease: Lease, part: int = 0) -> Object:
    """One block of a lease as it is created; its status follows."""
    devices = lease.blocks[part]
    spec = LeaseSpec(
        agent=lease.agent,
        bid=BidReference(namespace=lease.bid_namespace, name=lease.bid_name, uid=lease.bid_uid),
        pool=" + ".join(lease.pool_names),
        node=devices[0].node,
        devices=list(devices),
        max_price=format_credits(lease.max_price),
        part=part,
        parts=len(lease.blocks),
        weight=lease.weight * len(devices) // lease.gpus,
        gpu_weight=GPU_WEIGHT,
        origin=lease.came_from,
        plane_namespace=lease.plane_namespace,
        beside=lease.beside,
        measured=lease.levy_percent > LEVY_PERCENT,  # it has the rank of a heavy restart
    )
    return {
        "apiVersion": GPU_LEASE.api_version,
        "kind": GPU_LEASE.kind,
        "metadata": {
            "name": lease_names(lease)[part],
            "namespace": host_namespace(lease.agent),
            "labels": {labels.AGENT: lease.agent},
            "finalizers": [FINALIZER],
        },
        "spec": msgspec.to_builtins(spec),
    }


def lease_status(lease: Lease) -> LeaseStatus:
    return LeaseStatus(
        phase=Phase(lease.phase),
        ready=lease.ready,
        price=format_credits(lease.price),
        won_at=rfc3339_ms(lease.won_at),
        active_at=rfc3339_ms(lease.active_at),
        notice_at=rfc3339_ms(lease.notice_at),
        reclaim_at=rfc3339_ms(lease.reclaim_at),
        protected_until=rfc3339_ms(lease.term_until),
        released_at=rfc3339_ms(lease.released_at),
        reason=lease.reason,
        charged=format_credits(lease.charged),
        compensation=format_credits(lease.compensation),
        idle_since=rfc3339_ms(lease.idle_since),
        breached_at=rfc3339_ms(lease.breached_at),
        message=standing(lease),
        sequence=lease.sequence,
    )


def _is_news(
    old: Status | None, new: Status, *, price: str, follows: AbstractSet[str] = frozenset()
) -> bool:
    """
    Return True if a status is worth a write. A price that drifts a little each second is not, nor
    are the fields that only follow from it.
    """
    if old is None:
        return True
    fields = new.__struct_fields__
    changed = {name for name in fields if getattr(old, name) != getattr(new, name)}
    if changed - {price, *follows}:
        return True
    old_price, new_price = getattr(old, price), getattr(new, price)
    if not (old_price and new_price):
        return bool(old_price != new_price)
    return worth_repricing(parse_credits(old_price), parse_credits(new_price))
