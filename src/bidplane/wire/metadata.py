"""Object metadata: its validation, and the fields that only the server sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bidplane.wire import names
from bidplane.wire.status import Cause

ANNOTATIONS_LIMIT = 256 * 1024  # bytes, all together
_IMMUTABLE = ("name", "namespace", "uid", "creationTimestamp")
# Set by the server; the stored value replaces the one a client sends.
_SERVERS = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
GENERATED_LENGTH = 5
GENERATED_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words
_BASE_LENGTH = 63 - GENERATED_LENGTH

NameRule = Callable[[str], list[str]]


def generated_name(base: str, suffix: str) -> str:
    return base[:_BASE_LENGTH] + suffix


def problems(
    obj: Mapping[str, Any], *, namespaced: bool, name_rule: NameRule, custom: bool = False
) -> list[Cause]:
    """Return the errors in an object's metadata; built-in kinds are stricter with finalizers."""
    meta, causes = obj["metadata"], []
    name = meta.get("name", "")
    if not name:
        required = "Required value: name or generateName is required"
        causes.append(Cause(required, "metadata.name", "FieldValueRequired"))
    else:
        causes += [
            Cause(f'Invalid value: "{name}": {problem}', "metadata.name")
            for problem in name_rule(name)
        ]
    if namespaced and not meta.get("namespace"):
        causes.append(Cause("Required value", "metadata.namespace", "FieldValueRequired"))
    for key, value in (meta.get("labels") or {}).items():
        causes += [
            Cause(f'Invalid value: "{key}": {problem}', "metadata.labels")
            for problem in names.qualified_problems(key)
        ]
        causes += [
            Cause(f'Invalid value: "{value}": {problem}', "metadata.labels")
            for problem in names.value_problems(str(value))
        ]
    causes += _annotations(meta.get("annotations") or {})
    for at, finalizer in enumerate(meta.get("finalizers") or ()):
        causes += [
            Cause(f'Invalid value: "{finalizer}": {problem}', f"metadata.finalizers[{at}]")
            for problem in names.qualified_problems(finalizer)
        ]
        if not custom and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            rule = "name is neither a standard finalizer name nor is it fully qualified"
            message = f'Invalid value: "{finalizer}": {rule}'
            causes.append(Cause(message, f"metadata.finalizers[{at}]"))
    return causes + _owners(meta.get("ownerReferences") or ())


def _annotations(annotations: Mapping[str, str]) -> list[Cause]:
    causes, size = [], 0
    for key, value in annotations.items():
        size += len(key) + len(value)
        # Annotation keys are label keys, whose prefix may have capitals.
        causes += [
            Cause(f'Invalid value: "{key}": {problem}', "metadata.annotations")
            for problem in names.qualified_problems(key.lower())
        ]
    if size > ANNOTATIONS_LIMIT:
        message = f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"
        causes.append(Cause(message, "metadata.annotations", "FieldValueTooLong"))
    return causes


def _owners(owners: Any) -> list[Cause]:
    causes, controllers = [], 0
    for at, owner in enumerate(owners):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                path = f"metadata.ownerReferences[{at}].{field}"
                message = 'Invalid value: "": must not be empty'
                causes.append(Cause(message, path))
        controllers += bool(owner.get("controller"))
    if controllers > 1:
        message = (
            "Invalid value: Only one reference can have Controller set to true."
            f" Found {controllers}"
        )
        causes.append(Cause(message, "metadata.ownerReferences"))
    return causes


def carry_over(new: dict[str, Any], old: Mapping[str, Any]) -> list[Cause]:
    """
    Copy server-set fields from `old`; return a cause for each immutable field changed, and for
    finalizers that are added while the object is being deleted.
    """
    meta, before = new["metadata"], old["metadata"]
    causes = []
    for field in _IMMUTABLE:
        sent = meta.get(field)
        if sent not in (None, "", before.get(field)):
            message = f'Invalid value: "{sent}": field is immutable'
            causes.append(Cause(message, f"metadata.{field}"))
    for field in (*_SERVERS, "name", "namespace", "generateName", "generation"):
        if field in before:
            meta[field] = before[field]
        else:
            meta.pop(field, None)
    added = set(meta.get("finalizers") or ()) - set(before.get("finalizers") or ())
    if before.get("deletionTimestamp") and added:
        listed = ", ".join(f'"{name}"' for name in sorted(added))
        message = (
            "Forbidden: no new finalizers can be added if the object is being deleted,"
            f" found new finalizers []string{{{listed}}}"
        )
        causes.append(Cause(message, "metadata.finalizers", "FieldValueForbidden"))
    return causes
