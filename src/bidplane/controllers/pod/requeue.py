"""Creates evicted bare pods again: see `core/leases/requeue`."""

from __future__ import annotations

from contextlib import suppress

from bidplane.api import labels
from bidplane.api.kinds import POD, POD_TEMPLATE
from bidplane.api.views import KubeObject, Pod, read_pod
from bidplane.core.leases import requeue
from bidplane.errors import AlreadyExists, NotFound
from bidplane.kube.client import EventType
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCaches

Key = tuple[str, str, str]  # plane, namespace, name of the PodTemplate


class RequeueController:
    """Creates evicted bare pods again from their saved templates."""

    def __init__(self, planes: PlaneCaches) -> None:
        self._planes = planes
        self.controller: Controller[Key] = Controller("requeue", self.reconcile)
        planes.on_change(POD_TEMPLATE, self._template_changed, read=KubeObject)
        planes.on_change(POD, self._pod_changed, read=read_pod)

    def _template_changed(self, plane: str, event: EventType, template: KubeObject) -> None:
        if labels.REQUEUE in template.labels:
            self.controller.add((plane, template.namespace, template.name))

    def _pod_changed(self, plane: str, event: EventType, pod: Pod) -> None:
        if event == "DELETED" or pod.has_ended:
            self.controller.add((plane, pod.namespace, requeue.template_name(pod.uid)))

    async def reconcile(self, key: Key) -> float | None:
        """
        Create the pod of one saved template again once the old pod is gone, and delete the
        template.
        """
        plane_name, namespace, name = key
        plane = self._planes.get(plane_name)
        saved = plane[POD_TEMPLATE].get(namespace, name) if plane is not None else None
        if plane is None or saved is None:
            return None
        template = KubeObject(saved)
        pod = plane.pods.get(namespace, template.annotations[labels.POD_NAME])
        if pod is not None and pod.uid == template.annotations[labels.POD_UID]:
            if not pod.has_ended or pod.is_deleted:
                return None  # still leaving
            # It ended by itself before the eviction reached it: nothing to bring back.
        elif pod is None:
            with suppress(AlreadyExists):
                await plane.client.create(POD, requeue.revived(template), namespace)
        with suppress(NotFound):
            await plane.client.delete(POD_TEMPLATE, name, namespace)
        return None
