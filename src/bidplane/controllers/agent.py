"""
Agents: a host namespace, a plane, and their orderly end.

The wallet is the exchange's: it opens one for every Agent it sees and keeps the Agent
(by a finalizer of its own) until the account is settled. Here the plane goes first, so
that credentials die and nothing makes new work; then what is left on the host.
"""

from __future__ import annotations

import contextlib
from typing import Any

from bidplane.api import labels
from bidplane.api.agent import host_namespace
from bidplane.api.kinds import AGENT, BID, GPU_LEASE, NAMESPACE, POD, Kind
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import Client, EventType, Object
from bidplane.machinery.controller import Controller
from bidplane.machinery.informer import Informer
from bidplane.machinery.planes import PlaneCaches, PlaneDriver

_LOOK_AGAIN_SECONDS = 0.2  # while pods and leases of a deleted agent drain


class AgentController:
    def __init__(
        self, host: Client, agents: Informer, driver: PlaneDriver, planes: PlaneCaches
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
        agent = self._agents.get(None, name)
        if agent is None:
            return None
        if agent["metadata"].get("deletionTimestamp"):
            return await self._end(agent)
        await self._begin(agent)
        return None

    async def _begin(self, agent: Object) -> None:
        name = agent["metadata"]["name"]
        # The finalizer first: what is made below must be found again when the Agent goes.
        await self._keep(agent)
        await self._ensure_namespace(name)
        plane = await self._driver.ensure(name, agent["metadata"]["uid"])
        self._planes.open(name)
        phase = "Suspended" if agent["spec"].get("suspended") else "Ready"
        await self._say(agent, {"phase": phase, "plane": plane.url})

    async def _end(self, agent: Object) -> float | None:
        name = agent["metadata"]["name"]
        if labels.PLANE_FINALIZER not in (agent["metadata"].get("finalizers") or ()):
            return None
        await self._say(agent, {"phase": "Deleting"})
        await self._planes.close(name)
        await self._driver.delete(name)
        namespace = host_namespace(name)
        left = await self._delete_all(BID, namespace) + await self._delete_all(POD, namespace)
        if not left:
            # Only now: a released lease's devices may be sold at once.
            left = await self._delete_all(GPU_LEASE, namespace)
        waits = labels.WALLET_FINALIZER in (agent["metadata"].get("finalizers") or ())
        if left or waits:
            return _LOOK_AGAIN_SECONDS
        # Waited for: another Agent may take the name, and would find it half gone.
        if await self._end_namespace(namespace):
            return _LOOK_AGAIN_SECONDS
        await self._let_go(name)
        return None

    async def _end_namespace(self, name: str) -> bool:
        """Ask for its end; whether it is still there."""
        try:
            namespace = await self._host.get(NAMESPACE, name)
            if not namespace["metadata"].get("deletionTimestamp"):
                await self._host.delete(NAMESPACE, name)
        except NotFound:
            return False
        return True

    async def _keep(self, agent: Object) -> None:
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

    async def _let_go(self, name: str) -> None:
        # Read again: the exchange has removed its own finalizer from the same list.
        agent = await self._host.get(AGENT, name)
        metadata = agent["metadata"]
        left = [f for f in metadata.get("finalizers") or () if f != labels.PLANE_FINALIZER]
        await self._host.patch(
            AGENT,
            name,
            {"metadata": {"finalizers": left, "resourceVersion": metadata["resourceVersion"]}},
        )

    async def _ensure_namespace(self, name: str) -> None:
        namespace = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": host_namespace(name), "labels": {labels.AGENT: name}},
        }
        with contextlib.suppress(AlreadyExists):
            await self._host.create(NAMESPACE, namespace)

    async def _delete_all(self, kind: Kind, namespace: str) -> int:
        """Ask for the end of every object; returns how many are still there."""
        listing = await self._host.list(kind, namespace)
        for obj in listing.items:
            if not obj["metadata"].get("deletionTimestamp"):
                with contextlib.suppress(NotFound):
                    await self._host.delete(kind, obj["metadata"]["name"], namespace)
        return len(listing.items)

    async def _say(self, agent: Object, status: dict[str, Any]) -> None:
        known = agent.get("status") or {}
        if any(known.get(key) != value for key, value in status.items()):
            await self._host.patch(
                AGENT, agent["metadata"]["name"], {"status": status}, subresource="status"
            )
