"""
The scheduler of every agent: one reconciler, keyed by plane.

Reads the plane's caches, lets `core/scheduling` decide, and carries the plan out. Keeps no state
between two passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import Strategy
from bidplane.api.kinds import (
    BID,
    DEVICE_CLASS,
    GPU_LEASE,
    JOB,
    NAMESPACE,
    NODE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
    Kind,
)
from bidplane.api.money import parse_credits
from bidplane.api.pool import PoolSpec, list_price
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.core import scheduling
from bidplane.core.bidding import pending
from bidplane.core.scheduling import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    Operation,
    PlaneSnapshot,
    PriceBid,
    ReleaseLease,
    TellGroup,
)
from bidplane.core.scheduling.podclaims import (
    ADMIN_LABEL,
    AllocateClaim,
    Devices,
    MakeClaim,
    ReleaseClaim,
)
from bidplane.errors import AlreadyExists, ApiError, NotFound
from bidplane.kube.client import KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.informer import Informer
from bidplane.machinery.planes import PlaneCache, PlaneCaches

PACE_SECONDS = 5.0  # how often a strategy is asked what to offer now
KINDS = (POD, BID, GPU_LEASE, NODE)
_LOOK_AGAIN_SECONDS = 1.0  # between two passes while claims matter: they are not watched
_BRIEF_REASONS = ("Bidding", "Won")  # reasons to wait that mostly end within a round
_BRIEF_SECONDS = 10.0  # a burst of pods takes a few seconds; explaining each wait would take more
_GATHER_SECONDS = 0.01
_REST_SECONDS = 0.05


def _list_prices(pools: Iterable[Object]) -> dict[str, int]:
    """The list price of each pool whose terms can be read, by pool."""
    prices: dict[str, int] = {}
    for pool in pools:
        with suppress(ValueError):
            spec = msgspec.convert(pool.get("spec") or {}, PoolSpec)
            prices[pool["metadata"]["name"]] = list_price(spec)
    return prices


class SchedulerController:
    """
    Turns the pods of each plane into bids, binds pods to won leases, and explains why pods wait.
    """

    def __init__(
        self, agents: Informer, pools: Informer, planes: PlaneCaches, *, clock: Clock
    ) -> None:
        self._agents = agents
        self._pools = pools
        self._planes = planes
        self._clock = clock
        self._recorder = Recorder("bidplane-scheduler", clock=clock)
        self._claimless: set[str] = set()  # planes without a reserved claim
        self.controller = Controller(
            "scheduler", self.reconcile, workers=WORKERS, rest=_REST_SECONDS
        )
        for kind in KINDS:
            planes.on_change(kind, lambda plane, event, obj: self._reconcile_soon(plane))
        planes.on_open(self._opened)
        agents.on_change(lambda event, agent: self.controller.add(agent["metadata"]["name"]))

    def _reconcile_soon(self, plane: str) -> None:
        """
        Reconcile the plane after a short delay: one pass covers all changes of about the same
        time.
        """
        self.controller.add_after(plane, _GATHER_SECONDS)

    def _opened(self, plane: str) -> None:
        self._claimless.discard(plane)  # its claims may have been restored
        self.controller.add(plane)

    async def reconcile(self, plane: str) -> float | None:
        """Plan and carry out the scheduling of one plane; return the delay until the next pass."""
        cache = self._planes.get(plane)
        if cache is None:
            return None
        agent = self._agents.get(None, plane)
        spec = agent["spec"] if agent is not None else {}
        snapshot = PlaneSnapshot(
            pods=cache[POD].items(),
            bids=cache[BID].items(),
            leases=cache[GPU_LEASE].items(),
            nodes=cache[NODE].items(),
            max_price=spec.get("maxPrice") or "",
            priority=spec.get("priority", 1),
            list_prices=_list_prices(self._pools.items()),
            suspended=bool(spec.get("suspended")),
            devices=await self._devices(plane, cache),
            jobs=cache[JOB].items(),
            groups=await self._groups(cache),
            strategy=Strategy(spec.get("strategy") or Strategy.MANUAL),
            hourly=parse_credits(spec.get("refill") or "0") * spec.get("priority", 1),
            now=self._clock.now(),
        )
        operations, brief = self._without_brief_waits(scheduling.plan(snapshot), snapshot.now)
        await self._carry_out_all(cache.client, operations)
        waiting = any(
            (pod["spec"].get("resourceClaims") or scheduling.sources_named([pod]))
            and scheduling.is_pending(pod)
            for pod in snapshot.pods
        )
        if waiting or brief:
            return _LOOK_AGAIN_SECONDS
        return PACE_SECONDS if scheduling.is_paced(snapshot) else None

    def _without_brief_waits(
        self, plan: Sequence[Operation], now: float
    ) -> tuple[list[Operation], bool]:
        """
        Drop explanations of waits that mostly end within a round; return the rest, and True if any
        was dropped.
        """
        operations = [
            operation
            for operation in plan
            if not (
                isinstance(operation, Explain)
                and operation.reason in _BRIEF_REASONS
                and operation.bid is not None
                and now - _created_at(operation.bid, now) < _BRIEF_SECONDS
                and not _scheduled_condition(operation.pod)
            )
        ]
        return operations, len(operations) < len(plan)

    async def _carry_out_all(self, client: KubeClient, operations: Sequence[Operation]) -> None:
        """
        Carry the operations out at once, as one commit of the plane; their order does not matter.

        Operations on claims are the exception: a claim is allocated before its pod is bound.
        """
        if any(
            isinstance(operation, MakeClaim | AllocateClaim | ReleaseClaim)
            for operation in operations
        ):
            errors = [await self._attempt(client, operation) for operation in operations]
        else:
            errors = await asyncio.gather(
                *(self._attempt(client, operation) for operation in operations)
            )
        for error in errors:
            if error is not None:
                raise error

    async def _attempt(self, client: KubeClient, operation: Operation) -> ApiError | None:
        """
        Carry out one operation; return its error, so that one pod's failure does not stop the
        others.
        """
        try:
            await self._carry_out(client, operation)
        except ApiError as error:
            return error
        return None

    async def _devices(self, plane: str, cache: PlaneCache) -> Devices:
        """
        The claims, templates, slices and device classes of a plane whose pods have claims.

        Listed on demand: watching four more kinds in every plane would cost more than all claims
        do.
        """
        used = any(pod["spec"].get("resourceClaims") for pod in cache[POD].items())
        if not used and plane in self._claimless:
            return Devices()
        claims = list((await cache.client.list(RESOURCE_CLAIM)).items)
        if not used:
            if not any((claim.get("status") or {}).get("reservedFor") for claim in claims):
                self._claimless.add(plane)
            return Devices(claims=claims)
        self._claimless.discard(plane)
        return Devices(
            claims=claims,
            templates=list((await cache.client.list(RESOURCE_CLAIM_TEMPLATE)).items),
            slices=list((await cache.client.list(RESOURCE_SLICE)).items),
            classes=list((await cache.client.list(DEVICE_CLASS)).items),
            namespaces=list(
                (await cache.client.list(NAMESPACE, labels=f"{ADMIN_LABEL}=true")).items
            ),
        )

    async def _groups(self, cache: PlaneCache) -> dict[Kind, list[Object]]:
        """
        The PodGroups of the kinds that the plane's pods name, where the agent has installed them.
        """
        groups: dict[Kind, list[Object]] = {}
        for source in scheduling.sources_named(cache[POD].items()):
            with suppress(NotFound):
                groups[source.kind] = list((await cache.client.list(source.kind)).items)
        return groups

    async def _carry_out(self, client: KubeClient, operation: Operation) -> None:
        """
        Carry out one operation; each is safe to repeat, and harmless when the cache was behind.
        """
        try:
            match operation:
                case CreateBid(bid=bid):
                    await client.create(BID, bid, bid["metadata"]["namespace"])
                case PriceBid(bid=bid, max_price=price, pace=pace):
                    metadata = bid["metadata"]
                    note = {"annotations": {labels.PACE: pace}} if pace else {}
                    await client.patch(
                        BID,
                        metadata["name"],
                        {
                            "metadata": {"resourceVersion": metadata["resourceVersion"], **note},
                            "spec": {"maxPrice": price},
                        },
                        metadata["namespace"],
                    )
                case DeleteBid(bid=bid):
                    metadata = bid["metadata"]
                    await client.delete(
                        BID, metadata["name"], metadata["namespace"], uid=metadata["uid"]
                    )
                case BindPod(pod=pod, node=node):
                    metadata = pod["metadata"]
                    await client.bind(
                        metadata["namespace"], metadata["name"], node, uid=metadata["uid"]
                    )
                    await self._recorder.record(
                        client, pod, "Scheduled", f"bound to {node}, the lease it won"
                    )
                    await self._report_isolation(client, pod, node)
                    if labels.PENDING in (metadata.get("annotations") or {}):
                        cleared = {"metadata": {"annotations": {labels.PENDING: None}}}
                        await client.patch(POD, metadata["name"], cleared, metadata["namespace"])
                case ReleaseLease(lease=lease):
                    metadata = lease["metadata"]
                    await client.delete(GPU_LEASE, metadata["name"], metadata["namespace"])
                case TellGroup(kind=kind, group=group, status=status):
                    await self._update_group(client, kind, group, status)
                case Explain():
                    await self._explain(client, operation)
                case MakeClaim(pod=pod, name=name, claim=claim):
                    await self._make_claim(client, pod, name, claim)
                case (
                    AllocateClaim(claim=claim, status=status)
                    | ReleaseClaim(claim=claim, status=status)
                ):
                    metadata = claim["metadata"]
                    await client.patch(
                        RESOURCE_CLAIM,
                        metadata["name"],
                        # The decision holds only for this version of the claim.
                        {
                            "metadata": {"resourceVersion": metadata["resourceVersion"]},
                            "status": status,
                        },
                        metadata["namespace"],
                        subresource="status",
                    )
        except (AlreadyExists, NotFound):
            return

    async def _report_isolation(self, client: KubeClient, pod: Object, node: str) -> None:
        """
        Record an Event for a pod on a time-sliced GPU, which isolates neither memory nor compute.
        """
        lease_node = await client.get(NODE, node)
        if (lease_node["metadata"].get("labels") or {}).get(labels.ISOLATION) == "none":
            await self._recorder.record(
                client,
                pod,
                "NoIsolation",
                "its part of a GPU is time-sliced: neither memory nor compute is isolated from"
                " the other pods on it; use a MIG part for isolation",
            )

    async def _make_claim(
        self, client: KubeClient, pod: Object, name: str, claim: dict[str, Any]
    ) -> None:
        """Create a claim from the pod's template, and name it in the pod's status."""
        metadata = pod["metadata"]
        with suppress(AlreadyExists):  # created before, but not yet in the pod's status
            await client.create(RESOURCE_CLAIM, claim, metadata["namespace"])
        statuses = [
            status
            for status in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
            if status["name"] != name
        ]
        statuses.append({"name": name, "resourceClaimName": claim["metadata"]["name"]})
        await client.patch(
            POD,
            metadata["name"],
            {"status": {"resourceClaimStatuses": statuses}},
            metadata["namespace"],
            subresource="status",
        )

    async def _update_group(
        self, client: KubeClient, kind: Kind, group: Object, status: dict[str, Any]
    ) -> None:
        """Write the status of a PodGroup."""
        metadata = group["metadata"]
        change = {"metadata": {"uid": metadata["uid"]}, "status": status}
        name, namespace = metadata["name"], metadata["namespace"]
        try:
            await client.patch(kind, name, change, namespace, subresource="status")
        except NotFound:  # its definition may have no such subresource
            await client.patch(kind, name, change, namespace)

    async def _explain(self, client: KubeClient, explanation: Explain) -> None:
        """
        Write why the pod waits to its PodScheduled condition, and for programs to an annotation.
        """
        pod, reason, message = explanation.pod, explanation.reason, explanation.message
        conditions = list((pod.get("status") or {}).get("conditions") or ())
        current = _scheduled_condition(pod)
        if current and (current.get("reason"), current.get("message")) == (reason, message):
            return
        now = self._clock.now()
        since = _created_at(explanation.bid or pod, now)
        details = pending.explanation(reason, message, explanation.bid, now=now, since=since)
        metadata = pod["metadata"]
        previous = _previous_explanation(pod)
        if current and current.get("reason") == reason and not pending.differs(details, previous):
            return
        condition: dict[str, Any] = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": (current or {}).get("lastTransitionTime") or rfc3339(now),
        }
        other_conditions = [c for c in conditions if c["type"] != "PodScheduled"]
        # The annotation and the condition in one write: whoever writes a pod's status may write
        # its annotations. A wait of one round gets only the condition.
        note = (
            {labels.PENDING: msgspec.json.encode(details).decode()} if reason != "Bidding" else {}
        )
        await client.patch(
            POD,
            metadata["name"],
            {
                "metadata": {
                    "resourceVersion": metadata["resourceVersion"],
                    **({"annotations": note} if note else {}),
                },
                "status": {"conditions": [*other_conditions, condition]},
            },
            metadata["namespace"],
            subresource="status",
        )
        # One Event per change of reason, not per change of price.
        if reason not in ("Bidding", "Won") and (not current or current.get("reason") != reason):
            await self._recorder.record(client, pod, reason, message, type="Warning")


def _created_at(obj: Object, now: float) -> float:
    """The object's creation time; `now` if it has none."""
    created = obj["metadata"].get("creationTimestamp")
    return parse_rfc3339(created) if created else now


def _scheduled_condition(pod: Object) -> Object | None:
    """The pod's PodScheduled condition."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == "PodScheduled"), None)


def _previous_explanation(pod: Object) -> Object | None:
    """The explanation in the pod's annotation; None if there is none, or it cannot be read."""
    text = (pod["metadata"].get("annotations") or {}).get(labels.PENDING)
    if text is None:
        return None
    try:
        details: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        pending.differs(details, details)
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError):
        return None
    return details
