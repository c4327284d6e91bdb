"""Keeps a deleted volume claim until no pod uses it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from bidplane.api.kinds import POD, VOLUME_CLAIM
from bidplane.api.objects import is_deleted, metadata_of
from bidplane.controllers.workloads.reconciler import Reconciler, Sites
from bidplane.core.hosting import references
from bidplane.errors import NotFound
from bidplane.kube.client import EventType, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.planes import PlaneCache
from bidplane.wire.kinds.others import CLAIM_PROTECTION


class VolumeClaims(Reconciler):
    """The controller that protects volume claims in use."""

    kind, component = VOLUME_CLAIM, "pvc-protection-controller"

    def __init__(self, sites: Sites, *, clock: Clock) -> None:
        super().__init__(sites, clock=clock)
        sites.on_change(POD, self._pod_changed)

    def _pod_changed(self, plane: str, event: EventType, pod: Object) -> None:
        if event == "DELETED":
            for name in references.volume_claims(pod):
                self.controller.add((plane, metadata_of(pod)["namespace"], name))

    async def reconcile_object(self, cache: PlaneCache, obj: Object) -> float | None:
        metadata = metadata_of(obj)
        namespace, name = metadata["namespace"], metadata["name"]
        finalizers = metadata.get("finalizers") or []
        if not is_deleted(obj) or CLAIM_PROTECTION not in finalizers:
            return None
        if _is_used(name, cache[POD].in_namespace(namespace)):
            return None
        # Read from the plane: the cache may lack a new pod.
        if _is_used(name, (await cache.client.list(POD, namespace)).items):
            return None
        remaining = [finalizer for finalizer in finalizers if finalizer != CLAIM_PROTECTION]
        change = {
            "metadata": {"finalizers": remaining, "resourceVersion": metadata["resourceVersion"]}
        }
        with suppress(NotFound):
            await cache.client.patch(VOLUME_CLAIM, name, change, namespace)
        return None


def _is_used(claim: str, pods: Iterable[Object]) -> bool:
    """Return True if one of the pods uses the claim."""
    return any(_has_node(pod) and claim in references.volume_claims(pod) for pod in pods)


def _has_node(pod: Object) -> bool:
    """
    Return True once the pod has a node. As upstream, a pod without one uses no claim, and one that
    ended still does.
    """
    return bool(pod["spec"].get("nodeName"))
