"""The resources that one plane serves: the built-in ones, and those its CRDs add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bidplane.api.kinds import Kind
from bidplane.wire import resources, status
from bidplane.wire.resources import Resource
from bidplane.wire.schema import crds

CRDS = "customresourcedefinitions.apiextensions.k8s.io"


class Registry:
    def __init__(self) -> None:
        self._custom: dict[str, list[Resource]] = {}  # by the CRD's name
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        self._kinds: set[tuple[str, str]] | None = None
        self.documents: dict[Any, bytes] = {}  # discovery and OpenAPI, until a CRD changes

    def install(self, crd: Mapping[str, Any]) -> None:
        # Until its names are its own, a CRD is an object like any other.
        served = crds.resources(crd) if crds.is_established(crd) else []
        self._custom[crd["metadata"]["name"]] = served
        self._rebuild()

    def uninstall(self, name: str) -> None:
        self._custom.pop(name, None)
        self._rebuild()

    def _rebuild(self) -> None:
        self._by_path = {
            (resource.group, resource.version, resource.plural): resource
            for custom_resources in self._custom.values()
            for resource in custom_resources
        }
        self._kinds = None
        self.documents = {}

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        at = (group, version, plural)
        return resources.builtin().get(at) or self._by_path.get(at)

    def of(self, kind: Kind) -> Resource:
        """Return the resource of a kind; raise 404 when it is not served."""
        resource = self.find(kind.group, kind.version, kind.plural)
        if resource is None:
            raise status.no_such_path()
        return resource

    def __iter__(self) -> Iterator[Resource]:
        yield from resources.builtin().values()
        yield from self._by_path.values()

    def of_storage(self, storage: str) -> Resource | None:
        """Return the resource whose version is the one stored under `storage`."""
        for resource in self:
            if resource.storage == storage and resource.api_version == resource.storage_version:
                return resource
        # The storage version need not be served; any other of its versions can write it.
        return next((resource for resource in self if resource.storage == storage), None)

    def serves_kind(self, api_version: str, kind: str) -> bool:
        if self._kinds is None:
            self._kinds = {(resource.api_version, resource.kind) for resource in self}
        return (api_version, kind) in self._kinds

    @property
    def custom(self) -> tuple[Resource, ...]:
        return tuple(self._by_path.values())
