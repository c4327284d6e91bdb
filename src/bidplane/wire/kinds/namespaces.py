"""Namespaces: a label with their name, and a finalizer that empties them before they go."""

from __future__ import annotations

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


RULES = Rules(default=_default, create=_create, name=label_problems)
