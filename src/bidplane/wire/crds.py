"""
CustomResourceDefinitions: what is wrong with one, and the resources it makes served.

Its CEL rules are compiled and asked by `bidplane.plane.rules`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bidplane.wire import names, shapes
from bidplane.wire.resources import Column, Resource, Subresource
from bidplane.wire.status import Cause

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"  # a finalizer: instances go first
VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_AGE = Column(name="Age", type="date", path=".metadata.creationTimestamp")
_NAME = Column(name="Name", format="name")


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


class Taken(msgspec.Struct, frozen=True):
    """The names that other CRDs of the same group have: of resources, and of kinds."""

    plurals: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()


def names_taken(crd: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> Taken:
    plurals: set[str] = set()
    kinds: set[str] = set()
    for other in others:
        if other["spec"]["group"] != crd["spec"].get("group"):
            continue
        held = (other.get("status") or {}).get("acceptedNames") or {}
        plurals.update((held.get("plural", ""), held.get("singular", "")))
        plurals.update(held.get("shortNames") or ())
        kinds.update((held.get("kind", ""), held.get("listKind", "")))
    return Taken(frozenset(filter(None, plurals)), frozenset(filter(None, kinds)))


def _accepted(asked: Mapping[str, Any], taken: Taken) -> tuple[dict[str, Any], str, str]:
    """The names that are free; and, of one that is not, the reason and the words."""
    accepted = dict(asked)
    reason, words = "NoConflicts", "no conflicts found"
    for field, held in (
        ("plural", taken.plurals),
        ("singular", taken.plurals),
        ("shortNames", taken.plurals),
        ("kind", taken.kinds),
        ("listKind", taken.kinds),
    ):
        value = asked.get(field)
        many = value if isinstance(value, list) else [value]
        clash = [name for name in many if name in held]
        if not clash:
            continue
        # As upstream, whose last word is the one that stays.
        reason = f"{field[0].upper()}{field[1:]}Conflict"
        words = f'"{clash[-1]}" is already in use'
        if field == "kind":
            accepted["kind"] = ""
        else:
            accepted.pop(field)
    return accepted, reason, words


def established(crd: Mapping[str, Any], now: str, taken: Taken | None = None) -> dict[str, Any]:
    """The status of a CRD: served once its names are its own, and from then on."""
    spec, old = crd["spec"], crd.get("status") or {}
    accepted, reason, words = _accepted(spec["names"], taken or Taken())
    free = reason == "NoConflicts"
    was = {one["type"]: one for one in old.get("conditions") or ()}
    served = free or is_established(crd)
    wanted = (
        ("NamesAccepted", free, reason, words),
        (
            "Established",
            served,
            "InitialNamesAccepted" if served else "NotAccepted",
            "the initial names have been accepted" if served else "not all names are accepted",
        ),
    )
    conditions = [
        was[kind]
        if was.get(kind, {}).get("status") == str(true) and was[kind].get("reason") == why
        else {
            "type": kind,
            "status": str(true),
            "lastTransitionTime": now,
            "reason": why,
            "message": said,
        }
        for kind, true, why, said in wanted
    ]
    conditions += [one for kind, one in was.items() if kind not in ("NamesAccepted", "Established")]
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    stored = [name for name in old.get("storedVersions", []) if name != storage]
    return {
        "conditions": conditions,
        "acceptedNames": accepted,
        "storedVersions": [*stored, storage],
    }


def is_established(crd: Mapping[str, Any]) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def wants_names(crd: Mapping[str, Any]) -> bool:
    """Whether names it asked for were not free."""
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "NamesAccepted" and one["status"] == "False" for one in conditions)


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
