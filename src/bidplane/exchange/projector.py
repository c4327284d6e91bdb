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
from typing import Any

import msgspec
import structlog

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.bid import BidPhase, BidStatus
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, POOL, Kind
from bidplane.api.lease import FINALIZER, BidReference, LeaseSpec, LeaseStatus, Phase
from bidplane.api.money import format_credits, parse_credits
from bidplane.core.market.clearing.preemption import LEVY_PERCENT
from bidplane.core.market.pricing.metering import reprice as worth_repricing
from bidplane.errors import AlreadyExists, ApiError, Conflict, NotFound
from bidplane.exchange.engine import RoundReport
from bidplane.exchange.round.conditions import lease_name, lease_of
from bidplane.exchange.views import stamp, standing
from bidplane.kube.client import KubeClient, Object
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.records import Lease, wallet_of
from bidplane.machinery.informer import Informer

Call = Coroutine[Any, Any, None]

_NOTHING_SOLD: Mapping[str, BidStatus] = {}
_NOBODY: Mapping[str, str] = {}
AT_ONCE = 16  # calls to the API in flight
LOSERS_AT_ONCE = 64  # statuses of bids that have not won, in one projection
_FOLLOWS = ("round", "message", "wallet")  # not worth a write by themselves

log = structlog.get_logger(__name__)


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
        for obj in self._informers[GPU_LEASE].items():
            id, name = lease_of(obj), obj["metadata"]["name"]
            lease = live.get(id)
            if lease is None:
                work.append(self._retire(obj, self._ledger.lease(id)))
            else:
                present.add(name)
                checked, sequence = right.get(name, (None, 0))
                unchanged = checked is obj and sequence == lease.sequence
                if unchanged or not _differs(obj, lease_status(lease)):
                    self._up_to_date[name] = obj, lease.sequence
                else:
                    work.append(self._show_status(lease, name))
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
        await self._show_status(lease, obj["metadata"]["name"])

    async def _show_status(self, lease: Lease, name: str) -> None:
        await self._client.patch(
            GPU_LEASE,
            name,
            {"status": _builtins(lease_status(lease))},
            host_namespace(lease.agent),
            subresource="status",
        )

    async def _retire(self, obj: Object, lease: Lease | None) -> None:
        """Delete the object of a lease that is over, or never was, with its last status."""
        metadata = obj["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        if lease is not None and _differs(obj, lease_status(lease)):
            await self._show_status(lease, name)
        if not metadata.get("deletionTimestamp"):
            await self._client.delete(GPU_LEASE, name, namespace, uid=metadata["uid"])
        if FINALIZER in (metadata.get("finalizers") or ()):
            latest = await self._client.get(GPU_LEASE, name, namespace)
            await self._set_finalizers(GPU_LEASE, latest, without=FINALIZER)

    # Agents

    def _agent_work(self, quarantined: Mapping[str, str]) -> list[Call]:
        work: list[Call] = []
        for agent in self._informers[AGENT].items():
            metadata = agent["metadata"]
            wallet = self._ledger.account(wallet_of(metadata["uid"]))
            has = labels.WALLET_FINALIZER in (metadata.get("finalizers") or ())
            is_open = wallet is not None and wallet.is_open
            message = quarantined.get(metadata["uid"], "")
            if (agent.get("status") or {}).get("message", "") != message:
                work.append(self._write_message(agent, message))
            if metadata.get("deletionTimestamp"):
                if has and not is_open:
                    work.append(self._set_finalizers(AGENT, agent, without=labels.WALLET_FINALIZER))
            elif is_open and not has:
                work.append(self._set_finalizers(AGENT, agent, having=labels.WALLET_FINALIZER))
        return work

    async def _write_message(self, agent: Object, message: str) -> None:
        """Write the message of an Agent's status; its controller writes the rest."""
        name = agent["metadata"]["name"]
        await self._client.patch(
            AGENT, name, {"status": {"message": message}}, subresource="status"
        )

    async def _set_finalizers(
        self, kind: Kind, obj: Object, *, having: str = "", without: str = ""
    ) -> None:
        """
        Write the finalizers, bound to the version that was read: others keep theirs in the same
        list.
        """
        metadata = obj["metadata"]
        finalizers = [f for f in metadata.get("finalizers") or () if f not in (having, without)]
        if having:
            finalizers.append(having)
        await self._client.patch(
            kind,
            metadata["name"],
            {
                "metadata": {
                    "finalizers": finalizers,
                    "resourceVersion": metadata["resourceVersion"],
                }
            },
            metadata.get("namespace"),
        )

    # Bids and pools

    def _bid_work(self, statuses: Mapping[str, BidStatus]) -> list[Call]:
        """
        Write the status of all bids that won, and of some that lost: an agent with thousands of
        bids must not delay the leases of others. Agents take turns, by namespace.
        """
        work: list[Call] = []
        waiting: dict[str, list[tuple[Object, BidStatus]]] = {}
        for bid in self._informers[BID].items():
            status = statuses.get(bid["metadata"]["uid"])
            if status is None or self._is_written(bid, status):
                continue
            if not _is_news(bid, status, price="priceToWin", follows=_FOLLOWS):
                self._written[bid["metadata"]["uid"]] = bid, status
            elif status.phase is BidPhase.WON:
                work.append(self._write_status(BID, bid, status))
            else:
                waiting.setdefault(bid["metadata"]["namespace"], []).append((bid, status))
        self._written = {uid: written for uid, written in self._written.items() if uid in statuses}
        chosen = self._in_turn(waiting)
        self.deferred = sum(map(len, waiting.values())) - len(chosen)
        return work + [self._write_status(BID, bid, status) for bid, status in chosen]

    def _is_written(self, bid: Object, status: BidStatus) -> bool:
        """Return True if this very object was seen with this very status."""
        written = self._written.get(bid["metadata"]["uid"])
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
            if (status := report.pools.get(pool["metadata"]["name"])) is not None
            and _is_news(pool, status, price="price")
        ]

    async def _write_status(self, kind: Kind, obj: Object, status: msgspec.Struct) -> None:
        metadata = obj["metadata"]
        await self._client.patch(
            kind,
            metadata["name"],
            {"status": _builtins(status)},
            metadata.get("namespace"),
            subresource="status",
        )


def lease_names(lease: Lease) -> list[str]:
    """The names of the objects that show a lease: a gang has one for each of its blocks."""
    name = lease_name(lease.id)
    return [f"{name}-{n}" for n in range(len(lease.parts))] if lease.parts else [name]


def lease_object(lease: Lease, part: int = 0) -> dict[str, Any]:
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
        "spec": _builtins(spec),
    }


def lease_status(lease: Lease) -> LeaseStatus:
    return LeaseStatus(
        phase=Phase(lease.phase),
        ready=lease.ready,
        price=format_credits(lease.price),
        won_at=stamp(lease.won_at),
        active_at=stamp(lease.active_at),
        notice_at=stamp(lease.notice_at),
        reclaim_at=stamp(lease.reclaim_at),
        protected_until=stamp(lease.term_until),
        released_at=stamp(lease.released_at),
        reason=lease.reason,
        charged=format_credits(lease.charged),
        compensation=format_credits(lease.compensation),
        idle_since=stamp(lease.idle_since),
        breached_at=stamp(lease.breached_at),
        message=standing(lease),
        sequence=lease.sequence,
    )


def _builtins(value: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def _differs(obj: Object, status: msgspec.Struct) -> bool:
    """
    Return True if the object's status differs in a field of ours; other fields are not compared.
    """
    now = obj.get("status") or {}
    return any(now.get(field) != value for field, value in _builtins(status).items())


def _is_news(
    obj: Object, status: msgspec.Struct, *, price: str, follows: tuple[str, ...] = ()
) -> bool:
    """
    Return True if a status is worth a write. A price that drifts a little each second is not, nor
    are the fields that only follow from it.
    """
    now, new = obj.get("status") or {}, _builtins(status)
    changed = {field for field, value in new.items() if now.get(field) != value}
    if changed - {price, *follows}:
        return True
    old, current = now.get(price) or "", new.get(price) or ""
    if not (old and current):
        return old != current
    return worth_repricing(parse_credits(old), parse_credits(current))
