"""
Label and field selectors: parsed once, then matched against many objects.

The label grammar is upstream's: `a=b`, `a==b`, `a!=b`, `a in (x,y)`, `a notin (x)`, `a`,
`!a`, `a>1`, `a<1`, separated by commas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bidplane.wire import names, status

Object = Mapping[str, Any]
Test = Callable[[Object], bool]

_TOKEN = re.compile(r"\s*(?:(==|!=|[=,()!<>])|([^\s=,()!<>]+))")


class Selector:
    """A parsed selector. An empty one matches all objects, and is falsy."""

    __slots__ = ("_tests", "text")

    def __init__(self, text: str, tests: Sequence[Test]) -> None:
        self.text, self._tests = text, tests

    def matches(self, obj: Object) -> bool:
        return all(test(obj) for test in self._tests)

    def __bool__(self) -> bool:
        return bool(self._tests)

    def __and__(self, other: Selector) -> Selector:
        return Selector(f"{self.text}&{other.text}", [*self._tests, *other._tests])


EVERYTHING = Selector("", ())


def labels(text: str) -> Selector:
    """Parse a label selector; raises 400 if it is invalid."""
    if not text.strip():
        return EVERYTHING
    tests = [_label_test(*requirement) for requirement in _Parser(text).requirements()]
    return Selector(text, tests)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._at = 0

    def _split(self, text: str) -> list[str]:
        tokens, at = [], 0
        text = text.rstrip()
        while at < len(text):
            token = _TOKEN.match(text, at)
            assert token is not None  # the pattern covers every character
            tokens.append(token[1] or token[2])
            at = token.end()
        return tokens

    def _next(self) -> str:
        token = self._tokens[self._at] if self._at < len(self._tokens) else ""
        self._at += 1
        return token

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _fail(self, problem: str) -> Exception:
        return status.bad_request(f"unable to parse requirement: {problem}")

    def requirements(self) -> list[tuple[str, str, list[str]]]:
        requirements = [self._requirement()]
        while self._peek() == ",":
            self._next()
            requirements.append(self._requirement())
        if self._peek():
            raise self._fail(f"found '{self._peek()}', expected: ',' or 'end of string'")
        return requirements

    def _requirement(self) -> tuple[str, str, list[str]]:
        token = self._next()
        if token == "!":
            return self._key(self._next()), "!", []
        key = self._key(token)
        operator = self._peek()
        if operator in ("", ","):
            return key, "exists", []
        self._next()
        if operator in ("in", "notin"):
            values = self._set()
        elif operator in ("=", "==", "!=", "<", ">"):
            values = [self._exact()]
        else:
            raise self._fail(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        for value in values:
            if operator in ("<", ">"):
                if not re.fullmatch(r"-?\d+", value):
                    raise self._fail(f"values[0][{key}]: Invalid value: {value!r}: for 'Gt', 'Lt'")
            elif problems := names.value_problems(value):
                raise self._fail(f'values[0][{key}]: Invalid value: "{value}": {problems[0]}')
        return key, "=" if operator == "==" else operator, values

    def _key(self, token: str) -> str:
        if problems := names.qualified_problems(token):
            raise self._fail(f'key: Invalid value: "{token}": {problems[0]}')
        return token

    def _exact(self) -> str:
        if self._peek() in ("", ","):
            return ""
        if self._peek() in ("(", ")", "=", "==", "!=", "!", "<", ">"):
            raise self._fail(f"found '{self._peek()}', expected: identifier")
        return self._next()

    def _set(self) -> list[str]:
        if self._next() != "(":
            raise self._fail("expected: '('")
        values = [""]
        while (token := self._next()) != ")":
            if token == "":
                raise self._fail("found '', expected: ',' or ')'")
            if token == ",":
                values.append("")
            else:
                values[-1] = token
        return values


def _label_test(key: str, operator: str, values: Sequence[str]) -> Test:
    accepted = frozenset(values)

    def value(obj: Object) -> str | None:
        label = (obj["metadata"].get("labels") or {}).get(key)
        return label if label is None else str(label)

    def compare(obj: Object) -> bool:
        label = value(obj)
        if label is None or not re.fullmatch(r"-?\d+", label):
            return False
        return int(label) > int(values[0]) if operator == ">" else int(label) < int(values[0])

    match operator:
        case "exists":
            return lambda obj: value(obj) is not None
        case "!":
            return lambda obj: value(obj) is None
        case "=" | "in":
            return lambda obj: value(obj) in accepted
        case "!=" | "notin":
            return lambda obj: value(obj) not in accepted
        case _:
            return compare


# Field selectors name few fields, each kind its own. An absent field is "".
_COMMON = ("metadata.name", "metadata.namespace")
_FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
    "replicationcontrollers": ("status.replicas",),
    "replicasets.apps": ("status.replicas",),
    "jobs.batch": ("status.successful",),
    "certificatesigningrequests.certificates.k8s.io": ("spec.signerName",),
    "resourceslices.resource.k8s.io": ("spec.nodeName", "spec.driver"),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
}
# events.k8s.io calls the object an event is about by another name.
_RENAMED = {"regarding": "involvedObject", "reportingController": "reportingComponent"}
_BOOLEANS = ("spec.unschedulable", "spec.hostNetwork")


def fields(text: str, resource: str, selectable: Sequence[str] = ()) -> Selector:
    """
    Parse a field selector for `resource`; raises 400 if a field is not supported.

    `selectable` are the fields a CRD declares.
    """
    if not text.strip():
        return EVERYTHING
    supported = {*_COMMON, *_FIELDS.get(resource, ()), *selectable}
    tests = []
    for term in text.split(","):
        field, operator, value = _split_term(term)
        head, dot, tail = field.partition(".")
        if resource == "events" and head in _RENAMED:
            field = f"{_RENAMED[head]}{dot}{tail}"
        if field not in supported:
            raise status.bad_request(_unknown(field, resource))
        tests.append(_field_test(field, operator, value))
    return Selector(text, tests)


def _unknown(field: str, resource: str) -> str:
    if resource in _FIELDS:
        return f"field label not supported: {field}"
    supported = ", ".join(f'"{name}"' for name in sorted(_COMMON))
    return f'"{field}" is not a known field selector: only {supported}'


def _split_term(term: str) -> tuple[str, str, str]:
    for operator in ("!=", "==", "="):
        field, separator, value = term.partition(operator)
        if separator:
            return field.strip(), operator, value
    raise status.bad_request(f"invalid selector: '{term}'; can't understand '{term}'")


def _field_test(field: str, operator: str, expected: str) -> Test:
    path = field.split(".")
    absent = "false" if field in _BOOLEANS else ""

    def value(obj: Object) -> str:
        current: Any = obj
        for name in path:
            current = current.get(name) if isinstance(current, Mapping) else None
        if field == "source":
            current = (obj.get("source") or {}).get("component") or obj.get("reportingComponent")
        if current is None:
            return absent
        return str(current).lower() if isinstance(current, bool) else str(current)

    if operator == "!=":
        return lambda obj: value(obj) != expected
    return lambda obj: value(obj) == expected


def label_selector(spec: Mapping[str, Any] | None) -> Selector:
    """Return the selector of a metav1.LabelSelector; None selects nothing."""
    if spec is None:
        return Selector("<none>", [lambda obj: False])
    equal = (spec.get("matchLabels") or {}).items()
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}
    tests = [_label_test(key, "=", [value]) for key, value in equal] + [
        _label_test(rule["key"], operators[rule["operator"]], rule.get("values") or [])
        for rule in spec.get("matchExpressions") or ()
    ]
    return Selector(str(spec), tests)


def selector_text(selector: Mapping[str, Any] | None) -> str:
    """Return a LabelSelector, or a map of labels, as the text of a `labelSelector` query."""
    if not selector:
        return ""
    plain = not selector.keys() & {"matchLabels", "matchExpressions"}
    labels = selector if plain else selector.get("matchLabels") or {}
    parts = [(key, f"{key}={value}") for key, value in labels.items()]
    for requirement in () if plain else selector.get("matchExpressions") or ():
        key, values = requirement["key"], ",".join(sorted(requirement.get("values") or ()))
        text = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }[requirement["operator"]]
        parts.append((key, text))
    return ",".join(text for _, text in sorted(parts, key=lambda part: part[0]))
