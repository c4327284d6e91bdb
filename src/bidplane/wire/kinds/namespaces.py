"""Namespaces: a label with their name, and a finalizer that empties them before they go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bidplane.wire.kinds.rules import Rules
from bidplane.wire.names import label_problems

FINALIZER = "kubernetes"
NAME_LABEL = "kubernetes.io/metadata.name"


def _default(obj: dict[str, Any]) -> None:
    labels = obj["metadata"].setdefault("labels", {})
    if obj["metadata"].get("name"):
        labels[NAME_LABEL] = obj["metadata"]["name"]


def _create(obj: dict[str, Any]) -> None:
    finalizers = obj.setdefault("spec", {}).setdefault("finalizers", [])
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)
    obj["status"] = {"phase": "Active"}


def _update(new: dict[str, Any], old: Mapping[str, Any]) -> None:
    """Keep spec.finalizers, which only the path `finalize` changes."""
    spec = dict(new.get("spec") or {})
    finalizers = (old.get("spec") or {}).get("finalizers")
    spec.pop("finalizers", None)
    if finalizers:
        spec["finalizers"] = finalizers
    new["spec"] = spec


RULES = Rules(default=_default, create=_create, update=_update, name=label_problems)
