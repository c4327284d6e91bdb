"""
The expressions of a policy, compiled, and their decisions.

`variables.NAME` is passed as a value if it can be evaluated; otherwise its expression replaces
it. So a variable that fails matters only where an expression reaches it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api.kinds import Object
from bidplane.core import cel
from bidplane.core.cel import CelError
from bidplane.wire.status import Cause

_ALWAYS = ("object", "oldObject", "request", "namespaceObject")
_VARIABLE = re.compile(r"(?<![\w.])variables\s*\.\s*([A-Za-z_]\w*)")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_AUTHORIZER = re.compile(r"(?<![\w.])authorizer\b")
_WRONG_TYPE = re.compile(r"cel expression must evaluate to a (\w+), not (\w+)")
_MESSAGE_LIMIT = 5 << 10
_NO_VALUE: tuple[type, ...] = (datetime.datetime, datetime.timedelta)  # taken by no variable


class Validation(msgspec.Struct, frozen=True):
    expression: str
    message: str
    message_expression: str
    reason: str


class CompiledPolicy(msgspec.Struct, frozen=True):
    """The parts of a policy that are evaluated."""

    variables: Mapping[str, str]
    conditions: Sequence[str]
    validations: Sequence[Validation]
    names: tuple[str, ...]  # of the CEL variables that expressions may use
    fails_open: bool


class Denial(msgspec.Struct, frozen=True):
    """The message and reason with which a policy denies a request."""

    message: str
    reason: str = "Invalid"


def policy(spec: Object) -> CompiledPolicy:
    """Return the policy of a checked ValidatingAdmissionPolicy's spec."""
    return CompiledPolicy(
        variables={part["name"]: part["expression"] for part in spec.get("variables") or ()},
        conditions=[part["expression"] for part in spec.get("matchConditions") or ()],
        validations=[
            Validation(
                part["expression"],
                part.get("message") or "",
                part.get("messageExpression") or "",
                part.get("reason") or "Invalid",
            )
            for part in spec.get("validations") or ()
        ],
        names=_names(spec),
        fails_open=spec.get("failurePolicy") == "Ignore",
    )


def _names(spec: Object) -> tuple[str, ...]:
    return (*_ALWAYS, "params") if spec.get("paramKind") else _ALWAYS


# Checking.


def problems(spec: Object) -> list[Cause]:
    """Return the errors in the expressions of a ValidatingAdmissionPolicy's spec."""
    names, declared = _names(spec), list[str]()
    causes: list[Cause] = []
    if message := cel.too_long(_sources(spec)):
        return [Cause(message, "spec", "FieldValueTooLong")]
    for at, part in enumerate(spec.get("variables") or ()):
        path = f"spec.variables[{at}]"
        name = part.get("name") or ""
        if not _IDENTIFIER.fullmatch(name):
            message = f'Invalid value: "{name}": must be a valid CEL identifier'
            causes.append(Cause(message, f"{path}.name"))
        causes += _compiled(part, "expression", path, names, declared, "")
        declared.append(name)
    for at, part in enumerate(spec.get("matchConditions") or ()):
        path = f"spec.matchConditions[{at}]"
        if not part.get("name"):
            causes.append(Cause("Required value", f"{path}.name", "FieldValueRequired"))
        # Upstream gives conditions no variables: they are asked first.
        causes += _compiled(part, "expression", path, names, [], cel.BOOL)
    for at, part in enumerate(spec.get("validations") or ()):
        path = f"spec.validations[{at}]"
        causes += _compiled(part, "expression", path, names, declared, cel.BOOL)
        if part.get("messageExpression"):
            causes += _compiled(part, "messageExpression", path, names, declared, cel.STRING)
    for at, part in enumerate(spec.get("auditAnnotations") or ()):
        path = f"spec.auditAnnotations[{at}]"
        causes += _compiled(part, "valueExpression", path, names, declared, "")
    return causes


def _sources(spec: Object) -> Iterator[str]:
    for parts in ("variables", "matchConditions", "validations", "auditAnnotations"):
        for part in spec.get(parts) or ():
            for field in ("expression", "messageExpression", "valueExpression"):
                yield part.get(field) or ""


def _compiled(
    part: Object, field: str, path: str, names: tuple[str, ...], declared: list[str], returns: str
) -> Iterator[Cause]:
    source, at = part.get(field) or "", f"{path}.{field}"
    if not source.strip():
        yield Cause(f"Required value: {field} is not specified", at, "FieldValueRequired")
        return
    quoted = msgspec.json.encode(source).decode()
    if _AUTHORIZER.search(cel.without_text(source)):
        problem = "authorizer is not supported by this server: use request.userInfo"
        yield Cause(f"Forbidden: {problem}", at, "FieldValueForbidden")
        return
    unknown = [name for name in _used(source) if name not in declared]
    if unknown:
        problem = f"compilation failed: ERROR: undefined field '{unknown[0]}'"
        yield Cause(f"Invalid value: {quoted}: {problem}", at)
        return
    try:
        cel.compile(source, _declared(names, source), returns)
    except CelError as error:
        yield Cause(f"Invalid value: {quoted}: {_reason(error)}", at)


def _reason(error: CelError) -> str:
    wrong = _WRONG_TYPE.fullmatch(str(error))
    if wrong is None:
        return f"compilation failed: {error}"
    return f"must evaluate to {wrong[1]} but got {wrong[2]}"


def _used(source: str) -> list[str]:
    return list(dict.fromkeys(_VARIABLE.findall(cel.without_text(source))))


def _declared(names: tuple[str, ...], source: str) -> tuple[str, ...]:
    return (*names, *(f"variables.{name}" for name in _used(source)))


# Deciding.


class Evaluation:
    """The evaluation of one policy on one request, with one parameter object."""

    def __init__(
        self,
        compiled: CompiledPolicy,
        inputs: Mapping[str, Any],
        budget: cel.CostBudget | None = None,
    ) -> None:
        self._policy = compiled
        self._budget = budget or cel.CostBudget()
        self._inputs = {name: inputs.get(name) for name in compiled.names}
        self._values: dict[str, Any] = {}
        self._errors: dict[str, CelError] = {}

    def decisions(self) -> Iterator[Denial]:
        """Yield a denial per failed validation; none if the policy admits or does not match."""
        met, error = self._conditions()
        if error is not None:
            if not self._policy.fails_open:
                yield Denial(error)
            return
        for validation in self._policy.validations if met else ():
            try:
                if self._evaluate(validation.expression, cel.BOOL):
                    continue
            except CelError as failure:
                if not self._policy.fails_open:
                    yield Denial(_failed(validation.expression, failure))
                continue
            yield Denial(self._message(validation), validation.reason)

    def _conditions(self) -> tuple[bool, str | None]:
        """Return whether all conditions hold, and the error; a false one outranks a failing one."""
        failure: str | None = None
        for expression in self._policy.conditions:
            try:
                if not self._evaluate(expression, cel.BOOL):
                    return False, None
            except CelError as error:
                failure = failure or _failed(expression, error)
        return failure is None, failure

    def _message(self, validation: Validation) -> str:
        message = ""
        if validation.message_expression:
            try:
                message = self._evaluate(validation.message_expression, cel.STRING).strip()
            except CelError:
                message = ""  # the policy's own message stands in
        if not message or "\n" in message or len(message) > _MESSAGE_LIMIT:
            message = validation.message.strip()
        return message or f"failed expression: {validation.expression.strip()}"

    def _evaluate(self, source: str, returns: str) -> Any:
        if not all(map(self._has_value, _used(source))):
            try:
                return self._program(self._inlined(source), returns)
            except CelError as error:
                failed = next((name for name in _used(source) if name in self._errors), None)
                raise self._errors[failed] if failed else error from None
        return self._program(source, returns)

    def _program(self, source: str, returns: str) -> Any:
        program = cel.compile(source, _declared(self._policy.names, source), returns)
        values = {f"variables.{name}": self._values[name] for name in _used(source)}
        return program.evaluate({**self._inputs, **values}, self._budget)

    def _has_value(self, name: str) -> bool:
        if name not in self._values and name not in self._errors:
            try:
                value = self._evaluate(self._policy.variables[name], "")
            except CelError as error:
                message = f'composited variable "{name}" fails to evaluate: {error}'
                self._errors[name] = CelError(message)
            else:
                self._values[name] = value
        return name in self._values and not isinstance(self._values[name], _NO_VALUE)

    def _inlined(self, source: str) -> str:
        """Return `source` with the expressions of its variables that have no value."""
        pieces, end = list[str](), 0
        for use in _VARIABLE.finditer(cel.without_text(source)):
            if not self._has_value(use[1]):
                inner = self._inlined(self._policy.variables[use[1]])
                pieces += [source[end : use.start()], f"({inner})"]
                end = use.end()
        return "".join([*pieces, source[end:]])


def _failed(expression: str, error: CelError) -> str:
    return f"expression '{expression}' resulted in error: {error}"
