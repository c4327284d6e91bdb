"""One request to a plane, whichever way it came: from a socket or from this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bidplane.api.kinds import Kind
from bidplane.kube.client import Object
from bidplane.plane.feed import Key
from bidplane.wire import versions
from bidplane.wire.resources import Resource
from bidplane.wire.status import About

# (plane, CREATE or UPDATE, kind, new, old) → problems; any refuses the write.
Admit = Callable[[str, str, Kind, Object, Object | None], list[str]]


class User(msgspec.Struct, frozen=True):
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


SYSTEM = User("system:apiserver", ("system:masters",))


class Call(msgspec.Struct, kw_only=True):
    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    user: User = SYSTEM
    dry_run: bool = False
    with_status: bool = False  # of a creation, from inside only: its status is kept
    field_validation: str = "Warn"  # Ignore | Warn | Strict
    duplicates: list[str] = []  # fields the body named twice
    manager: str = ""  # who will own what is written; "" for the plane itself
    warnings: list[str] = []

    @property
    def key(self) -> Key:
        return Key(self.resource.storage, self.namespace, self.name)

    @property
    def about(self) -> About:
        return self.resource.about(self.name)

    def shown(self, obj: Object) -> Object:
        """A stored object in the version this call asked for."""
        if self.resource.api_version == self.resource.storage_version:
            return obj
        return versions.convert(obj, self.resource.api_version)

    def kept(self, obj: dict[str, Any]) -> dict[str, Any]:
        """An object of this call in the version that is stored."""
        if self.resource.api_version == self.resource.storage_version:
            return obj
        return versions.convert(obj, self.resource.storage_version)
