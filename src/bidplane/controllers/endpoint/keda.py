"""
KEDA's HTTP add-on in agents' planes: each of its objects is an Endpoint of the same name.

The object owns the Endpoint: edits follow, and it goes with its owner. An Endpoint that somebody
else made is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from bidplane.api.endpoint import EndpointPhase, EndpointSpec
from bidplane.api.keda.addon import READY
from bidplane.api.kinds import (
    DEPLOYMENT,
    ENDPOINT,
    HTTP_SCALED_OBJECT,
    INTERCEPTOR_ROUTE,
    SERVICE,
    Draft,
    Kind,
)
from bidplane.api.objects import controller_of
from bidplane.api.times import rfc3339
from bidplane.api.views import KubeObject
from bidplane.core.activation.keda import Translation, translate_route, translate_scaled_object
from bidplane.core.workloads.common import owner_reference
from bidplane.errors import ApiError, Conflict, NotFound
from bidplane.kube.client import EventType
from bidplane.machinery.clock import Clock
from bidplane.machinery.controller import Controller
from bidplane.machinery.planes import PlaneCache, PlaneCaches

KINDS = (HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE)
_BY_NAME = {kind.kind: kind for kind in KINDS}
_RETRY_SECONDS = 30.0
Key = tuple[str, str, str, str]  # agent, and the object's kind, namespace and name


class Readiness(msgspec.Struct, frozen=True):
    """The condition `Ready` of a KEDA object."""

    reason: str
    message: str
    is_ready: bool = False
    phase: EndpointPhase | None = None


class KedaController:
    """Keeps the Endpoint of each KEDA object."""

    def __init__(self, planes: PlaneCaches, *, clock: Clock) -> None:
        self._planes, self._clock = planes, clock
        self.controller: Controller[Key] = Controller("keda", self.reconcile)
        for kind in KINDS:
            planes.on_change(kind, self._changed, read=KubeObject)
        planes.on_change(ENDPOINT, self._endpoint_changed, read=KubeObject)
        planes.on_change(DEPLOYMENT, self._target_changed, read=KubeObject)
        planes.on_change(SERVICE, self._target_changed, read=KubeObject)

    def _changed(self, plane: str, event: EventType, obj: KubeObject) -> None:
        self.controller.add((plane, obj["kind"], obj.namespace, obj.name))

    def _endpoint_changed(self, plane: str, event: EventType, endpoint: KubeObject) -> None:
        owner = controller_of(endpoint)
        if owner is not None and owner["kind"] in _BY_NAME:
            self.controller.add((plane, owner["kind"], endpoint.namespace, owner["name"]))
        elif event == "DELETED":  # its name is free
            for kind in KINDS:
                self.controller.add((plane, kind.kind, endpoint.namespace, endpoint.name))

    def _target_changed(self, plane: str, event: EventType, target: KubeObject) -> None:
        """Look again at the InterceptorRoutes of a namespace: they find their Deployment."""
        cache = self._planes.awake(plane)
        for obj in cache[INTERCEPTOR_ROUTE].in_namespace(target.namespace) if cache else ():
            self._changed(plane, event, KubeObject(obj))

    async def reconcile(self, key: Key) -> float | None:
        """Make the Endpoint of one object what the object says."""
        agent, kind_name, namespace, name = key
        kind, plane = _BY_NAME[kind_name], self._planes.awake(agent)
        if plane is None:
            return None
        source = plane[kind].get(namespace, name)
        current = plane[ENDPOINT].get(namespace, name)
        endpoint = KubeObject(current) if current is not None else None
        if source is None or KubeObject(source).is_deleted:
            await _delete_owned(plane, kind, source, endpoint)
            return None
        obj = KubeObject(source)
        translation = _translate(plane, kind, obj)
        readiness = await self._keep(plane, kind, obj, translation, endpoint)
        await self._show(plane, kind, obj, translation, readiness)
        return _RETRY_SECONDS if readiness.reason == "EndpointInvalid" else None

    async def _keep(
        self,
        plane: PlaneCache,
        kind: Kind,
        obj: KubeObject,
        translation: Translation,
        endpoint: KubeObject | None,
    ) -> Readiness:
        """Create or change the Endpoint; return how the object stands."""
        is_ours = endpoint is not None and _owns(obj, endpoint)
        if translation.spec is None:
            stays = "; its Endpoint stays as it was" if is_ours else ""
            return Readiness("UnsupportedField", "; ".join(translation.problems) + stays)
        if endpoint is not None and not is_ours:
            owner = controller_of(endpoint)
            holder = f"{owner['kind']} {owner['name']}" if owner is not None else "nobody else"
            return Readiness(
                "EndpointTaken",
                f"there is an Endpoint {obj.name} already, which belongs to {holder}:"
                " delete it, or give this object another name",
            )
        try:
            if endpoint is None:
                await plane.client.create(
                    ENDPOINT, _manifest(kind, obj, translation.spec), obj.namespace
                )
            elif msgspec.convert(endpoint.spec, EndpointSpec) != translation.spec:
                changed = {**endpoint.json, "spec": _fields(translation.spec)}
                await plane.client.replace(ENDPOINT, changed)
        except Conflict:
            raise
        except ApiError as error:
            return Readiness("EndpointInvalid", str(error))
        return _readiness(endpoint)

    async def _show(
        self,
        plane: PlaneCache,
        kind: Kind,
        obj: KubeObject,
        translation: Translation,
        readiness: Readiness,
    ) -> None:
        """Write the status of the object, if it differs."""
        status = "True" if readiness.is_ready else "False"
        conditions = obj.status.get("conditions") or ()
        before: Mapping[str, Any] = next((c for c in conditions if c["type"] == READY), {})
        condition: Draft = {
            "type": READY,
            "status": status,
            "reason": readiness.reason,
            "message": readiness.message,
            "observedGeneration": obj.metadata.get("generation", 0),
            "lastTransitionTime": before.get("lastTransitionTime", ""),
        }
        if before.get("status") != status:
            condition["lastTransitionTime"] = rfc3339(self._clock.now())
        change: Draft = {"conditions": [condition], "phase": readiness.phase}
        if kind is HTTP_SCALED_OBJECT:
            change["targetWorkload"] = translation.workload
            change["targetService"] = translation.service
        if any((obj.status.get(field) or None) != (change[field] or None) for field in change):
            with suppress(NotFound):
                await plane.client.patch(
                    kind, obj.name, {"status": change}, obj.namespace, subresource="status"
                )


def _translate(plane: PlaneCache, kind: Kind, obj: KubeObject) -> Translation:
    if kind is HTTP_SCALED_OBJECT:
        return translate_scaled_object(obj)
    target = obj.spec.get("target") or {}
    service = plane[SERVICE].get(obj.namespace, target.get("service", ""))
    return translate_route(obj, service, plane[DEPLOYMENT].in_namespace(obj.namespace))


def _owns(obj: KubeObject, endpoint: KubeObject) -> bool:
    owner = controller_of(endpoint)
    return owner is not None and owner["uid"] == obj.uid


async def _delete_owned(
    plane: PlaneCache, kind: Kind, source: Any, endpoint: KubeObject | None
) -> None:
    """Delete the Endpoint of an object that is gone."""
    owner = controller_of(endpoint) if endpoint is not None else None
    if endpoint is None or owner is None or owner["kind"] != kind.kind or endpoint.is_deleted:
        return
    if source is not None and not _owns(KubeObject(source), endpoint):
        return
    with suppress(NotFound):
        await plane.client.delete(ENDPOINT, endpoint.name, endpoint.namespace, uid=endpoint.uid)


def _manifest(kind: Kind, obj: KubeObject, spec: EndpointSpec) -> Draft:
    metadata = {"name": obj.name, "ownerReferences": [owner_reference(kind, obj.json)]}
    return {
        "apiVersion": ENDPOINT.api_version,
        "kind": ENDPOINT.kind,
        "metadata": metadata,
        "spec": _fields(spec),
    }


def _fields(spec: EndpointSpec) -> Draft:
    fields: Draft = msgspec.to_builtins(spec)
    return {name: value for name, value in fields.items() if value is not None}


def _readiness(endpoint: KubeObject | None) -> Readiness:
    status = endpoint.status if endpoint is not None else {}
    if "phase" not in status:
        return Readiness("EndpointPending", "its Endpoint was made; its names are not settled yet")
    phase = EndpointPhase(status["phase"])
    if phase is EndpointPhase.REFUSED:
        return Readiness(status.get("reason", ""), status.get("message", ""), phase=phase)
    hosts = ", ".join(status.get("hosts") or ())
    return Readiness("Reconciled", f"served as {hosts}", is_ready=True, phase=phase)
