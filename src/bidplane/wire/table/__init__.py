"""
Tables as `kubectl get` shows them, computed by the server.

The columns of built-in kinds were recorded from a real server; `cells` computes their cells. A
custom kind brings its columns as JSONPaths. A built-in kind without cells of its own shows name and
creation time, as upstream does for kinds it has no printer for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bidplane.wire.resources import Column, Resource
from bidplane.wire.table import cells, jsonpath
from bidplane.wire.table.human import age

Object = Mapping[str, Any]
_DEFAULT = (Column(name="Name", format="name"), Column(name="Created At", type="date"))
_DESCRIPTIONS = {
    "Name": "Name must be unique within a namespace.",
    "Age": "CreationTimestamp is a timestamp representing the server time when this object was"
    " created.",
}


def columns(resource: Resource) -> Sequence[Column]:
    if resource.custom or resource.storage in cells.ROWS or _simple(resource):
        return resource.columns
    return _DEFAULT


def _simple(resource: Resource) -> bool:
    return {column.name for column in resource.columns} <= {"Name", "Age", "Created At"}


def definitions(resource: Resource) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description or _DESCRIPTIONS.get(column.name, column.name),
            "priority": column.priority,
        }
        for column in columns(resource)
    ]


def table(
    resource: Resource,
    objects: Iterable[Object],
    metadata: Mapping[str, Any],
    *,
    now: float,
    include: str,
    headers: bool = True,
) -> dict[str, Any]:
    """A `Table` of `objects`, which are in the version that is stored."""
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(metadata),
        "columnDefinitions": definitions(resource) if headers else None,
        "rows": [_row(resource, obj, now, include) for obj in objects],
    }


def _row(resource: Resource, obj: Object, now: float, include: str) -> dict[str, Any]:
    row: dict[str, Any] = {"cells": _cells(resource, obj, now)}
    if include == "Object":
        row["object"] = {**obj, "apiVersion": resource.api_version}
    elif include != "None":
        row["object"] = partial(obj)
    return row


def _cells(resource: Resource, obj: Object, now: float) -> list[Any]:
    if resource.custom:
        return [_custom(column, obj, now) for column in resource.columns]
    printer = cells.ROWS.get(resource.storage)
    if printer is not None:
        return printer(obj, now)
    meta = obj["metadata"]
    created = meta.get("creationTimestamp")
    simple = {"Name": meta["name"], "Created At": created, "Age": age(created, now)}
    return [simple[column.name] for column in columns(resource)]


def _custom(column: Column, obj: Object, now: float) -> Any:
    if not column.path:
        return obj["metadata"]["name"]
    value = jsonpath.first(obj, column.path)
    if value is None:
        return None
    if column.type == "date":
        return age(value, now)
    if column.type in ("integer", "number", "boolean"):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping | list):
        return cells.compact(value)
    return str(value)


def partial(obj: Object) -> dict[str, Any]:
    """An object reduced to its metadata."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": obj["metadata"],
    }
