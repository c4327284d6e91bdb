"""The part every object has: what may be in it, and what only the server sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bidplane.wire import names
from bidplane.wire.status import Cause

ANNOTATIONS_LIMIT = 256 * 1024  # bytes, all together
_IMMUTABLE = ("name", "namespace", "uid", "creationTimestamp")
# Set by the server; what a client sends is replaced by what is there.
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
    """What is wrong with an object's metadata; built-in kinds are stricter with finalizers."""
    meta, found = obj["metadata"], []
    name = meta.get("name", "")
    if not name:
        said = "Required value: name or generateName is required"
        found.append(Cause(said, "metadata.name", "FieldValueRequired"))
    else:
        found += [
            Cause(f'Invalid value: "{name}": {words}', "metadata.name") for words in name_rule(name)
        ]
    if namespaced and not meta.get("namespace"):
        found.append(Cause("Required value", "metadata.namespace", "FieldValueRequired"))
    for key, value in (meta.get("labels") or {}).items():
        found += [
            Cause(f'Invalid value: "{key}": {words}', "metadata.labels")
            for words in names.qualified_problems(key)
        ]
        found += [
            Cause(f'Invalid value: "{value}": {words}', "metadata.labels")
            for words in names.value_problems(str(value))
        ]
    found += _annotations(meta.get("annotations") or {})
    for at, finalizer in enumerate(meta.get("finalizers") or ()):
        found += [
            Cause(f'Invalid value: "{finalizer}": {words}', f"metadata.finalizers[{at}]")
            for words in names.qualified_problems(finalizer)
        ]
        if not custom and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            words = "name is neither a standard finalizer name nor is it fully qualified"
            said = f'Invalid value: "{finalizer}": {words}'
            found.append(Cause(said, f"metadata.finalizers[{at}]"))
    return found + _owners(meta.get("ownerReferences") or ())


def _annotations(annotations: Mapping[str, str]) -> list[Cause]:
    found, size = [], 0
    for key, value in annotations.items():
        size += len(key) + len(value)
        # Annotation keys are label keys, whose prefix may have capitals.
        found += [
            Cause(f'Invalid value: "{key}": {words}', "metadata.annotations")
            for words in names.qualified_problems(key.lower())
        ]
    if size > ANNOTATIONS_LIMIT:
        words = f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"
        found.append(Cause(words, "metadata.annotations", "FieldValueTooLong"))
    return found


def _owners(owners: Any) -> list[Cause]:
    found, controllers = [], 0
    for at, owner in enumerate(owners):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                path = f"metadata.ownerReferences[{at}].{field}"
                words = 'Invalid value: "": must not be empty'
                found.append(Cause(words, path))
        controllers += bool(owner.get("controller"))
    if controllers > 1:
        words = (
            "Invalid value: Only one reference can have Controller set to true."
            f" Found {controllers}"
        )
        found.append(Cause(words, "metadata.ownerReferences"))
    return found


def carry_over(new: dict[str, Any], old: Mapping[str, Any]) -> list[Cause]:
    """Keep what only the server sets, and say which fixed parts the client tried to change."""
    meta, before = new["metadata"], old["metadata"]
    found = []
    for field in _IMMUTABLE:
        sent = meta.get(field)
        if sent not in (None, "", before.get(field)):
            words = f'Invalid value: "{sent}": field is immutable'
            found.append(Cause(words, f"metadata.{field}"))
    for field in (*_SERVERS, "name", "namespace", "generateName", "generation"):
        if field in before:
            meta[field] = before[field]
        else:
            meta.pop(field, None)
    added = set(meta.get("finalizers") or ()) - set(before.get("finalizers") or ())
    if before.get("deletionTimestamp") and added:
        listed = ", ".join(f'"{name}"' for name in sorted(added))
        words = (
            "Forbidden: no new finalizers can be added if the object is being deleted,"
            f" found new finalizers []string{{{listed}}}"
        )
        found.append(Cause(words, "metadata.finalizers", "FieldValueForbidden"))
    return found
