"""Marks nodes whose heartbeat stopped, and evicts their pods: see `core/nodes/heartbeats`."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api.kinds import LEASE, NODE, POD
from bidplane.api.times import rfc3339
from bidplane.core.nodes import heartbeats
from bidplane.errors import NotFound
from bidplane.kube.client import EventType, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.events import Recorder
from bidplane.machinery.planes import PlaneCache

KINDS = (NODE, LEASE, POD)
_LEASE_NAMESPACE = "kube-node-lease"


class NodeLifeController:
    """The node lifecycle controller of a host that is our own plane: a cluster has its own."""

    def __init__(self, host: PlaneCache, *, clock: Clock) -> None:
        self._host = host
        self._clock = clock
        self._recorder = Recorder("node-controller", clock=clock)
        self.controller: Controller[str] = Controller("nodelife", self.reconcile)
        host[NODE].on_change(self._changed)
        host[LEASE].on_change(self._changed)
        host[POD].on_change(self._pod_changed)

    def _changed(self, event: EventType, obj: Object) -> None:
        metadata = obj["metadata"]
        if metadata.get("namespace", _LEASE_NAMESPACE) == _LEASE_NAMESPACE:
            self.controller.add(metadata["name"])

    def _pod_changed(self, event: EventType, pod: Object) -> None:
        node = self._host[NODE].get(None, pod["spec"].get("nodeName") or "")
        if node is not None and (node.get("spec") or {}).get("taints"):
            self.controller.add(node["metadata"]["name"])

    async def reconcile(self, name: str) -> float | None:
        """
        Update one node's readiness and taints, and evict its pods; return the delay until the next
        run.
        """
        node = self._host[NODE].get(None, name)
        lease = self._host[LEASE].get(_LEASE_NAMESPACE, name)
        if node is None or lease is None:
            return None
        now = self._clock.now()
        verdict = heartbeats.judge(node, lease, now=now, stamp=rfc3339(now))
        with suppress(NotFound):
            if verdict.conditions is not None:
                await self._host.client.patch(
                    NODE,
                    name,
                    {"status": {"conditions": verdict.conditions}},
                    subresource="status",
                )
                await self._recorder.record(
                    self._host.client,
                    node,
                    "NodeNotReady",
                    f"Node {name} status is now: NodeNotReady",
                )
            if verdict.taints is not None:
                node = await self._host.client.patch(
                    NODE, name, {"spec": {"taints": verdict.taints}}
                )
        times = [verdict.look_again]
        for pod in self._host[POD].items():
            if pod["spec"].get("nodeName") == name and not _is_over(pod):
                await self._mark_not_ready(pod, node)
                evict_at = heartbeats.leaves_at(pod, node)
                if evict_at is not None and evict_at <= now:
                    await self._evict(pod)
                elif evict_at is not None:
                    times.append(evict_at)
        return max(min(times) - now, 0.05)

    async def _mark_not_ready(self, pod: Object, node: Object) -> None:
        """
        Set Ready to False on a pod of an unreachable node, so that Services stop sending it
        requests.
        """
        taints = (node.get("spec") or {}).get("taints") or ()
        if not any(taint["key"] == heartbeats.UNREACHABLE for taint in taints):
            return
        conditions = (pod.get("status") or {}).get("conditions") or ()
        stamp = rfc3339(self._clock.now())
        changed = [
            {**c, "status": "False", "reason": "NodeNotReady", "lastTransitionTime": stamp}
            if c["type"] == "Ready" and c["status"] == "True"
            else dict(c)
            for c in conditions
        ]
        if changed == list(conditions):
            return
        metadata = pod["metadata"]
        with suppress(NotFound):
            await self._host.client.patch(
                POD,
                metadata["name"],
                {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": changed}},
                metadata["namespace"],
                subresource="status",
            )

    async def _evict(self, pod: Object) -> None:
        """Delete a pod, with an Event."""
        metadata = pod["metadata"]
        await self._recorder.record(
            self._host.client,
            pod,
            "TaintManagerEviction",
            f"Marking for deletion Pod {metadata['namespace']}/{metadata['name']}",
        )
        with suppress(NotFound):
            await self._host.client.delete(
                POD, metadata["name"], metadata["namespace"], uid=metadata["uid"]
            )


def _is_over(pod: Object) -> bool:
    """Return True for a pod that is being deleted or has finished."""
    return bool(pod["metadata"].get("deletionTimestamp")) or (pod.get("status") or {}).get(
        "phase"
    ) in ("Succeeded", "Failed")
