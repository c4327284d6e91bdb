"""
The fields that every Kubernetes object has, read in one place.

An `Object` is JSON as the API serves it, of any kind. Our own kinds are read whole into structs
(`api.reading`); of upstream's kinds, most parts of Bidplane need no more than these fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bidplane.api.kinds import Object

Fields = Mapping[str, Any]


def metadata_of(obj: Object) -> Fields:
    metadata: Fields = obj["metadata"]
    return metadata


def name_of(obj: Object) -> str:
    name: str = obj["metadata"]["name"]
    return name


def namespace_of(obj: Object) -> str:
    """Return the namespace; "" of a cluster-scoped object."""
    namespace: str = obj["metadata"].get("namespace") or ""
    return namespace


def uid_of(obj: Object) -> str:
    uid: str = obj["metadata"].get("uid") or ""
    return uid


def labels_of(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


def finalizers_of(obj: Object) -> tuple[str, ...]:
    return tuple(obj["metadata"].get("finalizers") or ())


def spec_of(obj: Object) -> Fields:
    """Return the spec; an object that was written without any has an empty one."""
    return obj.get("spec") or {}


def status_of(obj: Object) -> Fields:
    return obj.get("status") or {}


def is_deleted(obj: Object) -> bool:
    """Return True for an object that is being deleted."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def phase_of(obj: Object) -> str:
    phase: str = status_of(obj).get("phase") or ""
    return phase


def has_ended(pod: Object) -> bool:
    """Return True for a pod whose containers have ended for good."""
    return phase_of(pod) in ("Succeeded", "Failed")


def condition_of(obj: Object, type_: str) -> Fields | None:
    """Return the condition of a type; None without one."""
    conditions: Iterable[Fields] = status_of(obj).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == type_), None)


def is_true(obj: Object, type_: str) -> bool:
    """Return True if the object has the condition with status True."""
    return (condition_of(obj, type_) or {}).get("status") == "True"


def controller_of(obj: Object) -> Fields | None:
    """Return the owner reference of the object's controller; None without one."""
    owners: Iterable[Fields] = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)
