"""Creates evicted bare pods again: see `core/leases/requeue`."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api import labels
from bidplane.api.kinds import POD, POD_TEMPLATE
from bidplane.api.objects import is_deleted, phase_of
from bidplane.core.leases import requeue
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import EventType, Object
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCaches

Key = tuple[str, str, str]  # plane, namespace, name of the PodTemplate

_FINISHED = ("Succeeded", "Failed")


class RequeueController:
    """Creates evicted bare pods again from their saved templates."""

    def __init__(self, planes: PlaneCaches) -> None:
        self._planes = planes
        self.controller: Controller[Key] = Controller("requeue", self.reconcile)
        planes.on_change(POD_TEMPLATE, self._template_changed)
        planes.on_change(POD, self._pod_changed)

    def _template_changed(self, plane: str, event: EventType, template: Object) -> None:
        if labels.REQUEUE in (template["metadata"].get("labels") or {}):
            metadata = template["metadata"]
            self.controller.add((plane, metadata["namespace"], metadata["name"]))

    def _pod_changed(self, plane: str, event: EventType, pod: Object) -> None:
        if event == "DELETED" or phase_of(pod) in _FINISHED:
            metadata = pod["metadata"]
            self.controller.add((plane, metadata["namespace"], requeue.kept_name(metadata["uid"])))

    async def reconcile(self, key: Key) -> float | None:
        """
        Create the pod of one saved template again once the old pod is gone, and delete the
        template.
        """
        plane_name, namespace, name = key
        plane = self._planes.get(plane_name)
        template = plane[POD_TEMPLATE].get(namespace, name) if plane is not None else None
        if plane is None or template is None:
            return None
        pod = plane[POD].get(namespace, template["metadata"]["annotations"][labels.POD_NAME])
        if pod is not None and (
            pod["metadata"]["uid"] == template["metadata"]["annotations"][labels.POD_UID]
        ):
            if phase_of(pod) not in _FINISHED or is_deleted(pod):
                return None  # still leaving
            # It ended by itself before the eviction reached it: nothing to bring back.
        elif pod is None:
            with suppress(AlreadyExists):
                await plane.client.create(POD, requeue.revived(template), namespace)
        with suppress(NotFound):
            await plane.client.delete(POD_TEMPLATE, name, namespace)
        return None
