"""
OpenAPI v3, one document per group and version, made from the recorded facts and the CRDs.

`kubectl` reads three things in it: the schema of a kind (merge keys, `explain`), which patch types
its PATCH takes, and whether that has a `fieldValidation` parameter. The recorded facts have no
prose; whoever has some can put it in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bidplane.wire import data
from bidplane.wire.resources import Resource, release

_REF = "#/components/schemas/"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_QUERY = (
    ("dryRun", "string"),
    ("fieldManager", "string"),
    ("fieldValidation", "string"),
    ("pretty", "string"),
)
_PATCHES = ("application/json-patch+json", "application/merge-patch+json")
_STRATEGIC = "application/strategic-merge-patch+json"


def index(documents: Mapping[str, bytes]) -> dict[str, Any]:
    """Return `/openapi/v3`: the URL of each document, with a hash for clients' caches."""
    return {
        "paths": {
            path: {
                "serverRelativeURL": f"/openapi/v3/{path}?hash="
                + hashlib.sha256(body).hexdigest()[:32].upper()
            }
            for path, body in documents.items()
        }
    }


def path_of(resource: Resource) -> str:
    """Return the path of a resource's document, such as `api/v1` or `apis/apps/v1`."""
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


class Words(msgspec.Struct, frozen=True):
    """The description of a definition, and of each of its fields."""

    description: str = ""
    properties: Mapping[str, Words] = {}


def parts(
    resources: Iterable[Resource], prose: Mapping[str, Words] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the paths of `resources`, and the schemas they refer to, by name."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for resource in resources:
        name = _schema(resource, schemas)
        paths.update(_paths(resource, name))
    for name, descriptions in (prose or {}).items():
        if name in schemas:
            schemas[name] = _explained(schemas[name], descriptions)
    return paths, dict(sorted(schemas.items()))


def document(resources: Iterable[Resource], prose: Mapping[str, Words] | None = None) -> bytes:
    """The document of the resources of one group and version."""
    paths, schemas = parts(resources, prose)
    body = {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": release()},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    return msgspec.json.encode(body)


# Paths.


def _paths(resource: Resource, schema: str) -> dict[str, Any]:
    root = f"/{path_of(resource)}"
    if resource.namespaced:
        root += "/namespaces/{namespace}"
    paths = {f"{root}/{resource.plural}": _operations(resource, schema, ("get", "post"))}
    if "get" in resource.verbs:
        object_path = f"{root}/{resource.plural}/{{name}}"
        paths[object_path] = _operations(resource, schema, ("get", "put", "patch", "delete"))
        if resource.has_status:
            paths[f"{object_path}/status"] = _operations(resource, schema, ("get", "put", "patch"))
    return paths


_VERB = {"get": "get", "post": "create", "put": "update", "patch": "patch", "delete": "delete"}


def _operations(resource: Resource, schema: str, methods: tuple[str, ...]) -> dict[str, Any]:
    return {
        method: _operation(resource, schema, method)
        for method in methods
        if _VERB[method] in resource.verbs
    }


def _operation(resource: Resource, schema: str, method: str) -> dict[str, Any]:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    answer = {"application/json": {"schema": {"$ref": _REF + schema}}}
    operation: dict[str, Any] = {
        "operationId": f"{method}{resource.kind}",
        "x-kubernetes-action": _VERB[method],
        "x-kubernetes-group-version-kind": kind,
        "responses": {"200": {"description": "OK", "content": answer}},
    }
    if method in ("post", "put", "patch"):
        operation["parameters"] = [
            {"name": name, "in": "query", "schema": {"type": type_, "uniqueItems": True}}
            for name, type_ in _QUERY
        ]
        operation["requestBody"] = {"content": answer, "required": True}
    if method == "patch":
        types = _PATCHES if resource.custom else (*_PATCHES, _STRATEGIC)
        body = {"schema": {"type": "object"}}
        operation["requestBody"] = {"content": dict.fromkeys(types, body), "required": True}
    return operation


# Schemas.


def _schema(resource: Resource, schemas: dict[str, Any]) -> str:
    """Add the schema of a resource, and all it refers to; returns its name."""
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    if resource.custom:
        assert resource.schema is not None
        reversed_group = ".".join(reversed(resource.group.split(".")))
        name = f"{reversed_group}.{resource.version}.{resource.kind}"
        _definition(_META, schemas)
        schemas[name] = {
            **resource.schema,
            "properties": {
                **(resource.schema.get("properties") or {}),
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"allOf": [{"$ref": _REF + _META}]},
            },
            "x-kubernetes-group-version-kind": [kind],
        }
        return name
    name = data.schemas()["kinds"][f"{resource.api_version}/{resource.kind}"]
    _definition(name, schemas)
    schemas[name] = {**schemas[name], "x-kubernetes-group-version-kind": [kind]}
    return str(name)


def _definition(name: str, schemas: dict[str, Any]) -> None:
    if name in schemas:
        return
    schemas[name] = {}  # a definition may refer to itself
    schemas[name] = _node(data.schemas()["definitions"][name], schemas)


def _explained(schema: Mapping[str, Any], descriptions: Words) -> dict[str, Any]:
    explained = dict(schema)
    if descriptions.description and "$ref" in schema:
        # A reference has no siblings; one with its own description is wrapped, as upstream does.
        explained = {"allOf": [dict(schema)]}
    if descriptions.description:
        explained["description"] = descriptions.description
    if "properties" in schema:
        explained["properties"] = {
            name: _explained(child, descriptions.properties.get(name, Words()))
            for name, child in schema["properties"].items()
        }
    return explained


_KEYWORDS = {
    "mergeKey": "x-kubernetes-patch-merge-key",
    "patchStrategy": "x-kubernetes-patch-strategy",
    "listType": "x-kubernetes-list-type",
    "listMapKeys": "x-kubernetes-list-map-keys",
    "mapType": "x-kubernetes-map-type",
    "unions": "x-kubernetes-unions",
}
_PLAIN = ("type", "format", "default", "enum", "required", "oneOf")


def _node(facts: Mapping[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    node: dict[str, Any] = {key: facts[key] for key in _PLAIN if key in facts}
    if node.get("format") == "int-or-string":
        node["x-kubernetes-int-or-string"] = True
    for key, keyword in _KEYWORDS.items():
        if key in facts:
            node[keyword] = facts[key]
    if "fields" in facts:
        node["properties"] = {
            name: _node(child, schemas) for name, child in facts["fields"].items()
        }
    if "values" in facts:
        node["additionalProperties"] = _node(facts["values"], schemas)
    if "items" in facts:
        node["items"] = _node(facts["items"], schemas)
    if "ref" in facts:
        _definition(facts["ref"], schemas)
        # A reference with words of its own is wrapped, as upstream does.
        node["allOf"] = [{"$ref": _REF + facts["ref"]}]
        if len(node) == 1:
            return {"$ref": _REF + facts["ref"]}
    return node
