"""
CEL rules of a CRD's schema (`x-kubernetes-validations`), compiled once and evaluated on every
write.

A rule sees `self` as its schema declares it: fields by their escaped names, dates and durations as
such. `oldSelf` is the earlier value at the same place, where that place can be identified: not
inside a list without keys. A rule that uses `oldSelf` is evaluated only then, unless it has
`optionalOldSelf`. A rule whose evaluation fails counts as violated.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bidplane.core import cel
from bidplane.core.cel import CelError, CelProgram
from bidplane.plane.admission import rulecost, ruletimes
from bidplane.plane.admission.identifiers import escape
from bidplane.wire.patches import fields
from bidplane.wire.schema import shapes
from bidplane.wire.status import Cause

_KEY = "x-kubernetes-validations"
_REASONS = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
}
_ABSENT: Any = object()
# An optional `oldSelf` is passed as a list with at most one element.
_OPTIONAL = (
    "cel.bind(oldSelf, size(__old__) > 0 ? optional.of(__old__[0]) : optional.none(), {rule})"
)
_PLANS_LIMIT = 256


class Rule(msgspec.Struct, frozen=True):
    source: str
    program: CelProgram
    message: str
    message_program: CelProgram | None  # messageExpression
    reason: str
    field: str
    optional: bool

    @property
    def transition(self) -> bool:
        return "oldSelf" in self.program.words


class RuleNode:
    """The rules at one place of a schema, and the nodes below it that have rules."""

    __slots__ = ("fields", "items", "keys", "kind", "rules", "schema", "values")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self.kind = schema.get("type", "")
        self.rules: list[Rule] = []
        self.fields: dict[str, RuleNode] = {}
        self.values: RuleNode | None = None
        self.items: RuleNode | None = None
        self.keys: shapes.SchemaNode | None = None  # of a list whose entries have keys

    def __bool__(self) -> bool:
        return bool(self.rules or self.fields or self.values or self.items)


# Compiling.


def plan(schema: Mapping[str, Any]) -> RuleNode | None:
    """Return the compiled rules of a valid schema, or None when it has none."""
    cached = _plans.get(id(schema))
    if cached is None or cached[0] is not schema:
        if len(_plans) >= _PLANS_LIMIT:
            _plans.clear()
        root = _compile_node(schema, "", [], correlated=True) if shapes.uses_cel(schema) else None
        cached = _plans[id(schema)] = (schema, root or None)
    return cached[1]


_plans: dict[int, tuple[Mapping[str, Any], RuleNode | None]] = {}


def problems(crd: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[Cause]:
    """
    Return the errors of the rules of a CRD: those that do not compile or cost too much.

    A version whose schema is that of `old` keeps its rules: an earlier release counted less.
    """
    causes: list[Cause] = []
    versions = crd["spec"].get("versions") or ()
    if message := cel.too_long(_sources(versions)):
        return [Cause(message, "spec.versions", "FieldValueTooLong")]
    for index, version in enumerate(versions):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not isinstance(schema, Mapping) or not shapes.uses_cel(schema):
            continue
        # Upstream's path: with one version, it names the field of the old API.
        head = "spec.validation" if len(versions) == 1 else f"spec.versions[{index}].schema"
        count = len(causes)
        node = _compile_node(schema, f"{head}.openAPIV3Schema", causes, correlated=True)
        if len(causes) == count and not _has_version(old, version):
            causes += rulecost.problems(node, f"{head}.openAPIV3Schema")
    return causes


def _has_version(crd: Mapping[str, Any] | None, version: Mapping[str, Any]) -> bool:
    """Return whether `crd` has this version with the same schema."""
    versions = () if crd is None else crd["spec"].get("versions") or ()
    return any(
        (other.get("name"), other.get("schema")) == (version.get("name"), version.get("schema"))
        for other in versions
    )


def _sources(value: Any) -> Iterator[str]:
    """Yield the expressions of all rules in `value`, at any depth."""
    if isinstance(value, Mapping):
        for rule in value.get(_KEY) or ():
            if isinstance(rule, Mapping):
                yield from (str(rule.get(field) or "") for field in ("rule", "messageExpression"))
        for item in value.values():
            yield from _sources(item)
    elif isinstance(value, list):
        for item in value:
            yield from _sources(item)


def _compile_node(
    schema: Mapping[str, Any], path: str, causes: list[Cause], *, correlated: bool
) -> RuleNode:
    node = RuleNode(schema)
    for index, rule_spec in enumerate(schema.get(_KEY) or ()):
        rule = _compile_rule(schema, rule_spec, f"{path}.{_KEY}[{index}]", causes)
        if rule is None:
            continue
        if rule.transition and not correlated:
            message = f'Invalid value: "{rule.source}": oldSelf cannot be used on the'
            causes.append(
                Cause(
                    f"{message} uncorrelatable portion of the schema",
                    f"{path}.{_KEY}[{index}].rule",
                )
            )
        node.rules.append(rule)
    for name, child in (schema.get("properties") or {}).items():
        child_node = _compile_node(
            child, f"{path}.properties[{name}]", causes, correlated=correlated
        )
        if child_node:
            node.fields[name] = child_node
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        node.values = (
            _compile_node(additional, f"{path}.additionalProperties", causes, correlated=correlated)
            or None
        )
    if isinstance(schema.get("items"), Mapping):
        if schema.get("x-kubernetes-list-type") == "map":
            node.keys = shapes.custom_part(schema)
        has_keys = correlated and node.keys is not None
        node.items = (
            _compile_node(schema["items"], f"{path}.items", causes, correlated=has_keys) or None
        )
    return node


def _compile_rule(
    schema: Mapping[str, Any], rule_spec: Mapping[str, Any], path: str, causes: list[Cause]
) -> Rule | None:
    source = str(rule_spec.get("rule") or "")
    spec_text = msgspec.json.encode(dict(rule_spec)).decode()
    if not source.strip():
        error = "Required value: rule is not specified"
        causes.append(Cause(error, f"{path}.rule", "FieldValueRequired"))
        return None
    message = str(rule_spec.get("message") or "").strip()
    if "\n" in source.strip() and not message:
        error = "Required value: message must be specified if rule contains line breaks"
        causes.append(Cause(error, f"{path}.message", "FieldValueRequired"))
    reason = str(rule_spec.get("reason") or "FieldValueInvalid")
    if reason not in _REASONS:
        allowed = ", ".join(f'"{name}"' for name in sorted(_REASONS))
        error = f'Unsupported value: "{reason}": supported values: {allowed}'
        causes.append(Cause(error, f"{path}.reason", "FieldValueNotSupported"))
        return None
    field = str(rule_spec.get("fieldPath") or "")
    if field and not _is_path(schema, field):
        error = f'Invalid value: "{field}": must be a valid path'
        causes.append(Cause(error, f"{path}.fieldPath"))
    optional = bool(rule_spec.get("optionalOldSelf"))
    program = _compile_expression(
        schema, source, spec_text, f"{path}.rule", causes, optional=optional
    )
    if program is None:
        return None
    message_program = None
    if rule_spec.get("messageExpression"):
        text = str(rule_spec["messageExpression"])
        expression_path = f"{path}.messageExpression"
        message_program = _compile_expression(
            schema, text, spec_text, expression_path, causes, optional=optional, returns=cel.STRING
        )
    return Rule(source, program, message, message_program, reason, field, optional)


def _compile_expression(
    schema: Mapping[str, Any],
    source: str,
    spec_text: str,
    path: str,
    causes: list[Cause],
    *,
    optional: bool,
    returns: str = cel.BOOL,
) -> CelProgram | None:
    try:
        timed = ruletimes.with_times(schema, source, optional_old=optional)
        # The source as written comes first, so that an error points into the rule.
        cel.compile(source, ("self", "oldSelf"), returns)
        program = cel.compile(timed, ("self", "oldSelf"), returns)
        if optional:
            program = cel.compile(_OPTIONAL.format(rule=timed), ("self", "__old__"), returns)
    except CelError as error:
        reason = str(error)
        if not reason.startswith("cel expression must"):
            reason = f"compilation failed: {reason}"
        causes.append(Cause(f"Invalid value: {spec_text}: {reason}", path))
        return None
    return program


def _is_path(schema: Mapping[str, Any], path: str) -> bool:
    current: Any = schema
    for dotted, bracketed in re.findall(r"\.([A-Za-z_]\w*)|\['([^']+)'\]", path):
        name = dotted or bracketed
        properties = current.get("properties") or {}
        if name in properties:
            current = properties[name]
        elif isinstance(current.get("additionalProperties"), Mapping):
            current = current["additionalProperties"]
        else:
            return False
    return path.startswith((".", "["))


# Evaluation.


def violations(node: RuleNode, new: Any, old: Any = None) -> list[Cause]:
    """Return a cause for each rule that `new`, in place of `old`, violates."""
    causes: list[Cause] = []
    try:
        # One by one: causes found before the budget ran out are reported, too.
        for cause in _violations_below(
            node, new, _ABSENT if old is None else old, "", cel.CostBudget()
        ):
            causes.append(cause)  # noqa: PERF402
    except cel.OverBudget:
        message = (
            "validation failed due to running out of cost budget, no further validation rules will"
            " be run"
        )
        causes.append(Cause(f"Invalid value: {message}", "<nil>"))
    return causes


def _violations_below(
    node: RuleNode, new: Any, old: Any, path: str, budget: cel.CostBudget
) -> Iterator[Cause]:
    if new is None:
        return
    if node.rules:
        yield from _violations_of_node(node, new, old, path, budget)
    prefix = f"{path}." if path else ""
    if isinstance(new, Mapping):
        before = old if isinstance(old, Mapping) else {}
        for name, child_node in node.fields.items():
            if name in new:
                yield from _violations_below(
                    child_node, new[name], before.get(name, _ABSENT), f"{prefix}{name}", budget
                )
        if node.values is not None:
            for name, item in new.items():
                item_path = f"{path}[{name}]"
                yield from _violations_below(
                    node.values, item, before.get(name, _ABSENT), item_path, budget
                )
    elif isinstance(new, list) and node.items is not None:
        old_items = _by_key(node, old)
        for number, item in enumerate(new):
            item_path = f"{path}[{number}]"
            old_item = (
                old_items.get(_key(node, item), _ABSENT) if node.keys is not None else _ABSENT
            )
            yield from _violations_below(node.items, item, old_item, item_path, budget)


def _by_key(node: RuleNode, old: Any) -> dict[str | None, Any]:
    if node.keys is None or not isinstance(old, list):
        return {}
    return {_key(node, item): item for item in old}


def _key(node: RuleNode, item: Any) -> str | None:
    assert node.keys is not None
    try:
        return fields.element(item, node.keys)
    except fields.BadFields:
        return None


def _violations_of_node(
    node: RuleNode, new: Any, old: Any, path: str, budget: cel.CostBudget
) -> Iterator[Cause]:
    variables = {"self": _cel_value(new, node.schema)}
    before = _ABSENT if old is _ABSENT or old is None else _cel_value(old, node.schema)
    for rule in node.rules:
        if rule.optional:
            inputs = {**variables, "__old__": [] if before is _ABSENT else [before]}
        elif before is not _ABSENT:
            inputs = {**variables, "oldSelf": before}
        elif rule.transition:
            continue
        else:
            inputs = {**variables, "oldSelf": None}
        try:
            if rule.program.evaluate(inputs, budget):
                continue
        except CelError as error:
            if not budget.left:
                raise
            kind = node.kind or "object"
            rule_text = rule.message or rule.source.strip()
            message = f'Invalid value: "{kind}": {error} evaluating rule: {rule_text}'
            yield Cause(message, path or "<nil>")
            continue
        yield _cause(rule, inputs, new, path, budget)


def _cause(
    rule: Rule, inputs: Mapping[str, Any], new: Any, path: str, budget: cel.CostBudget
) -> Cause:
    message = _rule_message(rule)
    if rule.message_program is not None:
        try:
            computed = rule.message_program.evaluate(inputs, budget).strip()
        except CelError:
            computed = ""  # the rule's own message stands in
        if computed and "\n" not in computed:
            message = computed
    head = _REASONS[rule.reason]
    if rule.reason in ("FieldValueInvalid", "FieldValueDuplicate") and not rule.field:
        if isinstance(new, str):
            head += f': "{new}"'
        elif isinstance(new, bool):
            head += f": {str(new).lower()}"
        elif isinstance(new, int | float):
            head += f": {new}"
    field = f"{path}{rule.field}" if path else rule.field.removeprefix(".")
    return Cause(f"{head}: {message}", field or "<nil>", rule.reason)


def _rule_message(rule: Rule) -> str:
    return rule.message or f"failed rule: {rule.source.strip()}"


def _cel_value(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return `value` for CEL: only the fields its schema declares, under escaped names."""
    if isinstance(value, Mapping):
        properties = schema.get("properties") or {}
        additional = schema.get("additionalProperties")
        if isinstance(additional, Mapping):
            return {name: _cel_value(item, additional) for name, item in value.items()}
        if not properties and schema.get("x-kubernetes-preserve-unknown-fields"):
            return value
        visible = {
            escape(name): _cel_value(value[name], child)
            for name, child in properties.items()
            if name in value and value[name] is not None
        }
        for name in ("apiVersion", "kind"):
            if name in value and name not in visible:
                visible[name] = value[name]
        meta = value.get("metadata")
        if isinstance(meta, Mapping) and "metadata" not in properties:
            visible["metadata"] = {
                name: meta[name] for name in ("name", "generateName") if name in meta
            }
        return visible
    if isinstance(value, list):
        items = schema.get("items")
        return [_cel_value(item, items) for item in value] if isinstance(items, Mapping) else value
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
