"""
A pod and its host pod, made equal: the pod says what is to run, the host pod what runs.

A bound pod is created on the host once its lease is claimed and its devices are prepared; its
metadata follow, its status comes back, and it is deleted with the grace that its original has left.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import ENDPOINT_SLICE, GPU_LEASE, POD, SERVICE
from bidplane.api.lease import Phase
from bidplane.api.reading import GPULease
from bidplane.api.times import parse_rfc3339
from bidplane.api.views import Pod
from bidplane.controllers.conditions import mark_claimed, mark_up
from bidplane.controllers.podwrites import annotate, delete_pod, patch_status
from bidplane.controllers.syncer import deviceclaims
from bidplane.controllers.syncer.dependencies import (
    MissingDependency,
    PodDependencies,
    volume_claim_names,
)
from bidplane.controllers.syncer.deviceclaims import HostClaims
from bidplane.controllers.syncer.ephemeralcontainers import copy_ephemeral_containers
from bidplane.core.devices import bindingconditions
from bidplane.core.hosting import hostnames, hostpods, translation
from bidplane.core.nodes import offers
from bidplane.core.scheduling import wants_gpus
from bidplane.errors import NotFound
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder
from bidplane.machinery.planes import PlaneCache

_PREPARING_SECONDS = 1.0  # between two looks at devices that are being prepared
_PLANE_CONDITIONS = ("PodScheduled", "DisruptionTarget")  # the host does not know them


class PodSync:
    """Makes pods of planes and their host pods equal."""

    def __init__(self, host: PlaneCache, dependencies: PodDependencies, *, clock: Clock) -> None:
        self._host = host
        self._dependencies = dependencies
        self._clock = clock
        self._recorder = Recorder("bidplane-syncer", clock=clock)
        self._offering = asyncio.Lock()

    async def sync(self, plane: PlaneCache, pod: Pod, host_pod: Pod | None) -> float | None:
        """
        Bring the pod and its host pod to the same state; return the delay until the next look.
        """
        if host_pod is not None:
            if pod.is_deleted:
                await self._delete_host_pod(pod, host_pod)
            await self._copy_metadata(plane, pod, host_pod)
            if pod.spec.get("ephemeralContainers"):
                await copy_ephemeral_containers(
                    self._host.client, pod, host_pod, api=self._plane_url(plane.name)
                )
            await self._copy_status(plane, pod, host_pod)
        elif pod.is_deleted:
            if pod.node_name and not await self._is_on_host(plane, pod):
                await delete_pod(plane.client, pod, grace_seconds=0)
        elif pod.node_name and pod.phase == "Pending":
            return await self._create_host_pod(plane, pod)
        elif pod.phase == "Running":
            lost = {
                "phase": "Failed",
                "reason": "HostPodLost",
                "message": "the host pod that ran this pod is gone",
            }
            await patch_status(plane.client, pod, lost)
        return None

    # Creation.

    async def _create_host_pod(self, plane: PlaneCache, pod: Pod) -> float | None:
        """
        Run a bound pod on the host: claim its lease, prepare its devices, create the host pod.
        Return the delay until the next look while devices are being prepared.
        """
        node = plane.nodes.get(None, pod.node_name)
        if node is not None and (offered := node.labels.get(labels.OFFERED)):
            await self._create_on_offer(plane, pod, offered)
            return None
        lease = self._lease(plane, pod)
        if lease is None or lease.is_deleted:
            return None  # the lease controller removes the node, and the pod with it
        if not wants_gpus(pod):
            if lease.phase == Phase.ACTIVE:  # else it waits for the pod that claims the lease
                await self._ensure_dependencies(plane, pod)
                await self._write_host_pod(plane, pod, lease)
            return None
        if lease.phase != Phase.ACTIVE:
            # Claim first, and run only once the exchange has answered: it may sell an unclaimed
            # lease to somebody else.
            await self._claim(lease, pod)
            return None
        await self._ensure_dependencies(plane, pod)
        now = self._clock.now()
        claims = await deviceclaims.write_claims(self._host, plane, lease, pod, now=now)
        match bindingconditions.progress(claims.gpus, now=now):
            case None:
                await self._write_host_pod(plane, pod, lease, claims=claims)
            case bindingconditions.GivenUp(message=message):
                # The pod bids again: for another device, or for this one once it works.
                reason = f"{message}; its lease is given back"
                await self._recorder.record(
                    plane.client, pod, "DeviceFailed", reason, type="Warning"
                )
                await self._release(lease)
            case bindingconditions.Preparing():
                return _PREPARING_SECONDS
        return None

    async def _create_on_offer(self, plane: PlaneCache, pod: Pod, node: str) -> None:
        """
        Run a pod on CPU that a node's owner offers; fail it, as a kubelet does, if the offer is
        used up.
        """
        host_node = self._host.nodes.get(None, node)
        await self._ensure_dependencies(plane, pod)
        async with self._offering:  # so that no two pods take the same room
            offer = offers.offer_of(host_node) if host_node is not None else {}
            listing = await self._host.client.list(POD, labels=f"{labels.OFFERED}={node}")
            remaining = offers.left_of(offer, listing.items)
            short = offers.refusal(pod, remaining)
            if not short:
                await self._write_host_pod(plane, pod, None, node=node)
                return
        message = f"node {node} has no room left: Insufficient {short}"
        status = {"phase": "Failed", "reason": f"OutOf{short}", "message": message}
        await patch_status(plane.client, pod, status)

    async def _ensure_dependencies(self, plane: PlaneCache, pod: Pod) -> None:
        """
        Copy everything that the pod refers to onto the host; record an Event if something is
        missing.
        """
        try:
            await self._dependencies.ensure(plane, pod)
        except MissingDependency as missing:
            message = f"{missing}: create it, or remove the reference from the pod"
            await self._recorder.record(plane.client, pod, "FailedMount", message, type="Warning")
            raise

    async def _write_host_pod(
        self,
        plane: PlaneCache,
        pod: Pod,
        lease: GPULease | None,
        *,
        claims: HostClaims | None = None,
        node: str = "",
    ) -> None:
        """Create the host pod of a pod: on its lease, or on a node whose owner offers CPU."""
        host_pod = hostpods.host_pod(
            plane.name,
            pod,
            lease,
            claims.gpus.name if claims is not None else "",
            node=node,
            companion_claim=claims.companions if claims is not None else "",
            volume_claims=volume_claim_names(plane, pod),
            api=self._plane_url(plane.name),
        )
        await self._host.client.create(POD, host_pod, host_pod["metadata"]["namespace"])

    async def _claim(self, lease: GPULease, pod: Pod) -> None:
        """Claim the devices at the exchange; once it makes the lease active, time is charged."""
        if lease.phase == Phase.PENDING:
            message = f"claimed for {pod.namespace}/{pod.name}"
            await mark_claimed(
                self._host.client,
                lease,
                reason="PodBound",
                message=message,
                now=self._clock.now(),
            )

    async def _release(self, lease: GPULease) -> None:
        """Delete the lease on the host."""
        with suppress(NotFound):
            await self._host.client.delete(GPU_LEASE, lease.name, lease.namespace, uid=lease.uid)

    def _lease(self, plane: PlaneCache, pod: Pod) -> GPULease | None:
        """Return the host's lease of the node that the pod is bound to."""
        return self._host.leases.get(host_namespace(plane.name), pod.node_name)

    def _plane_url(self, name: str) -> str:
        """Return the URL of the agent's plane, or ""."""
        agent = self._host.agents.get(None, name)
        return agent.status.plane if agent is not None else ""

    # Running pods.

    async def _copy_metadata(self, plane: PlaneCache, pod: Pod, host_pod: Pod) -> None:
        """
        Copy the pod's labels and annotations to the host, where a downward API volume shows them,
        and the node's annotations back.
        """
        desired = hostpods.pod_metadata(
            plane.name,
            pod,
            lease=host_pod.labels.get(labels.LEASE, ""),
            offer=host_pod.labels.get(labels.OFFERED, ""),
        )
        hosts_file = hostnames.hosts(
            pod.namespace,
            plane[SERVICE].in_namespace(pod.namespace),
            plane[ENDPOINT_SLICE].in_namespace(pod.namespace),
        )
        desired["annotations"].pop(labels.HOSTS, None)
        if hosts_file:
            desired["annotations"][labels.HOSTS] = hosts_file
        changes = translation.changed_marks(desired, host_pod, keep=labels.OF_THE_NODE)
        if changes:
            with suppress(NotFound):
                await self._host.client.patch(
                    POD, host_pod.name, {"metadata": changes}, host_pod.namespace
                )
        node_annotations = {
            key: value
            for key, value in host_pod.annotations.items()
            if key in labels.OF_THE_NODE and pod.annotations.get(key) != value
        }
        if node_annotations:
            await annotate(plane.client, pod, node_annotations)

    async def _copy_status(self, plane: PlaneCache, pod: Pod, host_pod: Pod) -> None:
        """Copy the host pod's status to the plane, but for the plane's own conditions."""
        status = dict(host_pod.status)
        if status.get("phase", "Pending") == "Pending":
            return
        if host_pod.is_true("Ready") and (lease := self._lease(plane, pod)) is not None:
            await mark_up(self._host.client, lease, now=self._clock.now())
        status["conditions"] = [
            *(c for c in pod.conditions if c["type"] in _PLANE_CONDITIONS),
            *(c for c in host_pod.conditions if c["type"] not in _PLANE_CONDITIONS),
        ]
        status.pop("resourceClaimStatuses", None)
        if any(pod.status.get(key) != value for key, value in status.items()):
            await patch_status(plane.client, pod, status)

    # Deletion.

    async def _delete_host_pod(self, pod: Pod, host_pod: Pod) -> None:
        """
        Delete the host pod with the grace that the pod has left; again, if it now has less left.
        """
        end = parse_rfc3339(pod.deletion_timestamp)
        if host_pod.is_deleted and parse_rfc3339(host_pod.deletion_timestamp) <= end:
            return  # else delete it again, with less grace
        seconds = end - self._clock.now()
        await delete_pod(self._host.client, host_pod, grace_seconds=max(1, int(seconds)))

    async def _is_on_host(self, plane: PlaneCache, pod: Pod) -> bool:
        """
        Return True if the host has a copy of the pod. Reads the host: a cache may lack a new pod.
        """
        name = translation.host_name(pod.namespace, pod.name)
        try:
            host_pod = await self._host.client.get(POD, name, host_namespace(plane.name))
        except NotFound:
            return False
        return translation.is_copy_of(host_pod, pod)
