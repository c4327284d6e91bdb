"""
Every route there is, read from the code that serves it: one that is added is tried too, or the
tests say that they do not know how.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from bidplane.exchange import http as exchange
from bidplane.node import server as node
from bidplane.web import app, credentials, planes

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def of_the_exchange(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Method and path of each of its cases; `values` are for what the paths leave open."""
    found = list(_cases(exchange.ExchangeApp._route))
    assert len(found) > 8
    for methods, parts in found:
        for method in methods:
            yield method, "/exchange/v1/" + "/".join(_filled(part, values) for part in parts)
    yield "GET", "/exchange/v1/rounds?after=0"  # a stream, served before the others


def of_a_node(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Its server matches the first word by itself."""
    for methods, parts in _cases(node.KubeletServer._route):
        head, *rest = parts
        for word in head if isinstance(head, list) else [head]:
            path = "/".join([word, *(_filled(part, values) for part in rest if part != "*")])
            for method in methods:
                yield method, "/" + path


def of_owners(agent: str) -> Iterator[tuple[str, str]]:
    """What only owners may: the life of planes, and credentials."""
    actions = re.search(r"\(([a-z|]+)\)", planes._PATH.pattern)
    assert actions is not None
    assert "agents" in credentials._PATH.pattern
    for path in (
        "/bidplane/v1/planes",
        f"/bidplane/v1/planes/{agent}",
        *(f"/bidplane/v1/planes/{agent}/{action}" for action in actions[1].split("|")),
        f"/bidplane/v1/planes/{agent}/fork?to=stolen",
        f"/bidplane/v1/agents/{agent}/kubeconfig",
    ):
        for method in METHODS:
            yield method, path


def first_words() -> set[str]:
    """What the public address serves."""

    async def nothing(*_: Any) -> None: ...

    served = app.WebApp(planes=nothing, exchange=nothing, credentials=nothing)
    return set(served._routes) | app._AT_THE_ROOT


def _cases(function: Callable[..., Any]) -> Iterator[tuple[list[str], list[Any]]]:
    tree = ast.parse(inspect.getsource(function).replace("\n    ", "\n").strip())
    for found in ast.walk(tree):
        if isinstance(found, ast.match_case):
            yield from _case(found.pattern)


def _case(pattern: ast.pattern) -> Iterator[tuple[list[str], list[Any]]]:
    if not isinstance(pattern, ast.MatchSequence):
        return
    method, *rest = pattern.patterns
    methods = [str(word) for word in _words(method)]
    if not methods:  # any method: it refuses
        return
    if len(rest) == 1 and isinstance(rest[0], ast.MatchSequence):  # (method, [parts])
        yield methods, [_part(one) for one in rest[0].patterns]
    elif len(rest) == 2 and isinstance(rest[1], ast.MatchSequence):  # (method, head, [parts])
        yield methods, [_words(rest[0]), *(_part(one) for one in rest[1].patterns)]


def _words(pattern: ast.pattern) -> list[Any]:
    match pattern:
        case ast.MatchValue(value=ast.Constant(value=word)):
            return [word]
        case ast.MatchOr(patterns=patterns):
            return [word for one in patterns for word in _words(one)]
    return []


def _part(pattern: ast.pattern) -> Any:
    match pattern:
        case ast.MatchAs(name=str(name)):
            return ("open", name)
        case ast.MatchStar():
            return "*"
    (word,) = _words(pattern)
    return word


def _filled(part: Any, values: dict[str, str]) -> str:
    if isinstance(part, tuple):
        assert part[1] in values, f"a route has {part[1]!r} in it: say what to try in its place"
        return values[part[1]]
    return str(part)
