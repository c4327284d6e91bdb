"""
CEL rules of a CRD's schema (`x-kubernetes-validations`), compiled once and asked on every write.

A rule sees `self` as its schema has it: fields by their escaped names, dates and durations as
such. `oldSelf` is what stood at the same place before, where that can be told: not inside a list
without keys. A rule that speaks of `oldSelf` is asked only then, unless it asked for an optional.
A rule that fails to evaluate has not been kept.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bidplane.core import cel
from bidplane.core.cel import CelError, Program
from bidplane.wire import fields, shapes
from bidplane.wire.status import Cause

_KEY = "x-kubernetes-validations"
_REASONS = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
}
_RESERVED = frozenset(
    (
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import"),
        *("in", "let", "loop", "namespace", "null", "package", "return", "true", "var", "void"),
        "while",
    )
)
_ABSENT: Any = object()
# `oldSelf` as an optional is made of a list with at most one element.
_OPTIONAL = (
    "cel.bind(oldSelf, size(__old__) > 0 ? optional.of(__old__[0]) : optional.none(), {rule})"
)
_PLANS_LIMIT = 256
_ALWAYS = ("apiVersion", "kind", "metadata")  # in every object, whatever its schema says


class Rule(msgspec.Struct, frozen=True):
    source: str
    program: Program
    message: str
    speaks: Program | None  # messageExpression
    reason: str
    field: str
    optional: bool

    @property
    def transition(self) -> bool:
        return "oldSelf" in self.program.words


class Node:
    """The rules at one place of a schema, and the places below it that have some."""

    __slots__ = ("fields", "items", "keys", "kind", "rules", "schema", "values")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self.kind = schema.get("type", "")
        self.rules: list[Rule] = []
        self.fields: dict[str, Node] = {}
        self.values: Node | None = None
        self.items: Node | None = None
        self.keys: shapes.Shape | None = None  # of a list whose entries can be told apart

    def __bool__(self) -> bool:
        return bool(self.rules or self.fields or self.values or self.items)


# Compiling.


def plan(schema: Mapping[str, Any]) -> Node | None:
    """The rules of a schema that was checked, or None when it has none."""
    held = _plans.get(id(schema))
    if held is None or held[0] is not schema:
        if len(_plans) >= _PLANS_LIMIT:
            _plans.clear()
        made = _node(schema, "", [], correlated=True) if shapes.uses_cel(schema) else None
        held = _plans[id(schema)] = (schema, made or None)
    return held[1]


_plans: dict[int, tuple[Mapping[str, Any], Node | None]] = {}


def problems(crd: Mapping[str, Any]) -> list[Cause]:
    """Which rules of a CRD do not compile, or could never be asked."""
    found: list[Cause] = []
    versions = crd["spec"].get("versions") or ()
    for at, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not isinstance(schema, Mapping) or not shapes.uses_cel(schema):
            continue
        # Upstream's words, which name the field of the time when there was one version.
        head = "spec.validation" if len(versions) == 1 else f"spec.versions[{at}].schema"
        _node(schema, f"{head}.openAPIV3Schema", found, correlated=True)
    return found


def _node(schema: Mapping[str, Any], path: str, found: list[Cause], *, correlated: bool) -> Node:
    node = Node(schema)
    for at, given in enumerate(schema.get(_KEY) or ()):
        rule = _rule(schema, given, f"{path}.{_KEY}[{at}]", found)
        if rule is None:
            continue
        if rule.transition and not correlated:
            words = f'Invalid value: "{rule.source}": oldSelf cannot be used on the'
            found.append(
                Cause(f"{words} uncorrelatable portion of the schema", f"{path}.{_KEY}[{at}].rule")
            )
        node.rules.append(rule)
    for name, child in (schema.get("properties") or {}).items():
        below = _node(child, f"{path}.properties[{name}]", found, correlated=correlated)
        if below:
            node.fields[name] = below
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        node.values = (
            _node(additional, f"{path}.additionalProperties", found, correlated=correlated) or None
        )
    if isinstance(schema.get("items"), Mapping):
        if schema.get("x-kubernetes-list-type") == "map":
            node.keys = shapes.custom_part(schema)
        told_apart = correlated and node.keys is not None
        node.items = _node(schema["items"], f"{path}.items", found, correlated=told_apart) or None
    return node


def _rule(
    schema: Mapping[str, Any], given: Mapping[str, Any], path: str, found: list[Cause]
) -> Rule | None:
    source = str(given.get("rule") or "")
    shown = msgspec.json.encode(dict(given)).decode()
    if not source.strip():
        words = "Required value: rule is not specified"
        found.append(Cause(words, f"{path}.rule", "FieldValueRequired"))
        return None
    message = str(given.get("message") or "").strip()
    if "\n" in source.strip() and not message:
        words = "Required value: message must be specified if rule contains line breaks"
        found.append(Cause(words, f"{path}.message", "FieldValueRequired"))
    reason = str(given.get("reason") or "FieldValueInvalid")
    if reason not in _REASONS:
        allowed = ", ".join(f'"{one}"' for one in sorted(_REASONS))
        words = f'Unsupported value: "{reason}": supported values: {allowed}'
        found.append(Cause(words, f"{path}.reason", "FieldValueNotSupported"))
        return None
    field = str(given.get("fieldPath") or "")
    if field and not _is_path(schema, field):
        words = f'Invalid value: "{field}": must be a valid path'
        found.append(Cause(words, f"{path}.fieldPath"))
    optional = bool(given.get("optionalOldSelf"))
    program = _compiled(schema, source, shown, f"{path}.rule", found, optional=optional)
    if program is None:
        return None
    speaks = None
    if given.get("messageExpression"):
        text = str(given["messageExpression"])
        at = f"{path}.messageExpression"
        speaks = _compiled(schema, text, shown, at, found, optional=optional, returns=cel.STRING)
    return Rule(source, program, message, speaks, reason, field, optional)


def _compiled(
    schema: Mapping[str, Any],
    source: str,
    shown: str,
    path: str,
    found: list[Cause],
    *,
    optional: bool,
    returns: str = cel.BOOL,
) -> Program | None:
    try:
        timed = _with_times(schema, source)
        # As it was written first, so that an error points into the rule.
        cel.compile(source, ("self", "oldSelf"), returns)
        program = cel.compile(timed, ("self", "oldSelf"), returns)
        if optional:
            program = cel.compile(_OPTIONAL.format(rule=timed), ("self", "__old__"), returns)
    except CelError as error:
        why = str(error)
        if not why.startswith("cel expression must"):
            why = f"compilation failed: {why}"
        found.append(Cause(f"Invalid value: {shown}: {why}", path))
        return None
    return program


_SELECTED = re.compile(
    r"(has\s*\(\s*)?(?<![\w.])(self|oldSelf)((?:\s*\.\s*[A-Za-z_]\w*(?!\w*\s*\())*)(?![\w(])"
)
# The library takes times only as variables, not inside an object: the rule makes them of text.
_AS_TIME = {
    "date-time": "timestamp({0})",
    "date": "timestamp({0} + 'T00:00:00Z')",
    "duration": "duration({0})",
}


def _with_times(schema: Mapping[str, Any], source: str) -> str:
    """
    `source` with each field that is a time read as one.

    Raises `CelError` for `self.a.b` where the schema has no such field: values are untyped to
    the library, so that a misspelt name would only show on the first object. What is reached
    through a function or a loop is not followed.
    """
    rewritten, at = [], 0
    for match in _SELECTED.finditer(cel.without_text(source)):
        form = _AS_TIME.get(_reached(schema, match[3]).get("format", ""))
        if form is None or match[1]:
            continue
        start = match.start(2)
        rewritten += [source[at:start], form.format(source[start : match.end()])]
        at = match.end()
    return "".join([*rewritten, source[at:]])


def _reached(schema: Mapping[str, Any], selected: str) -> Mapping[str, Any]:
    """The schema at `.a.b`; an empty one where it cannot be told."""
    at: Any = schema
    for name in re.findall(r"[A-Za-z_]\w*", selected):
        known = at.get("properties")
        if not known or at.get("additionalProperties"):
            return {}
        escaped = {escape(field): child for field, child in known.items()}
        if name not in escaped:
            if at.get("x-kubernetes-embedded-resource") or name in _ALWAYS:
                return {}
            raise CelError(f"undefined field '{name}'")
        at = escaped[name]
    found: Mapping[str, Any] = at
    return found


def _is_path(schema: Mapping[str, Any], path: str) -> bool:
    at: Any = schema
    for dotted, bracketed in re.findall(r"\.([A-Za-z_]\w*)|\['([^']+)'\]", path):
        name = dotted or bracketed
        known = at.get("properties") or {}
        if name in known:
            at = known[name]
        elif isinstance(at.get("additionalProperties"), Mapping):
            at = at["additionalProperties"]
        else:
            return False
    return path.startswith((".", "["))


def escape(name: str) -> str:
    """A field's name as CEL can say it."""
    if name in _RESERVED:
        return f"__{name}__"
    for text, said in (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__")):
        name = name.replace(text, said)
    return name.replace("/", "__slash__")


# Asking.


def broken(node: Node, new: Any, old: Any = None) -> list[Cause]:
    """The rules that `new`, in place of `old`, does not keep."""
    return list(_broken(node, new, _ABSENT if old is None else old, ""))


def _broken(node: Node, new: Any, old: Any, path: str) -> Iterator[Cause]:
    if new is None:
        return
    if node.rules:
        yield from _asked(node, new, old, path)
    prefix = f"{path}." if path else ""
    if isinstance(new, Mapping):
        before = old if isinstance(old, Mapping) else {}
        for name, below in node.fields.items():
            if name in new:
                yield from _broken(below, new[name], before.get(name, _ABSENT), f"{prefix}{name}")
        if node.values is not None:
            for name, item in new.items():
                at = f"{path}[{name}]"
                yield from _broken(node.values, item, before.get(name, _ABSENT), at)
    elif isinstance(new, list) and node.items is not None:
        earlier = _by_key(node, old)
        for number, item in enumerate(new):
            at = f"{path}[{number}]"
            was = earlier.get(_key(node, item), _ABSENT) if node.keys is not None else _ABSENT
            yield from _broken(node.items, item, was, at)


def _by_key(node: Node, old: Any) -> dict[str | None, Any]:
    if node.keys is None or not isinstance(old, list):
        return {}
    return {_key(node, item): item for item in old}


def _key(node: Node, item: Any) -> str | None:
    assert node.keys is not None
    try:
        return fields.element(item, node.keys)
    except fields.BadFields:
        return None


def _asked(node: Node, new: Any, old: Any, path: str) -> Iterator[Cause]:
    variables = {"self": _value(new, node.schema)}
    before = _ABSENT if old is _ABSENT or old is None else _value(old, node.schema)
    for rule in node.rules:
        if rule.optional:
            given = {**variables, "__old__": [] if before is _ABSENT else [before]}
        elif before is not _ABSENT:
            given = {**variables, "oldSelf": before}
        elif rule.transition:
            continue
        else:
            given = {**variables, "oldSelf": None}
        try:
            if rule.program.evaluate(given):
                continue
        except CelError as error:
            kind = node.kind or "object"
            said = rule.message or rule.source.strip()
            words = f'Invalid value: "{kind}": {error} evaluating rule: {said}'
            yield Cause(words, path or "<nil>")
            continue
        yield _cause(rule, given, new, path)


def _cause(rule: Rule, given: Mapping[str, Any], new: Any, path: str) -> Cause:
    words = _said(rule)
    if rule.speaks is not None:
        try:
            spoken = rule.speaks.evaluate(given).strip()
        except CelError:
            spoken = ""  # the rule's own message stands in
        if spoken and "\n" not in spoken:
            words = spoken
    head = _REASONS[rule.reason]
    if rule.reason in ("FieldValueInvalid", "FieldValueDuplicate") and not rule.field:
        if isinstance(new, str):
            head += f': "{new}"'
        elif isinstance(new, bool):
            head += f": {str(new).lower()}"
        elif isinstance(new, int | float):
            head += f": {new}"
    field = f"{path}{rule.field}" if path else rule.field.removeprefix(".")
    return Cause(f"{head}: {words}", field or "<nil>", rule.reason)


def _said(rule: Rule) -> str:
    return rule.message or f"failed rule: {rule.source.strip()}"


def _value(value: Any, schema: Mapping[str, Any]) -> Any:
    """`value` as CEL sees it: only what the schema declares, under names CEL can say."""
    if isinstance(value, Mapping):
        properties = schema.get("properties") or {}
        additional = schema.get("additionalProperties")
        if isinstance(additional, Mapping):
            return {name: _value(item, additional) for name, item in value.items()}
        if not properties and schema.get("x-kubernetes-preserve-unknown-fields"):
            return value
        shown = {
            escape(name): _value(value[name], child)
            for name, child in properties.items()
            if name in value and value[name] is not None
        }
        for name in ("apiVersion", "kind"):
            if name in value and name not in shown:
                shown[name] = value[name]
        meta = value.get("metadata")
        if isinstance(meta, Mapping) and "metadata" not in properties:
            shown["metadata"] = {
                name: meta[name] for name in ("name", "generateName") if name in meta
            }
        return shown
    if isinstance(value, list):
        items = schema.get("items")
        return [_value(item, items) for item in value] if isinstance(items, Mapping) else value
    if isinstance(value, str) and schema.get("format") == "byte":
        return _bytes(value)
    if schema.get("type") == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _bytes(text: str) -> bytes | str:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return text
