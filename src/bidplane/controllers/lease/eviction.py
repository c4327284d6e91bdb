"""
The end of a lease: notice to its pods, their eviction, and the return of the devices.

A lease ends when the exchange drains it, when its agent deletes the mirror, when the node's owner
evicts the pods, or when the machine is gone. In each case the plane's pods are told why and evicted
with the time that is left. The host's lease is deleted only when no pod uses the devices.
"""

from __future__ import annotations

from contextlib import suppress

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import GPU_LEASE, POD, POD_TEMPLATE
from bidplane.api.reading import GPULease
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.api.views import Pod
from bidplane.controllers.lease.pods import LeasePods
from bidplane.controllers.podwrites import annotate, delete_pod, set_conditions
from bidplane.core.hosting.translation import host_name
from bidplane.core.leases import notice, requeue
from bidplane.core.leases.notice import ReclaimNotice
from bidplane.core.scheduling import is_live_on
from bidplane.errors import AlreadyExists, NotFound
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder
from bidplane.machinery.planes import PlaneCache


class LeaseEviction:
    """Evicts the pods of leases that end, and gives the devices back."""

    def __init__(
        self, host: PlaneCache, pods: LeasePods, *, recorder: Recorder, clock: Clock
    ) -> None:
        self._host = host
        self._pods = pods
        self._recorder = recorder
        self._clock = clock

    async def drain(self, plane: PlaneCache, lease: GPULease) -> float | None:
        """Evict the pods of a lease under notice; return the delay until the next look."""
        reason = lease.status.reason if lease.status is not None else ""
        return await self._evict(plane, lease, reason)

    async def release(self, plane: PlaneCache, lease: GPULease, mirror: GPULease) -> float | None:
        """Evict the pods of a lease whose mirror was deleted, then give its devices back."""
        await self._release_gang(plane, lease)
        agent = self._host.agents.get(None, plane.name)
        reason = "Suspended" if agent is not None and agent.spec.suspended else "Released"
        requested_at = parse_rfc3339(mirror.metadata.deletion_timestamp)
        wait = await self._evict(plane, lease, reason, requested_at=requested_at)
        if wait is not None:
            return wait
        in_use = self._pods.in_plane(plane, lease.name) or self._pods.on_host(lease.name)
        if in_use or lease.is_deleted:
            return None
        # Read from the host, not the cache, which may lack a new pod: once given back, the
        # devices may be sold at once.
        listing = await self._host.client.list(
            POD, lease.namespace, labels=f"{labels.LEASE}={lease.name}"
        )
        if all(pod.has_ended for pod in map(Pod, listing.items)):
            with suppress(NotFound):
                await self._host.client.delete(GPU_LEASE, lease.name, lease.namespace)
        return None

    async def end_on_lost_node(self, plane: PlaneCache, lease: GPULease) -> None:
        """
        Delete the pods and the lease of a host node that is gone: no kubelet is left to end them.
        The pods bid again.
        """
        # The plane's pods first: once the host's are gone, theirs would be removed unexplained.
        message = f"node {lease.spec.node} is gone, with all that ran on it"
        for pod in self._pods.in_plane(plane, lease.name):
            if not pod.is_deleted:
                await self._announce(plane, pod, "NodeLost", message)
        for pod in self._pods.on_host(lease.name):
            await delete_pod(self._host.client, pod, grace_seconds=0)
        for pod in self._pods.in_plane(plane, lease.name):
            await delete_pod(plane.client, pod, grace_seconds=0)
        await self._release_gang(plane, lease)
        if not lease.is_deleted:
            with suppress(NotFound):
                await self._host.client.delete(GPU_LEASE, lease.name, lease.namespace)

    async def follow_host(self, plane: PlaneCache, lease: GPULease) -> None:
        """
        Evict from the plane each pod that the node's owner evicts on the host (`kubectl drain`),
        with the same grace; the pod bids again for another node.
        """
        evicted = {
            pod.annotations.get(labels.PLANE_UID): pod
            for pod in self._pods.on_host(lease.name)
            if pod.is_deleted
        }
        for pod in self._pods.in_plane(plane, lease.name):
            host_pod = evicted.get(pod.uid)
            if host_pod is None or pod.is_deleted:
                continue
            message = f"the owner of node {lease.spec.node} evicted the pod"
            await self._announce(plane, pod, "EvictedFromNode", message)
            seconds = parse_rfc3339(host_pod.deletion_timestamp) - self._clock.now()
            await delete_pod(plane.client, pod, grace_seconds=max(1, int(seconds)))
            await self._release_gang(plane, lease)

    async def remove_pods(self, plane: PlaneCache, name: str) -> None:
        """
        Delete the plane's pods of a lease that has ended: a pod cannot outlive its node, and on
        the host it is already gone. One that was bound while the lease ended never ran, and bids
        again. Pods on a host node whose offer was withdrawn end with their own grace.
        """
        for pod in self._pods.in_plane(plane, name):
            if self._is_on_offer(plane, pod):
                continue
            if not pod.is_deleted:
                await self._save_template(plane, pod)
            await delete_pod(plane.client, pod, grace_seconds=0)

    async def _announce(self, plane: PlaneCache, pod: Pod, reason: str, message: str) -> None:
        """
        Record why a pod is evicted, and save a bare pod's template so that it is created again.
        """
        await self._recorder.record(plane.client, pod, reason, message, type="Warning")
        await self._add_disruption_condition(plane, pod, message)
        await self._save_template(plane, pod)

    async def _release_gang(self, plane: PlaneCache, lease: GPULease) -> None:
        """Release the other leases of the same bid: the blocks of a gang end together."""
        if lease.spec.parts == 1:
            return
        for other in plane.leases.items():
            if other.spec.bid.uid == lease.spec.bid.uid and not other.is_deleted:
                with suppress(NotFound):
                    await plane.client.delete(GPU_LEASE, other.name, other.namespace)

    async def _evict(
        self,
        plane: PlaneCache,
        lease: GPULease,
        reason: str,
        *,
        requested_at: float | None = None,
    ) -> float | None:
        """
        Evict the lease's pods. Return the seconds after which to look again if a pod still writes
        a checkpoint.

        `requested_at`: when the agent or the node's owner requested the end.
        """
        waits: list[float] = []
        for pod in self._pods.in_plane(plane, lease.name):
            if not pod.is_deleted:
                reclaim_notice = (
                    notice.notice_of(lease)
                    if requested_at is None
                    else notice.notice_of_release(
                        lease, pod, reason=reason, requested_at=requested_at
                    )
                )
                wait = await self._give_notice(plane, reclaim_notice, pod, reason)
                if wait > 0:
                    waits.append(wait)
                    continue
                await self._save_template(plane, pod)
            elif not self._outlasts(pod, lease):
                continue
            # Read again: a pod that ended by itself meanwhile keeps its final status.
            latest = plane.pods.get(pod.namespace, pod.name)
            if latest is None or not is_live_on(latest, lease.name):
                continue
            await delete_pod(plane.client, pod, grace_seconds=self._grace(lease, pod))
        for pod in self._pods.on_host(lease.name):
            # Its original may be gone, or was deleted with more grace than the notice has.
            if pod.is_deleted and self._outlasts(pod, lease):
                await delete_pod(self._host.client, pod, grace_seconds=self._grace(lease, pod))
        return min(waits, default=None)

    async def _give_notice(
        self, plane: PlaneCache, reclaim_notice: ReclaimNotice | None, pod: Pod, reason: str
    ) -> float:
        """
        Announce the eviction to the pod; return the seconds that it still has for its checkpoint.
        """
        message = notice.explanation(reclaim_notice)
        await self._recorder.record(plane.client, pod, reason, message, type="Warning")
        await self._add_disruption_condition(plane, pod, message)
        if reclaim_notice is None:
            return 0.0
        annotation = notice.annotation(reclaim_notice)
        if pod.annotations.get(labels.NOTICE) != annotation:
            await annotate(plane.client, pod, {labels.NOTICE: annotation})
        host_pod = self._host_pod(plane, pod)
        return notice.checkpoint_wait(reclaim_notice, pod, host_pod, now=self._clock.now())

    def _is_on_offer(self, plane: PlaneCache, pod: Pod) -> bool:
        host_pod = self._host_pod(plane, pod)
        return host_pod is not None and labels.OFFERED in host_pod.labels

    def _host_pod(self, plane: PlaneCache, pod: Pod) -> Pod | None:
        return self._host.pods.get(host_namespace(plane.name), host_name(pod.namespace, pod.name))

    async def _add_disruption_condition(self, plane: PlaneCache, pod: Pod, message: str) -> None:
        """Set the condition DisruptionTarget: a Job does not count such a pod as failed."""
        if pod.condition("DisruptionTarget") is None:
            condition = notice.condition(message, rfc3339(self._clock.now()))
            await set_conditions(plane.client, pod, [*pod.conditions, condition])

    async def _save_template(self, plane: PlaneCache, pod: Pod) -> None:
        """
        Save a bare pod as a PodTemplate before it goes: no other controller would create it again.
        """
        if requeue.is_bare(pod):
            with suppress(AlreadyExists):
                await plane.client.create(POD_TEMPLATE, requeue.template(pod), pod.namespace)

    def _outlasts(self, pod: Pod, lease: GPULease) -> bool:
        """Return True if a pod that is being deleted may take longer than the lease's notice."""
        reclaim_at = _reclaim_at(lease)
        return (
            reclaim_at is not None
            and parse_rfc3339(pod.deletion_timestamp) > reclaim_at
            and pod.deletion_grace_seconds > self._grace(lease, pod)
        )

    def _grace(self, lease: GPULease, pod: Pod) -> int:
        """
        Return the seconds that a pod has to end: what is left of the notice, else its own grace
        period.
        """
        reclaim_at = _reclaim_at(lease)
        if reclaim_at is not None:
            return max(1, int(reclaim_at - self._clock.now()))
        return pod.grace_seconds


def _reclaim_at(lease: GPULease) -> float | None:
    """Return when the lease's notice ends; None without a notice."""
    if lease.status is None or not lease.status.reclaim_at:
        return None
    return parse_rfc3339(lease.status.reclaim_at)
