"""
Agents: a host namespace, a plane, and their orderly end.

The wallet is the exchange's: it opens one for every Agent it sees and keeps the Agent
(by a finalizer of its own) until the account is settled. Here the plane goes first, so
that credentials die and nothing makes new work; then what is left on the host.
"""

from __future__ import annotations

import contextlib

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, NAMESPACE, POD, Kind
from bidplane.api.objects import is_deleted, name_of
from bidplane.api.reading import Agent, Invalid, read_agent
from bidplane.api.views import KubeObject
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import EventType, KubeClient, Object
from bidplane.machinery.controller import Controller
from bidplane.machinery.informer import Informer
from bidplane.machinery.planes import PlaneCaches, PlaneDriver

_LOOK_AGAIN_SECONDS = 0.2  # while pods and leases of a deleted agent drain


class AgentController:
    """
    Creates the namespace and the plane of each Agent, and removes them in order when it is
    deleted.
    """

    def __init__(
        self, host: KubeClient, agents: Informer, driver: PlaneDriver, planes: PlaneCaches
    ) -> None:
        self._host = host
        self._agents = agents
        self._driver = driver
        self._planes = planes
        self.controller = Controller("agent", self.reconcile)
        agents.on_change(self._changed)

    def _changed(self, event: EventType, obj: Object) -> None:
        self.controller.add(name_of(obj))

    async def reconcile(self, name: str) -> float | None:
        """Set up or tear down one agent; return the delay until the next run, or None."""
        obj = self._agents.get(None, name)
        if obj is None:
            return None
        if is_deleted(obj):  # its end needs no spec, so an unreadable Agent can be deleted, too
            return await self._tear_down(KubeObject(obj))
        agent = read_agent(obj)
        if isinstance(agent, Invalid):
            return None  # the cache has logged it
        await self._set_up(agent)
        return None

    async def _set_up(self, agent: Agent) -> None:
        """Create the agent's host namespace and plane, and report both in its status."""
        # The finalizer comes first, so that a deleted Agent always cleans up what follows.
        await self._add_finalizer(agent)
        await self._ensure_namespace(agent.name)
        plane = await self._driver.ensure(agent.name, agent.uid, agent.spec.limits)
        self._planes.open(agent.name)
        phase = "Suspended" if agent.spec.suspended else "Ready"
        if (agent.status.phase, agent.status.plane) != (phase, plane.url):
            await self._update_status(agent.name, {"phase": phase, "plane": plane.url})

    async def _tear_down(self, agent: KubeObject) -> float | None:
        """
        Remove the agent's plane, then its host objects, then the finalizer. Return the delay until
        the next attempt, or None when done.
        """
        name = agent.name
        if labels.PLANE_FINALIZER not in agent.finalizers:
            return None
        if agent.phase != "Deleting":
            await self._update_status(name, {"phase": "Deleting"})
        await self._planes.close(name)
        await self._driver.delete(name)
        namespace = host_namespace(name)
        remaining = await self._delete_all(BID, namespace) + await self._delete_all(POD, namespace)
        if not remaining:
            # Only after the pods are gone: a released lease's devices may be sold at once.
            remaining = await self._delete_all(GPU_LEASE, namespace)
        has_wallet = labels.WALLET_FINALIZER in agent.finalizers
        if remaining or has_wallet:
            return _LOOK_AGAIN_SECONDS
        # Wait for the namespace: a new Agent may take the name, and needs a clean one.
        if await self._delete_namespace(namespace):
            return _LOOK_AGAIN_SECONDS
        await self._remove_finalizer(name)
        return None

    async def _delete_namespace(self, name: str) -> bool:
        """Request the namespace's deletion; return True while it still exists."""
        try:
            if not is_deleted(await self._host.get(NAMESPACE, name)):
                await self._host.delete(NAMESPACE, name)
        except NotFound:
            return False
        return True

    async def _add_finalizer(self, agent: Agent) -> None:
        """Add our finalizer to the Agent, unless it has it."""
        metadata = agent.metadata
        if labels.PLANE_FINALIZER not in metadata.finalizers:
            finalizers = [*metadata.finalizers, labels.PLANE_FINALIZER]
            await self._set_finalizers(agent.name, finalizers, metadata.resource_version)

    async def _remove_finalizer(self, name: str) -> None:
        """Remove our finalizer, so that the Agent can be deleted."""
        # Read again: the exchange has removed its own finalizer from the same list.
        agent = KubeObject(await self._host.get(AGENT, name))
        finalizers = [f for f in agent.finalizers if f != labels.PLANE_FINALIZER]
        await self._set_finalizers(name, finalizers, agent.resource_version)

    async def _set_finalizers(self, name: str, finalizers: list[str], version: str) -> None:
        """Write an Agent's finalizers, unless the Agent changed since that version."""
        metadata = {"finalizers": finalizers, "resourceVersion": version}
        await self._host.patch(AGENT, name, {"metadata": metadata})

    async def _ensure_namespace(self, name: str) -> None:
        """Create the agent's host namespace, unless it exists."""
        namespace = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": host_namespace(name), "labels": {labels.AGENT: name}},
        }
        with contextlib.suppress(AlreadyExists):
            await self._host.create(NAMESPACE, namespace)

    async def _delete_all(self, kind: Kind, namespace: str) -> int:
        """Request the deletion of every object of a kind; return how many still exist."""
        listing = await self._host.list(kind, namespace)
        for obj in listing.items:
            if not is_deleted(obj):
                with contextlib.suppress(NotFound):
                    await self._host.delete(kind, name_of(obj), namespace)
        return len(listing.items)

    async def _update_status(self, name: str, status: dict[str, str]) -> None:
        """Write these status fields."""
        await self._host.patch(AGENT, name, {"status": status}, subresource="status")
