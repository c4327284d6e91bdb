"""Roles and bindings: their required fields, and that a binding's role never changes."""

from __future__ import annotations

import json
from typing import Any

from bidplane.wire.kinds.rules import Object, Rules
from bidplane.wire.names import path_segment_problems
from bidplane.wire.status import Cause

GROUP = "rbac.authorization.k8s.io"


def _rules(obj: Object) -> list[Cause]:
    causes = []
    for index, rule in enumerate(obj.get("rules") or ()):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            causes.append(Cause("Required value", f"{path}.verbs", "FieldValueRequired"))
        if rule.get("nonResourceURLs"):
            if obj["kind"] == "Role":
                message = "Invalid value: namespaced rules cannot apply to non-resource URLs"
                causes.append(Cause(message, f"{path}.nonResourceURLs"))
            elif rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                message = (
                    "Invalid value: rules cannot apply to both regular resources and non-resource"
                    " URLs"
                )
                causes.append(Cause(message, f"{path}.nonResourceURLs"))
            continue
        for field, noun in (("apiGroups", "api group"), ("resources", "resource")):
            if not rule.get(field):
                message = f"Required value: resource rules must supply at least one {noun}"
                causes.append(Cause(message, f"{path}.{field}", "FieldValueRequired"))
    return causes


def _default_binding(obj: dict[str, Any]) -> None:
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", GROUP)
    if isinstance(obj.get("roleRef"), dict) and not obj["roleRef"].get("apiGroup"):
        obj["roleRef"]["apiGroup"] = GROUP


def _binding(obj: Object) -> list[Cause]:
    causes = []
    role = obj.get("roleRef") or {}
    allowed = ("ClusterRole",) if obj["kind"] == "ClusterRoleBinding" else ("ClusterRole", "Role")
    if role.get("kind") not in allowed:
        supported = ", ".join(f'"{kind}"' for kind in allowed)
        message = f'Unsupported value: "{role.get("kind", "")}": supported values: {supported}'
        causes.append(Cause(message, "roleRef.kind", "FieldValueNotSupported"))
    if not role.get("name"):
        causes.append(Cause("Required value", "roleRef.name", "FieldValueRequired"))
    for index, subject in enumerate(obj.get("subjects") or ()):
        if not subject.get("name"):
            path = f"subjects[{index}].name"
            causes.append(Cause("Required value", path, "FieldValueRequired"))
        if subject.get("kind") not in ("User", "Group", "ServiceAccount"):
            message = f'Unsupported value: "{subject.get("kind", "")}": supported values:'
            kinds = ' "Group", "ServiceAccount", "User"'
            path = f"subjects[{index}].kind"
            causes.append(Cause(message + kinds, path, "FieldValueNotSupported"))
        elif (
            subject["kind"] == "ServiceAccount"
            and not subject.get("namespace")
            and obj["kind"] == "ClusterRoleBinding"
        ):
            path = f"subjects[{index}].namespace"
            causes.append(Cause("Required value", path, "FieldValueRequired"))
    return causes


def _same_role(new: Object, old: Object) -> list[Cause]:
    role = new.get("roleRef") or {}
    if role == old.get("roleRef"):
        return []
    reference = {
        "APIGroup": role.get("apiGroup"),
        "Kind": role.get("kind"),
        "Name": role.get("name"),
    }
    text = json.dumps(reference, separators=(",", ":"))
    return [Cause(f"Invalid value: {text}: field is immutable", "roleRef")]


ROLE = Rules(name=path_segment_problems, validate=_rules)
BINDING = Rules(
    name=path_segment_problems, default=_default_binding, validate=_binding, change=_same_role
)
