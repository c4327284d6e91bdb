"""Evicted bare pods come back: see `core/requeue` for why and how."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api import labels
from bidplane.api.kinds import POD, POD_TEMPLATE
from bidplane.core import requeue
from bidplane.core.scheduling import is_deleted, phase_of
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import EventType, Object
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCaches

Key = tuple[str, str, str]  # plane, namespace, name of the PodTemplate

_FINISHED = ("Succeeded", "Failed")


class RequeueController:
    def __init__(self, planes: PlaneCaches) -> None:
        self._planes = planes
        self.controller: Controller[Key] = Controller("requeue", self.reconcile)
        planes.on_change(POD_TEMPLATE, self._kept)
        planes.on_change(POD, self._pod_changed)

    def _kept(self, plane: str, event: EventType, kept: Object) -> None:
        if labels.REQUEUE in (kept["metadata"].get("labels") or {}):
            metadata = kept["metadata"]
            self.controller.add((plane, metadata["namespace"], metadata["name"]))

    def _pod_changed(self, plane: str, event: EventType, pod: Object) -> None:
        if event == "DELETED" or phase_of(pod) in _FINISHED:
            metadata = pod["metadata"]
            self.controller.add((plane, metadata["namespace"], requeue.kept_name(metadata["uid"])))

    async def reconcile(self, key: Key) -> float | None:
        plane_name, namespace, name = key
        plane = self._planes.get(plane_name)
        kept = plane[POD_TEMPLATE].get(namespace, name) if plane is not None else None
        if plane is None or kept is None:
            return None
        pod = plane[POD].get(namespace, kept["metadata"]["annotations"][labels.POD_NAME])
        if pod is not None and (
            pod["metadata"]["uid"] == kept["metadata"]["annotations"][labels.POD_UID]
        ):
            if phase_of(pod) not in _FINISHED or is_deleted(pod):
                return None  # still leaving
            # It ended by itself before the eviction reached it: nothing to bring back.
        elif pod is None:
            with suppress(AlreadyExists):
                await plane.client.create(POD, requeue.revived(kept), namespace)
        with suppress(NotFound):
            await plane.client.delete(POD_TEMPLATE, name, namespace)
        return None
