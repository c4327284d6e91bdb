"""Objects of our own kinds as they are written to the API: the reverse of `api.reading`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bidplane.api.kinds import Kind, Object


def manifest(
    kind: Kind,
    name: str,
    spec: msgspec.Struct,
    *,
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """Return a new object; fields of the spec that have their default are left to the API."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            **({"annotations": dict(annotations)} if annotations else {}),
        },
        "spec": _without_defaults(spec),
    }


def _without_defaults(spec: msgspec.Struct) -> Object:
    plain = msgspec.to_builtins(spec)
    return {
        field.encode_name: plain[field.encode_name]
        for field in msgspec.structs.fields(spec)
        if getattr(spec, field.name) != _default(field)
    }


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
