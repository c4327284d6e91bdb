"""ValidatingAdmissionPolicies and their bindings; the plane compiles their expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bidplane.wire.kinds.rules import Rules
from bidplane.wire.status import Cause

Object = Mapping[str, Any]

_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_ACTIONS = ("Audit", "Deny", "Warn")


def _required(path: str, detail: str = "") -> Cause:
    return Cause(f"Required value{detail and ': '}{detail}", path, "FieldValueRequired")


def _unsupported(value: Any, allowed: tuple[str, ...], path: str) -> Cause:
    listed = ", ".join(f'"{value_allowed}"' for value_allowed in allowed)
    message = f'Unsupported value: "{value}": supported values: {listed}'
    return Cause(message, path, "FieldValueNotSupported")


def _policy(obj: Object) -> list[Cause]:
    return list(_policy_problems(obj.get("spec") or {}))


def _policy_problems(spec: Object) -> Iterator[Cause]:
    if (kind := spec.get("paramKind")) is not None:
        for field in ("apiVersion", "kind"):
            if not kind.get(field):
                yield _required(f"spec.paramKind.{field}")
    constraints = spec.get("matchConstraints")
    if constraints is None:
        yield _required("spec.matchConstraints")
    else:
        if not constraints.get("resourceRules"):
            yield _required("spec.matchConstraints.resourceRules")
        yield from _match_problems(constraints, "spec.matchConstraints")
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        detail = "validations or auditAnnotations must contain at least one item"
        yield _required("spec.validations", detail)
        yield _required("spec.auditAnnotations", detail)
    for index, validation in enumerate(spec.get("validations") or ()):
        path = f"spec.validations[{index}]"
        if "\n" in (validation.get("message") or "").strip():
            encoded = msgspec.json.encode(validation["message"]).decode()
            message = f"Invalid value: {encoded}: must not contain line breaks"
            yield Cause(message, f"{path}.message")
        reason = validation.get("reason")
        if reason and reason not in _REASONS:
            yield _unsupported(reason, _REASONS, f"{path}.reason")


def _match_problems(match: Object, path: str) -> Iterator[Cause]:
    for field in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(match.get(field) or ()):
            rule_path = f"{path}.{field}[{index}]"
            for part in ("operations", "apiGroups", "apiVersions", "resources"):
                if not rule.get(part):
                    yield _required(f"{rule_path}.{part}")
            for number, operation in enumerate(rule.get("operations") or ()):
                if operation not in _OPERATIONS:
                    yield _unsupported(operation, _OPERATIONS, f"{rule_path}.operations[{number}]")


def _binding(obj: Object) -> list[Cause]:
    return list(_binding_problems(obj.get("spec") or {}))


def _binding_problems(spec: Object) -> Iterator[Cause]:
    if not spec.get("policyName"):
        yield _required("spec.policyName")
    if (reference := spec.get("paramRef")) is not None:
        yield from _reference_problems(reference)
    yield from _match_problems(spec.get("matchResources") or {}, "spec.matchResources")
    actions = spec.get("validationActions") or []
    if not actions:
        yield _required("spec.validationActions")
    for index, action in enumerate(actions):
        path = f"spec.validationActions[{index}]"
        if action not in _ACTIONS:
            yield _unsupported(action, _ACTIONS, path)
        elif action in actions[:index]:
            yield Cause(f'Duplicate value: "{action}"', path, "FieldValueDuplicate")
    if {"Deny", "Warn"} <= set(actions):
        encoded = msgspec.json.encode(actions).decode()
        yield Cause(
            f"Invalid value: {encoded}: must not contain both Deny and Warn (repeating the same"
            " validation failure information in the API response and headers serves no purpose)",
            "spec.validationActions",
        )


def _reference_problems(reference: Object) -> Iterator[Cause]:
    path = "spec.paramRef"
    named, selected = bool(reference.get("name")), reference.get("selector") is not None
    if named and selected:
        message = "Forbidden: name and selector are mutually exclusive"
        yield Cause(message, f"{path}.name", "FieldValueForbidden")
        yield Cause(message, f"{path}.selector", "FieldValueForbidden")
    elif not named and not selected:
        yield _required(path, "one of name or selector must be specified")
    if not reference.get("parameterNotFoundAction"):
        yield _required(f"{path}.parameterNotFoundAction")


POLICY = Rules(validate=_policy, generation=True)
BINDING = Rules(validate=_binding, generation=True)
