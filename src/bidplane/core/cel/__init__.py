"""
CEL behind one module: compile once, evaluate within bounds, fail closed.

The library answers a runtime error with a *value* of type ERROR, which is true to Python.
Here an error is always `CelError`, and a result of the wrong type is one too.

The library counts the turns of loops, and stops; it does not count what text costs that doubles
itself. Both are estimated before an expression runs, so that none is begun that cannot end soon.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel as _cel  # type: ignore[import-untyped]
from cel_expr_python.ext import (  # type: ignore[import-untyped]
    ext_bindings,
    ext_math,
    ext_optional,
    ext_strings,
)

from bidplane.core.cel.functions import functions

SOURCE_LIMIT = 16 << 10  # characters
WORK_LIMIT = 10_000_000  # steps, estimated from above

_LITERAL = re.compile(
    r"""[rRbB]*("{3}[\s\S]*?"{3}|'{3}[\s\S]*?'{3}|"(\\.|[^"\\])*"|'(\\.|[^'\\])*')"""
)
_LOOP = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter|sortBy)\s*\(")
_GROWS = re.compile(r"\+|\b(?:join|format|replace)\b")
_BIND = re.compile(r"\bcel\s*\.\s*bind\s*\(")

BOOL, STRING = "bool", "string"


class CelError(Exception):
    """An expression that does not compile, fails, costs too much, or says something else."""


class Program:
    """A compiled expression."""

    __slots__ = ("_compiled", "_depth", "_doubles", "_grows", "_returns", "source", "words")

    def __init__(self, source: str, compiled: Any, returns: str) -> None:
        self.source, self._compiled, self._returns = source, compiled, returns
        bare = without_text(source)
        self.words = frozenset(re.findall(r"[A-Za-z_]\w*", bare))
        self._depth = _nesting(bare)
        self._grows = bool(_GROWS.search(bare))
        self._doubles = len(_BIND.findall(bare))

    def __repr__(self) -> str:
        return f"<Program {self.source!r}>"

    def evaluate(self, variables: Mapping[str, Any]) -> Any:
        """The value, of the type that was asked for; raises `CelError`."""
        items, text = _size(variables)
        work = max(items, 1) ** self._depth * 2**self._doubles
        if self._grows:
            work *= 1 + text // 1024
        if work > WORK_LIMIT:
            raise CelError(
                f"the expression may take {work} steps on this object, more than {WORK_LIMIT}"
            )
        try:
            result = self._compiled.eval(data=variables)
        except (RuntimeError, TypeError, ValueError) as error:
            raise CelError(_first_line(error)) from None
        kind = result.type()
        if kind == _cel.Type.ERROR:
            raise CelError(_first_line(result.value()))
        value = result.plain_value()
        if self._returns == BOOL and not isinstance(value, bool):
            raise CelError(f"the expression must say true or false, not {value!r}")
        if self._returns == STRING and not isinstance(value, str):
            raise CelError(f"the expression must give text, not {value!r}")
        return value


def without_text(source: str) -> str:
    """`source` with its literals blanked, each name and sign where it was."""
    return _LITERAL.sub(lambda found: '"' + " " * (len(found[0]) - 2) + '"', source)


@functools.lru_cache(maxsize=2048)
def compile(source: str, variables: tuple[str, ...], returns: str = BOOL) -> Program:
    """Compile `source` over `variables`, whose types are those of the data; raises `CelError`."""
    if len(source) > SOURCE_LIMIT:
        raise CelError(f"the expression is longer than {SOURCE_LIMIT} characters")
    try:
        compiled = _environment(variables).compile(source)
    except RuntimeError as error:
        raise CelError(str(error).removeprefix("INVALID_ARGUMENT: ")) from None
    found = compiled.return_type().name().lower()
    if found not in (returns, "dyn", "any", "") and returns:
        raise CelError(f"cel expression must evaluate to a {returns}, not {found}")
    return Program(source, compiled, returns)


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


def _nesting(bare: str) -> int:
    """How deep loops stand inside loops."""
    deepest = 0
    open_loops: list[bool] = []
    starts = {match.end() - 1 for match in _LOOP.finditer(bare)}
    for at, char in enumerate(bare):
        if char in "([{":
            open_loops.append(at in starts)
            deepest = max(deepest, sum(open_loops))
        elif char in ")]}" and open_loops:
            open_loops.pop()
    return deepest


def _size(value: Any) -> tuple[int, int]:
    """Values and characters in `value`."""
    if isinstance(value, str):
        return 1, len(value)
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    items, text = 1, 0
    for part in parts:
        more, longer = _size(part)
        items += more
        text += longer
    return items, text


_MISSING = re.compile(r'NOT_FOUND: Key not found in map : "(.*)"')


def _first_line(error: Any) -> str:
    said = str(error).split("\n", 1)[0]
    missing = _MISSING.fullmatch(said)
    return f"no such key: {missing[1]}" if missing else said
