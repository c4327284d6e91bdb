"""Carries out the plans of `core/workloads`, and tells of it in Events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.api.kinds import Kind, Object
from bidplane.core.workloads.plan import (
    CreateObject,
    Delete,
    Operation,
    Patch,
    RecordEvent,
    WorkloadPlan,
)
from bidplane.errors import AlreadyExists, ApiError, NotFound
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder


class CreationRefused(Exception):
    """Raised when a creation was refused and would be again: by a quota, or as invalid."""

    def __init__(self, operation: CreateObject, error: ApiError) -> None:
        super().__init__(str(error))
        self.operation, self.error = operation, error


class PlanExecutor:
    """Carries out one controller's plans and records its Events."""

    def __init__(self, component: str, *, clock: Clock) -> None:
        self._component = component
        self._recorder = Recorder(component, clock=clock)

    async def carry_out(self, client: KubeClient, plan: WorkloadPlan) -> float | None:
        """
        Carry out all of `plan`, its status last; return when to look again.

        Raises the first refusal after trying everything else; once a creation of a kind is
        refused, no more of that kind are created. A patch names the version it was decided on, so
        an object that changed meanwhile is decided anew.
        """
        versions: dict[str, str] = {}  # of what this plan has already changed
        refused: Exception | None = None
        refused_kinds: set[Kind] = set()
        for operation in plan.operations:
            if isinstance(operation, CreateObject) and operation.kind in refused_kinds:
                continue  # the next would be refused for the same reason
            try:
                await self._carry_out_one(client, operation, versions)
            except (ApiError, CreationRefused) as error:
                refused = refused or error
                if isinstance(error, CreationRefused):
                    refused_kinds.add(error.operation.kind)
                if isinstance(operation, Patch):
                    break  # what follows may depend on it
        if plan.status is not None and not isinstance(refused, CreationRefused):
            try:
                await self._carry_out_one(client, plan.status, versions)
            except ApiError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        return plan.again

    async def _carry_out_one(
        self, client: KubeClient, operation: Operation, versions: dict[str, str]
    ) -> None:
        """Carry out one operation; `versions` holds those of objects this plan has changed."""
        match operation:
            case CreateObject():
                await self._create(client, operation)
            case Delete():
                await self._delete(client, operation)
            case Patch(kind=kind, obj=obj, change=change, subresource=subresource):
                metadata = obj["metadata"]
                version = versions.get(metadata["uid"], metadata["resourceVersion"])
                answer = await client.patch(
                    kind,
                    metadata["name"],
                    _conditional(change, version),
                    metadata.get("namespace"),
                    subresource=subresource,
                )
                versions[metadata["uid"]] = answer["metadata"]["resourceVersion"]
            case RecordEvent(about=about, reason=reason, message=message, type=type):
                await self._recorder.record(client, about, reason, message, type=type)

    async def _create(self, client: KubeClient, operation: CreateObject) -> None:
        """Create an object, with an Event; raise `CreationRefused` if it would be refused again."""
        kind, obj, owner = operation.kind, operation.obj, operation.owner
        try:
            created = await client.create(kind, obj, obj["metadata"]["namespace"])
        except AlreadyExists:
            raise
        except ApiError as error:
            if error.code not in (403, 422):
                raise
            message = f"Error creating: {error}"
            await self._record(client, owner, "FailedCreate", message, failed=True)
            raise CreationRefused(operation, error) from error
        message = self._event_message("Create", kind, created["metadata"]["name"], owner)
        if message:
            await self._record(client, owner, "SuccessfulCreate", message)

    async def _delete(self, client: KubeClient, operation: Delete) -> None:
        """Delete an object, with an Event."""
        kind, metadata = operation.kind, operation.obj["metadata"]
        try:
            await client.delete(kind, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        except NotFound:
            return
        if operation.owner is not operation.obj:
            message = self._event_message("Delete", kind, metadata["name"], operation.owner)
            if message:
                await self._record(client, operation.owner, "SuccessfulDelete", message)

    def _event_message(self, verb: str, kind: Kind, name: str, owner: Object) -> str:
        """The Event message that upstream writes; "" where upstream's controller records none."""
        set_name = owner["metadata"]["name"]
        match self._component, kind.kind:
            case "statefulset-controller", "Pod":
                return f"{verb} Pod {name} in StatefulSet {set_name} successful"
            case "statefulset-controller", "PersistentVolumeClaim":
                pod = f"{set_name}-{name.rpartition('-')[2]}"
                return f"{verb} Claim {name} Pod {pod} in StatefulSet {set_name} success"
            case _, "Pod":
                return f"{verb}d pod: {name}"
            case _, "Job":
                return f"{verb}d job {name}"
        return ""

    async def _record(
        self, client: KubeClient, about: Object, reason: str, message: str, *, failed: bool = False
    ) -> None:
        """Record an Event about an object."""
        await self._recorder.record(
            client, about, reason, message, type="Warning" if failed else "Normal"
        )


def _conditional(change: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The patch, made conditional on that version."""
    metadata = {**(change.get("metadata") or {}), "resourceVersion": version}
    return {**change, "metadata": metadata}
