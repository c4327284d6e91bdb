"""The places where a kind may have rules of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bidplane.wire.names import subdomain_problems
from bidplane.wire.status import Cause

Object = Mapping[str, Any]


def _nothing(obj: dict[str, Any]) -> None:
    return None


def _as_sent(new: dict[str, Any], old: Object) -> None:
    return None


def _valid(obj: Object) -> list[Cause]:
    return []


def _may_change(new: Object, old: Object) -> list[Cause]:
    return []


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    default: Callable[[dict[str, Any]], None] = _nothing  # on every write, after the schema's
    create: Callable[[dict[str, Any]], None] = _nothing  # what the server sets on a new object
    update: Callable[[dict[str, Any], Object], None] = _as_sent  # what an update keeps of the old
    validate: Callable[[Object], list[Cause]] = _valid
    change: Callable[[Object, Object], list[Cause]] = _may_change  # (new, old)
    name: Callable[[str], list[str]] = subdomain_problems
    generation: bool = False  # counts changes of spec (custom kinds always do)
    keeps_status: bool = False  # a status sent on creation is kept
