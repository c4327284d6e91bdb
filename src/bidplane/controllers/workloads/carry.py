"""Carries out the plans of `core/workloads`, and tells of it in Events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.api.kinds import Kind, Object
from bidplane.core.workloads.plan import Create, Delete, Operation, Patch, Plan, Record
from bidplane.errors import AlreadyExists, ApiError, NotFound
from bidplane.kube.client import Client
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder


class Refused(Exception):
    """A creation was refused, and would be again: by a quota, or as invalid."""

    def __init__(self, operation: Create, error: ApiError) -> None:
        super().__init__(str(error))
        self.operation, self.error = operation, error


class Carrier:
    """One controller's hands."""

    def __init__(self, component: str, *, clock: Clock) -> None:
        self._component = component
        self._recorder = Recorder(component, clock=clock)

    async def carry_out(self, client: Client, plan: Plan) -> float | None:
        """
        Do all of `plan`, its status last; returns when to look again.

        Raises the first refusal once everything else was tried. A patch names the
        version it was decided on, so what changed meanwhile is decided anew.
        """
        versions: dict[str, str] = {}  # of what this plan has already changed
        refused: Exception | None = None
        for operation in plan.operations:
            try:
                await self._do(client, operation, versions)
            except (ApiError, Refused) as error:
                refused = refused or error
                if isinstance(operation, Patch):
                    break  # what follows may depend on it
        if plan.status is not None and not isinstance(refused, Refused):
            try:
                await self._do(client, plan.status, versions)
            except ApiError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        return plan.again

    async def _do(self, client: Client, operation: Operation, versions: dict[str, str]) -> None:
        match operation:
            case Create():
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
            case Record(about=about, reason=reason, message=message, type=type):
                await self._recorder.record(client, about, reason, message, type=type)

    async def _create(self, client: Client, operation: Create) -> None:
        kind, obj, owner = operation.kind, operation.obj, operation.owner
        try:
            made = await client.create(kind, obj, obj["metadata"]["namespace"])
        except AlreadyExists:
            raise
        except ApiError as error:
            if error.code not in (403, 422):
                raise
            words = f"Error creating: {error}"
            await self._tell(client, owner, "FailedCreate", words, failed=True)
            raise Refused(operation, error) from error
        words = self._words("Create", kind, made["metadata"]["name"], owner)
        if words:
            await self._tell(client, owner, "SuccessfulCreate", words)

    async def _delete(self, client: Client, operation: Delete) -> None:
        kind, metadata = operation.kind, operation.obj["metadata"]
        try:
            await client.delete(kind, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        except NotFound:
            return
        if operation.owner is not operation.obj:
            words = self._words("Delete", kind, metadata["name"], operation.owner)
            if words:
                await self._tell(client, operation.owner, "SuccessfulDelete", words)

    def _words(self, verb: str, kind: Kind, name: str, owner: Object) -> str:
        """As upstream tells of it; each of its controllers has its own way, and some none."""
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

    async def _tell(
        self, client: Client, about: Object, reason: str, message: str, *, failed: bool = False
    ) -> None:
        await self._recorder.record(
            client, about, reason, message, type="Warning" if failed else "Normal"
        )


def _conditional(change: Mapping[str, Any], version: str) -> dict[str, Any]:
    metadata = {**(change.get("metadata") or {}), "resourceVersion": version}
    return {**change, "metadata": metadata}
