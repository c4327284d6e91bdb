"""What a plan is made of: few operations, the same for every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from bidplane.api.kinds import Kind, Object


class Create(msgspec.Struct, frozen=True):
    kind: Kind
    obj: dict[str, Any]
    owner: Object  # who is told, by an Event, when it is refused


class Patch(msgspec.Struct, frozen=True):
    """A merge patch of an object as it was seen: refused when it has changed since."""

    kind: Kind
    obj: Object
    change: Mapping[str, Any]
    subresource: str = ""


class Delete(msgspec.Struct, frozen=True):
    kind: Kind
    obj: Object
    owner: Object


class Record(msgspec.Struct, frozen=True):
    about: Object
    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


Operation = Create | Patch | Delete | Record


class Plan(msgspec.Struct, kw_only=True):
    """
    In order. `status` comes last and is written even when an operation was refused.

    `again` asks for another look after so many seconds.
    """

    operations: list[Operation] = msgspec.field(default_factory=list)
    status: Operation | None = None
    again: float | None = None

    def wait(self, seconds: float | None) -> None:
        if seconds is not None:
            self.again = seconds if self.again is None else min(self.again, seconds)


NOTHING = Plan()
