"""
Typed views of upstream's objects: names for the fields that Bidplane's parts read.

A view wraps the JSON of one object and copies nothing. It is a mapping itself, so it can be passed
wherever an `Object` is expected; what is sent to an API is the JSON, or a copy with changes. Our
own kinds are structs instead: see `api.reading`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bidplane.api import objects
from bidplane.api.kinds import Object
from bidplane.api.objects import Fields
from bidplane.api.reading import IdentityCache


class KubeObject(Mapping[str, Any]):
    """An object of any kind, with the fields that every object has."""

    __slots__ = ("json",)

    def __init__(self, json: Object) -> None:
        self.json: Object = json.json if isinstance(json, KubeObject) else json

    def __repr__(self) -> str:
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"<{type(self).__name__} {name}>"

    # The mapping, which is that of the JSON.

    def __getitem__(self, key: str) -> Any:
        return self.json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.json)

    def __len__(self) -> int:
        return len(self.json)

    def __eq__(self, other: object) -> bool:
        return self.json == (other.json if isinstance(other, KubeObject) else other)

    __hash__ = None  # type: ignore[assignment]

    # Metadata.

    @property
    def metadata(self) -> Fields:
        return objects.metadata_of(self.json)

    @property
    def name(self) -> str:
        return objects.name_of(self.json)

    @property
    def namespace(self) -> str:
        """The namespace; "" of a cluster-scoped object."""
        return objects.namespace_of(self.json)

    @property
    def uid(self) -> str:
        return objects.uid_of(self.json)

    @property
    def resource_version(self) -> str:
        version: str = self.metadata["resourceVersion"]
        return version

    @property
    def creation_timestamp(self) -> str:
        """When it was created (RFC 3339); "" before the API has it."""
        stamp: str = self.metadata.get("creationTimestamp") or ""
        return stamp

    @property
    def deletion_timestamp(self) -> str:
        """When its grace ends (RFC 3339); "" unless it is being deleted."""
        stamp: str = self.metadata.get("deletionTimestamp") or ""
        return stamp

    @property
    def labels(self) -> Mapping[str, str]:
        return objects.labels_of(self.json)

    @property
    def annotations(self) -> Mapping[str, str]:
        return objects.annotations_of(self.json)

    @property
    def finalizers(self) -> tuple[str, ...]:
        return objects.finalizers_of(self.json)

    @property
    def controller(self) -> Fields | None:
        """The owner reference of its controller; None without one."""
        return objects.controller_of(self.json)

    @property
    def is_deleted(self) -> bool:
        """True while it is being deleted."""
        return objects.is_deleted(self.json)

    # Spec and status.

    @property
    def spec(self) -> Fields:
        return objects.spec_of(self.json)

    @property
    def status(self) -> Fields:
        return objects.status_of(self.json)

    @property
    def phase(self) -> str:
        return objects.phase_of(self.json)

    @property
    def conditions(self) -> Sequence[Fields]:
        return self.status.get("conditions") or ()

    def condition(self, type_: str) -> Fields | None:
        """Return the condition of a type; None without one."""
        return objects.condition_of(self.json, type_)

    def is_true(self, type_: str) -> bool:
        """Return True if it has the condition with status True."""
        return objects.is_true(self.json, type_)


class Pod(KubeObject):
    __slots__ = ()

    @property
    def node_name(self) -> str:
        """The node that it is bound to; "" before that."""
        name: str = self.spec.get("nodeName") or ""
        return name

    @property
    def has_ended(self) -> bool:
        """True once all its containers have ended for good."""
        return objects.has_ended(self.json)

    @property
    def claim_references(self) -> Sequence[Fields]:
        """Its references to ResourceClaims and their templates (`spec.resourceClaims`)."""
        return self.spec.get("resourceClaims") or ()

    @property
    def grace_seconds(self) -> int:
        """The grace period that it asks for."""
        seconds: int = self.spec.get("terminationGracePeriodSeconds", 30)
        return seconds

    @property
    def deletion_grace_seconds(self) -> int:
        """The grace period with which it is being deleted; 0 unless it is."""
        seconds: int = self.metadata.get("deletionGracePeriodSeconds", 0)
        return seconds


class Node(KubeObject):
    __slots__ = ()

    @property
    def taints(self) -> Sequence[Fields]:
        return self.spec.get("taints") or ()


class ResourceSlice(KubeObject):
    """Devices that a driver publishes."""

    __slots__ = ()

    @property
    def node_name(self) -> str:
        """The node of its devices; "" if they are not of one node."""
        name: str = self.spec.get("nodeName") or ""
        return name

    @property
    def driver(self) -> str:
        driver: str = self.spec["driver"]
        return driver

    @property
    def devices(self) -> Sequence[Fields]:
        return self.spec.get("devices") or ()


class ResourceClaim(KubeObject):
    __slots__ = ()

    @property
    def allocation(self) -> Fields | None:
        """Its allocated devices; None before the allocation."""
        return self.status.get("allocation")

    @property
    def results(self) -> Sequence[Fields]:
        """Its allocated devices, one result each."""
        return ((self.allocation or {}).get("devices") or {}).get("results") or ()


# One view for each version of a pod, so that what is derived from a pod is derived once. Few are
# enough: caches of objects hold their views, and handlers are called at once.
read_pod = IdentityCache(Pod, most=256)
