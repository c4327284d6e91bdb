"""The operations that plans are made of, the same for every kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from bidplane.api.kinds import Kind, Object


class CreateObject(msgspec.Struct, frozen=True):
    """Create an object."""

    kind: Kind
    obj: dict[str, Any]
    owner: Object  # gets an Event when the creation is refused


class Patch(msgspec.Struct, frozen=True):
    """A merge patch of an object as it was read: refused when it has changed since."""

    kind: Kind
    obj: Object
    change: Mapping[str, Any]
    subresource: str = ""


class Delete(msgspec.Struct, frozen=True):
    """Delete an object."""

    kind: Kind
    obj: Object
    owner: Object


class RecordEvent(msgspec.Struct, frozen=True):
    """Record an Event about an object."""

    about: Object
    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


Operation = CreateObject | Patch | Delete | RecordEvent


class WorkloadPlan(msgspec.Struct, kw_only=True):
    """
    Operations to carry out in order, and a status to write last, even if an operation is refused.

    `again` asks for another plan after so many seconds.
    """

    operations: list[Operation] = msgspec.field(default_factory=list)
    status: Operation | None = None
    again: float | None = None

    def wait(self, seconds: float | None) -> None:
        """Ask for another plan after so many seconds, if that is sooner than asked before."""
        if seconds is not None:
            self.again = seconds if self.again is None else min(self.again, seconds)


NOTHING = WorkloadPlan()
