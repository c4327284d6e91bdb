"""
CEL expressions: compiled once, evaluated within cost limits, failing closed.

The library answers a runtime error with a *value* of type ERROR, which is true to Python.
Here an error is always `CelError`, and a result of the wrong type is one too.

The library counts the turns of loops, and stops; it does not count what text costs that doubles
itself. The cost is estimated before an expression runs (`cost`), so that none is begun that cannot
end soon.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from cel_expr_python import cel as _cel  # type: ignore[import-untyped]
from cel_expr_python.ext import (  # type: ignore[import-untyped]
    ext_bindings,
    ext_math,
    ext_optional,
    ext_strings,
)

from bidplane.core.cel import ast, cost
from bidplane.core.cel.functions import functions

SOURCE_LIMIT = 16 << 10  # characters
# Of all expressions of one object, each counted once: compiling them takes half a second.
SOURCES_LIMIT = 64 << 10
SOURCE_LEAST = (
    200  # characters that an expression counts as: also a short one takes 2 ms to compile
)
COST_LIMIT = 1_000_000  # of one evaluation, estimated from above; upstream's for what it counts
# Of all rules that one object is asked: half a second here; upstream's are 10,000,000.
OBJECT_COST_LIMIT = 4_000_000

_LITERAL = re.compile(
    r"""[rRbB]*("{3}[\s\S]*?"{3}|'{3}[\s\S]*?'{3}|"(\\.|[^"\\])*"|'(\\.|[^'\\])*')"""
)

_TRIVIAL = 10_000  # a cost that needs no closer look

BOOL, STRING = "bool", "string"


class CelError(Exception):
    """An expression that does not compile, fails, costs too much, or has the wrong type."""


def too_long(sources: Iterable[str]) -> str:
    """Return why these expressions are too much for one object; an empty text if they are not."""
    size = sum(max(len(source), SOURCE_LEAST) for source in set(sources) if source)
    if size <= SOURCES_LIMIT:
        return ""
    return (
        f"Too long: the CEL expressions of one object may have at most {SOURCES_LIMIT} characters"
        f" in all, these have {size}; each counts as {SOURCE_LEAST} or more"
    )


class OverBudget(CelError):
    """An expression that may cost more than the remaining budget."""


class CostBudget:
    """The cost limit shared by all expressions that are evaluated on one object."""

    __slots__ = ("left",)

    def __init__(self, limit: float = OBJECT_COST_LIMIT) -> None:
        self.left = limit

    def take(self, cost: float) -> None:
        """Subtract `cost`; raises `OverBudget` if less than that remains."""
        if cost > self.left:
            self.left = 0.0
            raise OverBudget(
                "running out of cost budget: all expressions about this object may cost at most"
                f" {OBJECT_COST_LIMIT}; send a smaller object, or simplify them"
            )
        self.left -= cost


class CelProgram:
    """A compiled expression."""

    __slots__ = ("_compiled", "_flat", "_returns", "source", "tree", "words")

    def __init__(self, source: str, compiled: Any, returns: str) -> None:
        self.source, self._compiled, self._returns = source, compiled, returns
        self.words = frozenset(re.findall(r"[A-Za-z_]\w*", without_text(source)))
        self.tree = ast.parse(compiled.serialize())
        self._flat = cost.flat_size(self.tree)

    def __repr__(self) -> str:
        return f"<Program {self.source!r}>"

    def cost(self, variables: Mapping[str, Any]) -> float:
        """Return a bound of what an evaluation costs, in upstream's units."""
        measured = cost.Measured()
        sizes = {name: measured.size(value) for name, value in variables.items()}
        if self._flat:
            # Without loops and without text that grows, no step sees more than there is.
            bound = self._flat * (1 + sum(size.weight for size in sizes.values()))
            if bound <= _TRIVIAL:
                return bound
        return cost.Estimate(measured.step).of(self.tree, sizes)

    def evaluate(self, variables: Mapping[str, Any], budget: CostBudget | None = None) -> Any:
        """Return the value, of the requested type; raises `CelError`."""
        spent = self.cost(variables)
        if spent > COST_LIMIT:
            raise OverBudget(
                f"cost limit exceeded: the expression may cost {spent:.0f} on this object, more"
                f" than {COST_LIMIT}"
            )
        if budget is not None:
            budget.take(spent)
        try:
            result = self._compiled.eval(data=variables)
        except (RuntimeError, TypeError, ValueError, MemoryError) as error:
            raise CelError(_first_line(error)) from None
        kind = result.type()
        if kind == _cel.Type.ERROR:
            raise CelError(_first_line(result.value()))
        value = result.plain_value()
        if self._returns == BOOL and not isinstance(value, bool):
            raise CelError(f"the expression must evaluate to true or false, not {value!r}")
        if self._returns == STRING and not isinstance(value, str):
            raise CelError(f"the expression must evaluate to text, not {value!r}")
        return value


def without_text(source: str) -> str:
    """Return `source` with its literals blanked and all other characters in place."""
    return _LITERAL.sub(lambda literal: '"' + " " * (len(literal[0]) - 2) + '"', source)


@functools.lru_cache(maxsize=2048)
def compile(source: str, variables: tuple[str, ...], returns: str = BOOL) -> CelProgram:
    """Compile `source` over `variables`, whose types are those of the data; raises `CelError`."""
    if len(source) > SOURCE_LIMIT:
        raise CelError(f"the expression is longer than {SOURCE_LIMIT} characters")
    try:
        compiled = _environment(variables).compile(source)
    except RuntimeError as error:
        message = str(error).removeprefix("INVALID_ARGUMENT: ")
        raise CelError(message.removesuffix(" [INVALID_ARGUMENT]")) from None
    result_type = compiled.return_type().name().lower()
    if result_type not in (returns, "dyn", "any", "") and returns:
        raise CelError(f"cel expression must evaluate to a {returns}, not {result_type}")
    return CelProgram(source, compiled, returns)


@functools.lru_cache(maxsize=64)
def _environment(variables: tuple[str, ...]) -> Any:
    return _cel.NewEnv(
        variables=dict.fromkeys(variables, _cel.Type.DYN),
        extensions=[
            ext_strings.ExtStrings(),
            ext_optional.ExtOptional(),
            ext_math.ExtMath(),
            ext_bindings.ExtBindings(),
        ],
        functions=functions(),
    )


_MISSING = re.compile(r'NOT_FOUND: Key not found in map : "(.*)"')


def _first_line(error: Any) -> str:
    message = str(error).split("\n", 1)[0]
    missing = _MISSING.fullmatch(message)
    return f"no such key: {missing[1]}" if missing else message
