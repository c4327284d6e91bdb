"""
Resources that a plane serves: one `Resource` per group, version and plural, built-in or custom.

Versions of one kind share a store: `storage` names it, and `wire.schema.versions` converts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec

from bidplane.api.kinds import Kind
from bidplane.wire import data
from bidplane.wire.schema import shapes
from bidplane.wire.schema.shapes import SchemaNode
from bidplane.wire.status import About


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a Table. `path` is a CRD's JSONPath; built-in cells are code."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0
    path: str = ""


class Subresource(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    group: str
    version: str
    kind: str
    verbs: tuple[str, ...]


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    verbs: tuple[str, ...]
    storage: str  # the store of the objects: `pods`, `events`, `bids.bidplane.dev`
    storage_version: str  # the apiVersion in which they are stored
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: Mapping[str, Subresource] = {}
    columns: tuple[Column, ...] = ()
    list_kind: str = ""
    # Of a custom resource: its CRD's schema as sent, for OpenAPI; None for a built-in one.
    schema: Mapping[str, Any] | None = None
    shape: SchemaNode | None = None
    selectable: tuple[str, ...] = ()
    deprecation: str = ""
    scale: Mapping[str, str] | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def custom(self) -> bool:
        return self.schema is not None

    @property
    def coordinates(self) -> Kind:
        return Kind(self.group, self.version, self.kind, self.plural, self.namespaced)

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    def about(self, name: str = "") -> About:
        return About(self.plural, self.group, name, self.kind)

    def __hash__(self) -> int:
        return hash((self.group, self.version, self.plural))


# Disabled by default in a real server; drivers and workloads of earlier releases use them.
_ALSO_SERVED = {("resource.k8s.io", "v1beta1"), ("resource.k8s.io", "v1beta2")}
# Versions that are stored as another one; `wire.schema.versions` converts.
_STORED_AS = {
    ("resource.k8s.io", "v1beta1"): "resource.k8s.io/v1",
    ("resource.k8s.io", "v1beta2"): "resource.k8s.io/v1",
    ("autoscaling", "v1"): "autoscaling/v2",
}
# The warning that comes with every response about them, as the real server words it.
_DEPRECATED = {
    ("", "v1", "endpoints"): (
        "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
    ),
    ("", "v1", "componentstatuses"): "v1 ComponentStatus is deprecated in v1.19+",
}
# Two groups, one store.
_SHARED = {"events.events.k8s.io": ("events", "v1")}


@functools.cache
def builtin() -> Mapping[tuple[str, str, str], Resource]:
    """Every built-in resource a plane serves, by group, version and plural."""
    resources = {}
    for facts in data.resources()["resources"]:
        at = (facts["group"], facts["version"], facts["plural"])
        if facts["default"] or at[:2] in _ALSO_SERVED:
            resources[at] = _resource(facts)
    return resources


@functools.cache
def group_order() -> tuple[str, ...]:
    """Built-in groups, in the order a real server lists them."""
    return tuple(group["name"] for group in data.resources()["groups"])


def release() -> str:
    """The Kubernetes release whose behaviour is served."""
    return str(data.resources()["release"])


def _resource(facts: Mapping[str, Any]) -> Resource:
    group, version = facts["group"], facts["version"]
    api_version = f"{group}/{version}" if group else version
    qualified = f"{facts['plural']}.{group}" if group else facts["plural"]
    stored_as = _STORED_AS.get((group, version), api_version)
    storage, storage_version = _SHARED.get(qualified, (qualified, stored_as))
    return Resource(
        group=group,
        version=version,
        kind=facts["kind"],
        plural=facts["plural"],
        singular=facts["singular"],
        namespaced=facts["namespaced"],
        verbs=tuple(facts["verbs"]),
        short_names=tuple(facts["shortNames"]),
        categories=tuple(facts["categories"]),
        subresources={
            sub["name"]: Subresource(
                name=sub["name"],
                group=sub["group"],
                version=sub["version"],
                kind=sub["kind"],
                verbs=tuple(sub["verbs"]),
            )
            for sub in facts["subresources"]
        },
        columns=tuple(
            Column(
                name=column["name"],
                type=column["type"],
                format=column["format"],
                priority=column["priority"],
            )
            for column in facts.get("columns", ())
        ),
        list_kind=f"{facts['kind']}List",
        storage=storage,
        storage_version=storage_version,
        shape=None,
        deprecation=_DEPRECATED.get((group, version, facts["plural"]), ""),
    )


def shape(resource: Resource) -> SchemaNode:
    """Return the shape of a resource's objects."""
    object_shape = resource.shape or shapes.builtin(resource.api_version, resource.kind)
    assert object_shape is not None, f"no schema was recorded for {resource.kind}"
    return object_shape
