"""
Drift: a Pool or an Agent that differs from what was declared, in one field of its spec.

A field that is a listed action of its own, such as a floor price, is repaired by that action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from bidplane.api.kinds import AGENT, POOL

DRIFTING = {kind.kind: kind for kind in (POOL, AGENT)}
_UNSET = "null"
_LISTED = {"Pool": ("floorPrice", "idleSeconds"), "Agent": ("refill", "priority")}


class FieldDrift(msgspec.Struct, frozen=True):
    """The value that a field of an object's spec is to have, as JSON; null unsets it."""

    kind: str  # of the object
    field: str
    value: str

    def __str__(self) -> str:
        return f"{self.kind} {self.field} {self.value}"


def parse_drift(text: str) -> FieldDrift:
    """Read `KIND FIELD JSON`; raises ValueError."""
    kind, _, rest = text.partition(" ")
    field, _, value = rest.partition(" ")
    if kind not in DRIFTING:
        raise ValueError(f"{kind!r}: write Pool or Agent, a field of its spec, and JSON")
    if not field.isidentifier() or field == "suspended":
        raise ValueError(f"{field!r} is no field of a {kind}'s spec that is repaired")
    if field in _LISTED[kind]:
        raise ValueError(f"{field} of a {kind} has an action of its own: use that")
    try:
        decoded = msgspec.json.decode(value)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the value of {field} is no JSON: {error}") from error
    return FieldDrift(kind, field, as_json(decoded))


def spec_fields(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a spec, each as JSON."""
    return {field: as_json(value) for field, value in spec.items()}


def field_before(fields: Mapping[str, str], drift: FieldDrift) -> FieldDrift:
    """Return the drift that takes one back."""
    return msgspec.structs.replace(drift, value=fields.get(drift.field, _UNSET))


def as_json(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()
