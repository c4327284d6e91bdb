"""
Agents: a host namespace, a plane, and their orderly end.

The wallet is the exchange's: it opens one for every Agent it sees and keeps the Agent
(by a finalizer of its own) until the account is settled. Here the plane goes first, so
that credentials die and nothing makes new work; then what is left on the host.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import PlaneLimits, host_namespace
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, NAMESPACE, POD, Kind
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

    def _changed(self, event: EventType, agent: Object) -> None:
        self.controller.add(agent["metadata"]["name"])

    async def reconcile(self, name: str) -> float | None:
        """Set up or tear down one agent; return the delay until the next run, or None."""
        agent = self._agents.get(None, name)
        if agent is None:
            return None
        if agent["metadata"].get("deletionTimestamp"):
            return await self._tear_down(agent)
        await self._set_up(agent)
        return None

    async def _set_up(self, agent: Object) -> None:
        """Create the agent's host namespace and plane, and report both in its status."""
        name = agent["metadata"]["name"]
        # The finalizer comes first, so that a deleted Agent always cleans up what follows.
        await self._add_finalizer(agent)
        await self._ensure_namespace(name)
        limits = msgspec.convert(agent["spec"].get("limits") or {}, PlaneLimits)
        plane = await self._driver.ensure(name, agent["metadata"]["uid"], limits)
        self._planes.open(name)
        phase = "Suspended" if agent["spec"].get("suspended") else "Ready"
        await self._update_status(agent, {"phase": phase, "plane": plane.url})

    async def _tear_down(self, agent: Object) -> float | None:
        """
        Remove the agent's plane, then its host objects, then the finalizer. Return the delay until
        the next attempt, or None when done.
        """
        name = agent["metadata"]["name"]
        if labels.PLANE_FINALIZER not in (agent["metadata"].get("finalizers") or ()):
            return None
        await self._update_status(agent, {"phase": "Deleting"})
        await self._planes.close(name)
        await self._driver.delete(name)
        namespace = host_namespace(name)
        remaining = await self._delete_all(BID, namespace) + await self._delete_all(POD, namespace)
        if not remaining:
            # Only after the pods are gone: a released lease's devices may be sold at once.
            remaining = await self._delete_all(GPU_LEASE, namespace)
        has_wallet = labels.WALLET_FINALIZER in (agent["metadata"].get("finalizers") or ())
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
            namespace = await self._host.get(NAMESPACE, name)
            if not namespace["metadata"].get("deletionTimestamp"):
                await self._host.delete(NAMESPACE, name)
        except NotFound:
            return False
        return True

    async def _add_finalizer(self, agent: Object) -> None:
        """Add our finalizer to the Agent, unless it has it."""
        metadata = agent["metadata"]
        finalizers = list(metadata.get("finalizers") or ())
        if labels.PLANE_FINALIZER not in finalizers:
            await self._host.patch(
                AGENT,
                metadata["name"],
                {
                    "metadata": {
                        "finalizers": [*finalizers, labels.PLANE_FINALIZER],
                        "resourceVersion": metadata["resourceVersion"],
                    }
                },
            )

    async def _remove_finalizer(self, name: str) -> None:
        # Read again: the exchange has removed its own finalizer from the same list.
        """Remove our finalizer, so that the Agent can be deleted."""
        agent = await self._host.get(AGENT, name)
        metadata = agent["metadata"]
        finalizers = [f for f in metadata.get("finalizers") or () if f != labels.PLANE_FINALIZER]
        await self._host.patch(
            AGENT,
            name,
            {
                "metadata": {
                    "finalizers": finalizers,
                    "resourceVersion": metadata["resourceVersion"],
                }
            },
        )

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
            if not obj["metadata"].get("deletionTimestamp"):
                with contextlib.suppress(NotFound):
                    await self._host.delete(kind, obj["metadata"]["name"], namespace)
        return len(listing.items)

    async def _update_status(self, agent: Object, status: dict[str, Any]) -> None:
        """Write these status fields, unless they are already set."""
        current = agent.get("status") or {}
        if any(current.get(key) != value for key, value in status.items()):
            await self._host.patch(
                AGENT, agent["metadata"]["name"], {"status": status}, subresource="status"
            )
