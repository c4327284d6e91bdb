"""
CustomResourceDefinitions: their validation, and the resources that they define.

Their CEL rules are compiled and evaluated by `bidplane.plane.admission.rules`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bidplane.wire import names, regex
from bidplane.wire.resources import Column, Resource, Subresource
from bidplane.wire.schema import shapes
from bidplane.wire.status import Cause

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"  # a finalizer: instances go first
VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_AGE = Column(name="Age", type="date", path=".metadata.creationTimestamp")
_NAME = Column(name="Name", format="name")


VERSIONS_LIMIT = 50


def default(crd: dict[str, Any]) -> None:
    """Set the defaults that apiextensions sets."""
    spec = crd.setdefault("spec", {})
    crd_names = spec.setdefault("names", {})
    kind = crd_names.get("kind", "")
    crd_names.setdefault("singular", kind.lower())
    crd_names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})


def problems(crd: Mapping[str, Any]) -> list[Cause]:
    """Return the reasons why the CRD cannot be served."""
    spec, causes = crd.get("spec") or {}, []

    def say(field: str, message: str, reason: str = "FieldValueInvalid") -> None:
        causes.append(Cause(message, field, reason))

    def require(field: str) -> None:
        say(field, "Required value", "FieldValueRequired")

    group, crd_names = spec.get("group", ""), spec.get("names") or {}
    plural = crd_names.get("plural", "")
    if not group:
        require("spec.group")
    elif "." not in group:
        say("spec.group", f'Invalid value: "{group}": should be a domain with at least one dot')
    elif bad := names.subdomain_problems(group):
        say("spec.group", f'Invalid value: "{group}": {bad[0]}')
    for field in ("plural", "kind"):
        if not crd_names.get(field):
            require(f"spec.names.{field}")
    name = crd["metadata"].get("name", "")
    if name != f"{plural}.{group}":
        rule = 'must be spec.names.plural+"."+spec.group'
        say("metadata.name", f'Invalid value: "{name}": {rule}')
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        unsupported = f'Unsupported value: "{spec.get("scope", "")}"'
        allowed = 'supported values: "Cluster", "Namespaced"'
        say("spec.scope", f"{unsupported}: {allowed}", "FieldValueNotSupported")
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
    if len(versions) > VERSIONS_LIMIT:
        # Each is a kind of its own in discovery and OpenAPI.
        message = f"Too many: {len(versions)}: must have at most {VERSIONS_LIMIT} items"
        say("spec.versions", message, "FieldValueTooMany")
        return causes
    for at, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        field = f"spec.versions[{at}].schema.openAPIV3Schema"
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", version.get("name", "")):
            say(f"spec.versions[{at}].name", f'Invalid value: "{version.get("name", "")}"')
        if schema is None:
            require(field)
        else:
            _structural(schema, field, say, root=True)
    return causes


def _structural(schema: Any, path: str, say: Any, *, root: bool = False) -> None:
    """Report where a schema is not structural: it needs a type at every level, for pruning."""
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
            regex.compile(schema["pattern"])
        except regex.BadPattern as error:
            say(
                f"{path}.pattern",
                f'Invalid value: "{schema["pattern"]}": must be a valid regular expression, but'
                f" isn't: {error}",
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
    """Return a cause for each changed field that is immutable: objects are stored by it."""
    causes = []
    for field in ("scope", "group"):
        if new["spec"].get(field) != old["spec"].get(field):
            message = f'Invalid value: "{new["spec"].get(field)}": field is immutable'
            causes.append(Cause(message, f"spec.{field}"))
    return causes


class TakenNames(msgspec.Struct, frozen=True):
    """The resource names and kinds of other CRDs of the same group."""

    plurals: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()


def names_taken(crd: Mapping[str, Any], other_crds: Iterable[Mapping[str, Any]]) -> TakenNames:
    """Return the names that CRDs of the same group already have."""
    plurals: set[str] = set()
    kinds: set[str] = set()
    for other in other_crds:
        if other["spec"]["group"] != crd["spec"].get("group"):
            continue
        accepted = (other.get("status") or {}).get("acceptedNames") or {}
        plurals.update((accepted.get("plural", ""), accepted.get("singular", "")))
        plurals.update(accepted.get("shortNames") or ())
        kinds.update((accepted.get("kind", ""), accepted.get("listKind", "")))
    return TakenNames(frozenset(filter(None, plurals)), frozenset(filter(None, kinds)))


def _accepted(
    requested: Mapping[str, Any], reserved: TakenNames
) -> tuple[dict[str, Any], str, str]:
    """Return the accepted names, and the reason and message of the NamesAccepted condition."""
    accepted = dict(requested)
    reason, message = "NoConflicts", "no conflicts found"
    for field, reserved_names in (
        ("plural", reserved.plurals),
        ("singular", reserved.plurals),
        ("shortNames", reserved.plurals),
        ("kind", reserved.kinds),
        ("listKind", reserved.kinds),
    ):
        value = requested.get(field)
        many = value if isinstance(value, list) else [value]
        clash = [name for name in many if name in reserved_names]
        if not clash:
            continue
        # As upstream, whose last word is the one that stays.
        reason = f"{field[0].upper()}{field[1:]}Conflict"
        message = f'"{clash[-1]}" is already in use'
        if field == "kind":
            accepted["kind"] = ""
        else:
            accepted.pop(field)
    return accepted, reason, message


def established(
    crd: Mapping[str, Any], now: str, reserved: TakenNames | None = None
) -> dict[str, Any]:
    """Return the status of a CRD. Once its names were accepted, it stays established."""
    spec, old = crd["spec"], crd.get("status") or {}
    accepted, reason, names_message = _accepted(spec["names"], reserved or TakenNames())
    free = reason == "NoConflicts"
    was = {condition["type"]: condition for condition in old.get("conditions") or ()}
    served = free or is_established(crd)
    states = (
        ("NamesAccepted", free, reason, names_message),
        (
            "Established",
            served,
            "InitialNamesAccepted" if served else "NotAccepted",
            "the initial names have been accepted" if served else "not all names are accepted",
        ),
    )
    conditions = [
        was[kind]
        if was.get(kind, {}).get("status") == str(true) and was[kind].get("reason") == state_reason
        else {
            "type": kind,
            "status": str(true),
            "lastTransitionTime": now,
            "reason": state_reason,
            "message": message,
        }
        for kind, true, state_reason, message in states
    ]
    conditions += [
        condition for kind, condition in was.items() if kind not in ("NamesAccepted", "Established")
    ]
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    stored = [name for name in old.get("storedVersions", []) if name != storage]
    return {
        "conditions": conditions,
        "acceptedNames": accepted,
        "storedVersions": [*stored, storage],
    }


def is_established(crd: Mapping[str, Any]) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(
        condition["type"] == "Established" and condition["status"] == "True"
        for condition in conditions
    )


def wants_names(crd: Mapping[str, Any]) -> bool:
    """Return true if names that the CRD requests are in use by another one."""
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(
        condition["type"] == "NamesAccepted" and condition["status"] == "False"
        for condition in conditions
    )


def resources(crd: Mapping[str, Any]) -> list[Resource]:
    """Return the served resources of a CRD. Planes with the same CRD share the result."""
    return _resources(msgspec.json.encode(crd["spec"], order="sorted"))


@functools.lru_cache(maxsize=256)
def _resources(encoded: bytes) -> list[Resource]:
    spec = msgspec.json.decode(encoded)
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    return [
        _resource(spec, version, storage) for version in spec["versions"] if version.get("served")
    ]


def _resource(spec: Mapping[str, Any], version: Mapping[str, Any], storage: str) -> Resource:
    crd_names, group = spec["names"], spec["group"]
    schema = version["schema"]["openAPIV3Schema"]
    enabled = version.get("subresources") or {}
    subresources = {}
    if "status" in enabled:
        subresources["status"] = Subresource(
            name="status",
            group=group,
            version=version["name"],
            kind=crd_names["kind"],
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
            f"{group}/{version['name']} {crd_names['kind']} is deprecated"
        )
    return Resource(
        group=group,
        version=version["name"],
        kind=crd_names["kind"],
        plural=crd_names["plural"],
        singular=crd_names.get("singular") or crd_names["kind"].lower(),
        namespaced=spec["scope"] == "Namespaced",
        verbs=VERBS,
        storage=f"{crd_names['plural']}.{group}",
        storage_version=f"{group}/{storage}",
        short_names=tuple(crd_names.get("shortNames") or ()),
        categories=tuple(crd_names.get("categories") or ()),
        subresources=subresources,
        columns=(_NAME, *(columns or [_AGE])),
        list_kind=crd_names.get("listKind") or f"{crd_names['kind']}List",
        schema=schema,
        shape=shapes.custom(schema),
        selectable=tuple(
            field["jsonPath"].removeprefix(".") for field in version.get("selectableFields") or ()
        ),
        deprecation=deprecation,
        scale=enabled.get("scale"),
    )
