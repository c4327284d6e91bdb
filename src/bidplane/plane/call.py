"""One request to a plane, from a socket or from this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bidplane.api.gate.action import Action
from bidplane.api.kinds import Kind
from bidplane.kube.client import Object
from bidplane.plane.storage.feed import Key
from bidplane.wire.resources import Resource
from bidplane.wire.schema import versions
from bidplane.wire.status import About

# Media types of patches.
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

# (plane, CREATE or UPDATE, kind, new, old) → problems; any refuses the write.
Admit = Callable[[str, str, Kind, Object, Object | None], list[str]]
# A written object of that kind → warnings, which its writer sees.
Advise = Callable[[Kind, Object], list[str]]


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
    # Whether admission policies apply: to all calls but the plane's own housekeeping.
    enforced: bool = False
    permitted: tuple[Action, ...] = ()  # by the gate
    dry_run: bool = False
    with_status: bool = False  # of a creation in this process: its status is stored
    field_validation: str = "Warn"  # Ignore | Warn | Strict
    duplicates: list[str] = []  # fields the body named twice
    # Of `scale`: the Scale of an object.
    view: Callable[[Object], Object] | None = None
    # Of a patch: its media type, and the sent body if errors show that.
    patch_type: str = ""
    patch: Any = None
    manager: str = ""  # the field manager; "" for the plane itself
    warnings: list[str] = []

    @property
    def key(self) -> Key:
        return Key(self.resource.storage, self.namespace, self.name)

    @property
    def about(self) -> About:
        return self.resource.about(self.name)

    def to_requested_version(self, obj: Object) -> Object:
        """Return a stored object in the version of the API that this call names."""
        if self.resource.api_version == self.resource.storage_version:
            return obj
        return versions.convert(obj, self.resource.api_version)

    def to_stored_version(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an object of this call in the version that is stored."""
        if self.resource.api_version == self.resource.storage_version:
            return obj
        return versions.convert(obj, self.resource.storage_version)
