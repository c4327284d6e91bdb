"""
Carries out the operations that `core/scheduling` plans.

Each is safe to repeat, and harmless when the cache was behind. The failure of one does not stop the
other_statuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from bidplane.api import labels
from bidplane.api.kinds import BID, GPU_LEASE, NODE, POD, RESOURCE_CLAIM, Kind
from bidplane.api.objects import Fields
from bidplane.api.reading import Bid
from bidplane.api.views import KubeObject, Node, Pod
from bidplane.controllers.scheduler.explanations import PodExplainer
from bidplane.core.scheduling import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    Operation,
    PriceBid,
    ReleaseLease,
    TellGroup,
)
from bidplane.core.scheduling.podclaims import AllocateClaim, MakeClaim, ReleaseClaim
from bidplane.errors import AlreadyExists, ApiError, NotFound
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder


class SchedulingExecutor:
    """Carries out scheduling operations in any plane."""

    def __init__(self, *, clock: Clock) -> None:
        self._recorder = Recorder("bidplane-scheduler", clock=clock)
        self._explainer = PodExplainer(self._recorder, clock=clock)

    async def carry_out(self, client: KubeClient, operations: Sequence[Operation]) -> None:
        """
        Carry the operations out at once, as one commit of the plane; their order does not matter.
        Raise the first error when all have been tried.

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
        """Carry out one operation; return its error."""
        try:
            await self._carry_out_one(client, operation)
        except (AlreadyExists, NotFound):  # done before, or no longer needed
            return None
        except ApiError as error:
            return error
        return None

    async def _carry_out_one(self, client: KubeClient, operation: Operation) -> None:
        match operation:
            case CreateBid(bid=draft):
                await client.create(BID, draft, draft["metadata"]["namespace"])
            case PriceBid(bid=bid, max_price=price, pace=pace):
                await _set_price(client, bid, price, pace)
            case DeleteBid(bid=bid):
                await client.delete(BID, bid.name, bid.namespace, uid=bid.uid)
            case BindPod(pod=pod, node=node):
                await self._bind(client, Pod(pod), node)
            case ReleaseLease(lease=lease):
                await client.delete(GPU_LEASE, lease.name, lease.namespace)
            case TellGroup(kind=kind, group=group, status=status):
                await _update_group(client, kind, KubeObject(group), status)
            case Explain():
                await self._explainer.explain(client, operation)
            case MakeClaim(pod=pod, name=name, claim=claim):
                await _make_claim(client, Pod(pod), name, claim)
            case (
                AllocateClaim(claim=claim, status=status) | ReleaseClaim(claim=claim, status=status)
            ):
                await _write_claim_status(client, KubeObject(claim), status)

    async def _bind(self, client: KubeClient, pod: Pod, node: str) -> None:
        """Bind a pod, with an Event, and remove the explanation of its wait."""
        await client.bind(pod.namespace, pod.name, node, uid=pod.uid)
        message = f"bound to {node}, the lease it won"
        await self._recorder.record(client, pod, "Scheduled", message)
        await self._report_isolation(client, pod, node)
        if labels.PENDING in pod.annotations:
            cleared = {"metadata": {"annotations": {labels.PENDING: None}}}
            await client.patch(POD, pod.name, cleared, pod.namespace)

    async def _report_isolation(self, client: KubeClient, pod: Pod, node: str) -> None:
        """
        Record an Event for a pod on a time-sliced GPU, which isolates neither memory nor compute.
        """
        if Node(await client.get(NODE, node)).labels.get(labels.ISOLATION) == "none":
            await self._recorder.record(
                client,
                pod,
                "NoIsolation",
                "its part of a GPU is time-sliced: neither memory nor compute is isolated from"
                " the other pods on it; use a MIG part for isolation",
            )


async def _set_price(client: KubeClient, bid: Bid, price: str, pace: str) -> None:
    """Change the price of a bid, unless the bid changed meanwhile."""
    metadata = {
        "resourceVersion": bid.metadata.resource_version,
        **({"annotations": {labels.PACE: pace}} if pace else {}),
    }
    change = {"metadata": metadata, "spec": {"maxPrice": price}}
    await client.patch(BID, bid.name, change, bid.namespace)


async def _make_claim(client: KubeClient, pod: Pod, name: str, claim: Fields) -> None:
    """Create a claim from the pod's template, and name it in the pod's status."""
    with suppress(AlreadyExists):  # created before, but not yet in the pod's status
        await client.create(RESOURCE_CLAIM, claim, pod.namespace)
    other_statuses = [
        status for status in pod.status.get("resourceClaimStatuses") or () if status["name"] != name
    ]
    claim_status = {"name": name, "resourceClaimName": claim["metadata"]["name"]}
    status = {"resourceClaimStatuses": [*other_statuses, claim_status]}
    await client.patch(POD, pod.name, {"status": status}, pod.namespace, subresource="status")


async def _write_claim_status(client: KubeClient, claim: KubeObject, status: Fields) -> None:
    """Write a claim's allocation and reservation, which hold only for this version of it."""
    await client.patch(
        RESOURCE_CLAIM,
        claim.name,
        {"metadata": {"resourceVersion": claim.resource_version}, "status": status},
        claim.namespace,
        subresource="status",
    )


async def _update_group(client: KubeClient, kind: Kind, group: KubeObject, status: Fields) -> None:
    """Write the status of a PodGroup."""
    change = {"metadata": {"uid": group.uid}, "status": status}
    try:
        await client.patch(kind, group.name, change, group.namespace, subresource="status")
    except NotFound:  # its definition may have no such subresource
        await client.patch(kind, group.name, change, group.namespace)
