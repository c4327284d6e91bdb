"""
CustomResourceDefinitions: what is wrong with one, and the resources it makes served.

CEL rules (`x-kubernetes-validations`) are not evaluated yet. A CRD that has some is accepted
with a warning, so that charts install; nobody is told that a rule was checked.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from bidplane.wire import names, shapes
from bidplane.wire.resources import Column, Resource, Subresource
from bidplane.wire.status import Cause

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"  # a finalizer: instances go first
VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_AGE = Column(name="Age", type="date", path=".metadata.creationTimestamp")
_NAME = Column(name="Name", format="name")
CEL_WARNING = (
    "spec.versions[*].schema: x-kubernetes-validations are not evaluated by this server yet;"
    " objects are checked against the rest of the schema only"
)


def default(crd: dict[str, Any]) -> None:
    """Fill in what apiextensions fills in."""
    spec = crd["spec"]
    given = spec.setdefault("names", {})
    kind = given.get("kind", "")
    given.setdefault("singular", kind.lower())
    given.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})


def problems(crd: Mapping[str, Any]) -> list[Cause]:
    """Why this is not a CRD we can serve."""
    spec, found = crd.get("spec") or {}, []

    def say(field: str, message: str, reason: str = "FieldValueInvalid") -> None:
        found.append(Cause(message, field, reason))

    def require(field: str) -> None:
        say(field, "Required value", "FieldValueRequired")

    group, given = spec.get("group", ""), spec.get("names") or {}
    plural = given.get("plural", "")
    if not group:
        require("spec.group")
    elif "." not in group:
        say("spec.group", f'Invalid value: "{group}": should be a domain with at least one dot')
    elif bad := names.subdomain_problems(group):
        say("spec.group", f'Invalid value: "{group}": {bad[0]}')
    for field in ("plural", "kind"):
        if not given.get(field):
            require(f"spec.names.{field}")
    name = crd["metadata"].get("name", "")
    if name != f"{plural}.{group}":
        said = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        say("metadata.name", said)
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        words = f'Unsupported value: "{spec.get("scope", "")}"'
        allowed = 'supported values: "Cluster", "Namespaced"'
        say("spec.scope", f"{words}: {allowed}", "FieldValueNotSupported")
    if (spec.get("conversion") or {}).get("strategy", "None") != "None":
        say(
            "spec.conversion.strategy",
            "Invalid value: webhook conversion is not supported by this server: versions must"
            " have the same fields (strategy None)",
        )
    versions = spec.get("versions") or []
    if not versions:
        require("spec.versions")
    elif sum(bool(version.get("storage")) for version in versions) != 1:
        say(
            "spec.versions",
            "Invalid value: must have exactly one version marked as storage version",
        )
    for at, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        field = f"spec.versions[{at}].schema.openAPIV3Schema"
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", version.get("name", "")):
            say(f"spec.versions[{at}].name", f'Invalid value: "{version.get("name", "")}"')
        if schema is None:
            require(field)
        else:
            _structural(schema, field, say, root=True)
    return found


def _structural(schema: Any, path: str, say: Any, *, root: bool = False) -> None:
    """A structural schema says a type at every level, so that pruning knows what to keep."""
    if not isinstance(schema, Mapping):
        say(path, "Invalid value: must be a schema")
        return
    free = schema.get("x-kubernetes-preserve-unknown-fields")
    either = schema.get("x-kubernetes-int-or-string")
    kind = schema.get("type", "")
    if not kind and not free and not either:
        say(
            f"{path}.type",
            "Required value: must not be empty for specified object fields",
            "FieldValueRequired",
        )
    if root and kind and kind != "object":
        say(f"{path}.type", f'Invalid value: "{kind}": must be object at the root')
    if schema.get("$ref"):
        say(f"{path}.$ref", "Forbidden: $ref is not supported", "FieldValueForbidden")
    if schema.get("properties") and isinstance(schema.get("additionalProperties"), Mapping):
        say(
            path,
            "Forbidden: additionalProperties and properties are mutual exclusive",
            "FieldValueForbidden",
        )
    if schema.get("pattern"):
        try:
            re.compile(schema["pattern"])
        except re.error:
            say(
                f"{path}.pattern",
                f'Invalid value: "{schema["pattern"]}": must be a valid regular expression',
            )
    for name, child in (schema.get("properties") or {}).items():
        if root and name == "metadata":
            continue  # only name and generateName may be restricted; we leave them be
        _structural(child, f"{path}.properties[{name}]", say)
    if isinstance(schema.get("additionalProperties"), Mapping):
        _structural(schema["additionalProperties"], f"{path}.additionalProperties", say)
    if kind == "array":
        if "items" not in schema:
            say(f"{path}.items", "Required value: must be specified", "FieldValueRequired")
        else:
            _structural(schema["items"], f"{path}.items", say)


def changes(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[Cause]:
    """What of a CRD cannot change: its objects are kept under it."""
    found = []
    for field in ("scope", "group"):
        if new["spec"].get(field) != old["spec"].get(field):
            words = f'Invalid value: "{new["spec"].get(field)}": field is immutable'
            found.append(Cause(words, f"spec.{field}"))
    return found


def warnings(crd: Mapping[str, Any]) -> list[str]:
    return [CEL_WARNING] if shapes.uses_cel(crd.get("spec", {}).get("versions")) else []


def established(crd: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The status of a CRD whose resources are served."""
    spec, old = crd["spec"], crd.get("status") or {}
    if old.get("conditions") and old.get("acceptedNames") == spec["names"]:
        conditions = old["conditions"]
    else:
        conditions = [
            {
                "type": "NamesAccepted",
                "status": "True",
                "lastTransitionTime": now,
                "reason": "NoConflicts",
                "message": "no conflicts found",
            },
            {
                "type": "Established",
                "status": "True",
                "lastTransitionTime": now,
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
            },
        ]
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    stored = [name for name in old.get("storedVersions", []) if name != storage]
    return {
        "conditions": conditions,
        "acceptedNames": spec["names"],
        "storedVersions": [*stored, storage],
    }


def resources(crd: Mapping[str, Any]) -> list[Resource]:
    """What the CRD makes served. Planes with the same CRD share the result."""
    return _resources(msgspec.json.encode(crd["spec"], order="sorted"))


@functools.lru_cache(maxsize=256)
def _resources(encoded: bytes) -> list[Resource]:
    spec = msgspec.json.decode(encoded)
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    return [
        _resource(spec, version, storage) for version in spec["versions"] if version.get("served")
    ]


def _resource(spec: Mapping[str, Any], version: Mapping[str, Any], storage: str) -> Resource:
    given, group = spec["names"], spec["group"]
    schema = version["schema"]["openAPIV3Schema"]
    enabled = version.get("subresources") or {}
    subresources = {}
    if "status" in enabled:
        subresources["status"] = Subresource(
            name="status",
            group=group,
            version=version["name"],
            kind=given["kind"],
            verbs=("get", "patch", "update"),
        )
    if "scale" in enabled:
        subresources["scale"] = Subresource(
            name="scale",
            group="autoscaling",
            version="v1",
            kind="Scale",
            verbs=("get", "patch", "update"),
        )
    columns = [
        Column(
            name=column["name"],
            type=column["type"],
            format=column.get("format", ""),
            description=column.get("description", ""),
            priority=column.get("priority", 0),
            path=column["jsonPath"],
        )
        for column in version.get("additionalPrinterColumns") or ()
    ]
    deprecation = ""
    if version.get("deprecated"):
        deprecation = version.get("deprecationWarning") or (
            f"{group}/{version['name']} {given['kind']} is deprecated"
        )
    return Resource(
        group=group,
        version=version["name"],
        kind=given["kind"],
        plural=given["plural"],
        singular=given.get("singular") or given["kind"].lower(),
        namespaced=spec["scope"] == "Namespaced",
        verbs=VERBS,
        storage=f"{given['plural']}.{group}",
        storage_version=f"{group}/{storage}",
        short_names=tuple(given.get("shortNames") or ()),
        categories=tuple(given.get("categories") or ()),
        subresources=subresources,
        columns=(_NAME, *(columns or [_AGE])),
        list_kind=given.get("listKind") or f"{given['kind']}List",
        schema=schema,
        shape=shapes.custom(schema),
        selectable=tuple(
            field["jsonPath"].removeprefix(".") for field in version.get("selectableFields") or ()
        ),
        deprecation=deprecation,
        scale=enabled.get("scale"),
    )
