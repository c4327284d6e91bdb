"""
Every agent's scheduler: one reconciler, keyed by plane.

Reads the plane's caches, lets `core/scheduling` decide, carries the plan out. Nothing is
remembered between two looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import DEFAULT_MAX_PRICE, Strategy
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
from bidplane.core import pending, scheduling
from bidplane.core.claiming import ADMIN_LABEL, AllocateClaim, Devices, MakeClaim, ReleaseClaim
from bidplane.core.scheduling import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    Operation,
    PriceBid,
    ReleaseLease,
    Snapshot,
    TellGroup,
)
from bidplane.errors import AlreadyExists, ApiError, NotFound
from bidplane.kube.client import Client, Object
from bidplane.machinery.clock import Clock, parse_rfc3339, rfc3339
from bidplane.machinery.controller import WORKERS, Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.informer import Informer
from bidplane.machinery.planes import PlaneCache, PlaneCaches

PACE_SECONDS = 5.0  # how often a strategy is asked what to offer now
KINDS = (POD, BID, GPU_LEASE, NODE)
_LOOK_AGAIN_SECONDS = 1.0  # at claims, which few planes have and nobody watches
_PASSING = ("Bidding", "Won")  # reasons to wait that mostly are over within a round
_BRIEF_SECONDS = 10.0  # a burst of pods takes a few seconds; telling of it would take more
_GATHER_SECONDS = 0.01
_REST_SECONDS = 0.05


class SchedulerController:
    def __init__(self, agents: Informer, planes: PlaneCaches, *, clock: Clock) -> None:
        self._agents = agents
        self._planes = planes
        self._clock = clock
        self._recorder = Recorder("bidplane-scheduler", clock=clock)
        self._claimless: set[str] = set()  # planes of which it is known that no claim is held
        self.controller = Controller(
            "scheduler", self.reconcile, workers=WORKERS, rest=_REST_SECONDS
        )
        for kind in KINDS:
            planes.on_change(kind, lambda plane, event, obj: self._soon(plane))
        planes.on_open(self._opened)
        agents.on_change(lambda event, agent: self.controller.add(agent["metadata"]["name"]))

    def _soon(self, plane: str) -> None:
        """One look for all that changes at about the same time: it looks at the whole plane."""
        self.controller.add_after(plane, _GATHER_SECONDS)

    def _opened(self, plane: str) -> None:
        self._claimless.discard(plane)  # it may have been restored since
        self.controller.add(plane)

    async def reconcile(self, plane: str) -> float | None:
        cache = self._planes.get(plane)
        if cache is None:
            return None
        agent = self._agents.get(None, plane)
        spec = agent["spec"] if agent is not None else {}
        snapshot = Snapshot(
            pods=cache[POD].items(),
            bids=cache[BID].items(),
            leases=cache[GPU_LEASE].items(),
            nodes=cache[NODE].items(),
            max_price=spec.get("maxPrice") or DEFAULT_MAX_PRICE,
            suspended=bool(spec.get("suspended")),
            devices=await self._devices(plane, cache),
            jobs=cache[JOB].items(),
            groups=await self._groups(cache),
            strategy=Strategy(spec.get("strategy") or Strategy.MANUAL),
            hourly=parse_credits(spec.get("refill") or "0") * spec.get("priority", 1),
            now=self._clock.now(),
        )
        operations, brief = self._worth_saying(scheduling.plan(snapshot), snapshot.now)
        await self._carry_out_all(cache.client, operations)
        waiting = any(
            (pod["spec"].get("resourceClaims") or scheduling.sources_named([pod]))
            and scheduling.is_pending(pod)
            for pod in snapshot.pods
        )
        if waiting or brief:
            return _LOOK_AGAIN_SECONDS
        return PACE_SECONDS if scheduling.is_paced(snapshot) else None

    def _worth_saying(self, plan: Sequence[Operation], now: float) -> tuple[list[Operation], bool]:
        """A new bid most likely wins within a round: that it has not yet is not said at once."""
        kept = [
            one
            for one in plan
            if not (
                isinstance(one, Explain)
                and one.reason in _PASSING
                and one.bid is not None
                and now - _made_at(one.bid, now) < _BRIEF_SECONDS
                and not _scheduled_condition(one.pod)
            )
        ]
        return kept, len(kept) < len(plan)

    async def _carry_out_all(self, client: Client, operations: Sequence[Operation]) -> None:
        """
        Together, so that they are one commit of the plane; any order comes to the same end.
        Only claims are in order: they are allocated before their pod is bound.
        """
        if any(isinstance(one, MakeClaim | AllocateClaim | ReleaseClaim) for one in operations):
            done = [await self._attempt(client, operation) for operation in operations]
        else:
            done = await asyncio.gather(*(self._attempt(client, one) for one in operations))
        for error in done:
            if error is not None:
                raise error

    async def _attempt(self, client: Client, operation: Operation) -> ApiError | None:
        """One pod's trouble is not the others': returned, not raised."""
        try:
            await self._carry_out(client, operation)
        except ApiError as error:
            return error
        return None

    async def _devices(self, plane: str, cache: PlaneCache) -> Devices:
        """
        Asked of the plane, and only where pods have claims: watching four more kinds in every
        plane would cost more than all claims there are.
        """
        used = any(pod["spec"].get("resourceClaims") for pod in cache[POD].items())
        if not used and plane in self._claimless:
            return Devices()
        claims = list((await cache.client.list(RESOURCE_CLAIM)).items)
        if not used:
            if not any((one.get("status") or {}).get("reservedFor") for one in claims):
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
        """The PodGroups of the kinds its pods name, where its agent has installed them."""
        found: dict[Kind, list[Object]] = {}
        for source in scheduling.sources_named(cache[POD].items()):
            with suppress(NotFound):
                found[source.kind] = list((await cache.client.list(source.kind)).items)
        return found

    async def _carry_out(self, client: Client, operation: Operation) -> None:
        """Each operation is safe to repeat, and harmless when the cache was behind."""
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
                    await self._tell_of_isolation(client, pod, node)
                    if labels.PENDING in (metadata.get("annotations") or {}):
                        gone = {"metadata": {"annotations": {labels.PENDING: None}}}
                        await client.patch(POD, metadata["name"], gone, metadata["namespace"])
                case ReleaseLease(lease=lease):
                    metadata = lease["metadata"]
                    await client.delete(GPU_LEASE, metadata["name"], metadata["namespace"])
                case TellGroup(kind=kind, group=group, status=status):
                    await self._tell_group(client, kind, group, status)
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
                        # What was decided is decided of this claim as it was seen.
                        {
                            "metadata": {"resourceVersion": metadata["resourceVersion"]},
                            "status": status,
                        },
                        metadata["namespace"],
                        subresource="status",
                    )
        except (AlreadyExists, NotFound):
            return

    async def _tell_of_isolation(self, client: Client, pod: Object, node: str) -> None:
        """Whoever shares a GPU by turns is told so, before it is taken for more."""
        found = await client.get(NODE, node)
        if (found["metadata"].get("labels") or {}).get(labels.ISOLATION) == "none":
            await self._recorder.record(
                client,
                pod,
                "NoIsolation",
                "its part of a GPU is shared by taking turns: neither memory nor compute is kept"
                " from the others on it; MIG parts are isolated",
            )

    async def _make_claim(
        self, client: Client, pod: Object, name: str, claim: dict[str, Any]
    ) -> None:
        metadata = pod["metadata"]
        with suppress(AlreadyExists):  # made before, and only not said yet
            await client.create(RESOURCE_CLAIM, claim, metadata["namespace"])
        said = [
            one
            for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
            if one["name"] != name
        ]
        said.append({"name": name, "resourceClaimName": claim["metadata"]["name"]})
        await client.patch(
            POD,
            metadata["name"],
            {"status": {"resourceClaimStatuses": said}},
            metadata["namespace"],
            subresource="status",
        )

    async def _tell_group(
        self, client: Client, kind: Kind, group: Object, status: dict[str, Any]
    ) -> None:
        metadata = group["metadata"]
        said = {"metadata": {"uid": metadata["uid"]}, "status": status}
        name, namespace = metadata["name"], metadata["namespace"]
        try:
            await client.patch(kind, name, said, namespace, subresource="status")
        except NotFound:  # its definition may have no such subresource
            await client.patch(kind, name, said, namespace)

    async def _explain(self, client: Client, why: Explain) -> None:
        """In words on the condition, and for programs in an annotation."""
        pod, reason, message = why.pod, why.reason, why.message
        conditions = list((pod.get("status") or {}).get("conditions") or ())
        known = _scheduled_condition(pod)
        if known and (known.get("reason"), known.get("message")) == (reason, message):
            return
        now = self._clock.now()
        since = _made_at(why.bid or pod, now)
        said = pending.explanation(reason, message, why.bid, now=now, since=since)
        metadata = pod["metadata"]
        before = _said_before(pod)
        if known and known.get("reason") == reason and not pending.differs(said, before):
            return
        condition: dict[str, Any] = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": (known or {}).get("lastTransitionTime") or rfc3339(now),
        }
        others = [c for c in conditions if c["type"] != "PodScheduled"]
        # The annotation and the condition in one write: whoever writes a pod's status may write
        # its annotations. What lasts for a round only is not worth more than a condition.
        note = {labels.PENDING: msgspec.json.encode(said).decode()} if reason != "Bidding" else {}
        await client.patch(
            POD,
            metadata["name"],
            {
                "metadata": {
                    "resourceVersion": metadata["resourceVersion"],
                    **({"annotations": note} if note else {}),
                },
                "status": {"conditions": [*others, condition]},
            },
            metadata["namespace"],
            subresource="status",
        )
        # One Event a change of reason: a price that moves every round is not news.
        if reason not in ("Bidding", "Won") and (not known or known.get("reason") != reason):
            await self._recorder.record(client, pod, reason, message, type="Warning")


def _made_at(obj: Object, now: float) -> float:
    made = obj["metadata"].get("creationTimestamp")
    return parse_rfc3339(made) if made else now


def _scheduled_condition(pod: Object) -> Object | None:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == "PodScheduled"), None)


def _said_before(pod: Object) -> Object | None:
    """What the annotation says; None if there is none, or its owner wrote something else."""
    text = (pod["metadata"].get("annotations") or {}).get(labels.PENDING)
    if text is None:
        return None
    try:
        said: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        pending.differs(said, said)
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError):
        return None
    return said
