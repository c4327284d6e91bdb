"""Marks nodes whose heartbeat stopped, and evicts their pods: see `core/nodes/heartbeats`."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.kinds import LEASE, NODE, POD
from bidplane.api.times import rfc3339
from bidplane.api.views import KubeObject, Node, Pod
from bidplane.controllers.podwrites import delete_pod, set_conditions
from bidplane.core.nodes import heartbeats
from bidplane.errors import NotFound
from bidplane.kube.client import EventType, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.planes import PlaneCache

KINDS = (NODE, LEASE, POD)
_LEASE_NAMESPACE = "kube-node-lease"


class NodeLifecycleController:
    """The node lifecycle controller of a host that is our own plane: a cluster has its own."""

    def __init__(self, host: PlaneCache, *, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._recorder = Recorder("node-controller", clock=clock)
        self.controller: Controller[str] = Controller("nodelife", self.reconcile)
        host.nodes.on_change(lambda event, node: self.controller.add(node.name))
        host[LEASE].on_change(self._heartbeat_changed)
        host.pods.on_change(self._pod_changed)

    def _heartbeat_changed(self, event: EventType, obj: Object) -> None:
        lease = KubeObject(obj)
        if lease.namespace == _LEASE_NAMESPACE:
            self.controller.add(lease.name)

    def _pod_changed(self, event: EventType, pod: Pod) -> None:
        node = self._host.nodes.get(None, pod.node_name)
        if node is not None and node.taints:
            self.controller.add(node.name)

    async def reconcile(self, name: str) -> float | None:
        """
        Update one node's readiness and taints, and evict its pods; return the delay until the next
        run.
        """
        node = self._host.nodes.get(None, name)
        lease = self._host[LEASE].get(_LEASE_NAMESPACE, name)
        if node is None or lease is None:
            return None
        now = self._clock.now()
        verdict = heartbeats.judge(node, lease, now=now, stamp=rfc3339(now))
        node = await self._apply(verdict, node)
        times = [verdict.look_again]
        for pod in self._host.pods.items():
            if pod.node_name == name and not pod.is_deleted and not pod.has_ended:
                await self._mark_not_ready(pod, node)
                evict_at = heartbeats.leaves_at(pod, node)
                if evict_at is not None and evict_at <= now:
                    await self._evict(pod)
                elif evict_at is not None:
                    times.append(evict_at)
        return max(min(times) - now, 0.05)

    async def _apply(self, verdict: heartbeats.NodeVerdict, node: Node) -> Node:
        """Write the conditions and taints of a verdict; return the node with them."""
        client = self._host.client
        with suppress(NotFound):
            if verdict.conditions is not None:
                status = {"conditions": verdict.conditions}
                await client.patch(NODE, node.name, {"status": status}, subresource="status")
                message = f"Node {node.name} status is now: NodeNotReady"
                await self._recorder.record(client, node, "NodeNotReady", message)
            if verdict.taints is not None:
                change = {"spec": {"taints": verdict.taints}}
                return Node(await client.patch(NODE, node.name, change))
        return node

    async def _mark_not_ready(self, pod: Pod, node: Node) -> None:
        """
        Set Ready to False on a pod of an unreachable node, so that Services stop sending it
        requests.
        """
        if not any(taint["key"] == heartbeats.UNREACHABLE for taint in node.taints):
            return
        if pod.is_true("Ready"):
            stamp = rfc3339(self._clock.now())
            not_ready = {"status": "False", "reason": "NodeNotReady", "lastTransitionTime": stamp}
            conditions = [
                {**c, **(not_ready if c["type"] == "Ready" else {})} for c in pod.conditions
            ]
            await set_conditions(self._host.client, pod, conditions)

    async def _evict(self, pod: Pod) -> None:
        """Delete a pod, with an Event."""
        message = f"Marking for deletion Pod {pod.namespace}/{pod.name}"
        await self._recorder.record(self._host.client, pod, "TaintManagerEviction", message)
        await delete_pod(self._host.client, pod)
