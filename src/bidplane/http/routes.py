"""
Routes as data: a method, a path and its handler.

    Routes(
        Route("GET", "/wallets/{name}", show),
        Route("POST", "/wallets/{name}/fund", fund),
    )

`{name}` stands for one part of the path. A table is searched in its order; tests read it, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

H = TypeVar("H")


class Route(NamedTuple, Generic[H]):
    """One row. Several methods are written `GET|POST`."""

    method: str
    path: str
    handler: H


class RouteMatch(NamedTuple, Generic[H]):
    """The handler of a request, and the parts of its path that the route leaves open."""

    handler: H
    arguments: list[str]


class Routes(Generic[H]):
    """A table of routes."""

    def __init__(self, *routes: Route[H]) -> None:
        self.routes = routes
        self._by_length: defaultdict[int, list[tuple[frozenset[str], list[str], H]]] = defaultdict(
            list
        )
        for route in routes:
            methods, parts = frozenset(route.method.split("|")), _split(route.path)
            self._by_length[len(parts)].append((methods, parts, route.handler))

    def __iter__(self) -> Iterator[Route[H]]:
        return iter(self.routes)

    def find(self, method: str, parts: Sequence[str]) -> RouteMatch[H] | None:
        """Return the handler of `method` at a path of these parts, or None."""
        for methods, pattern, handler in self._by_length.get(len(parts), ()):
            if method in methods:
                arguments = _match(pattern, parts)
                if arguments is not None:
                    return RouteMatch(handler, arguments)
        return None

    def methods(self, parts: Sequence[str]) -> list[str]:
        """Return the methods that are served at a path, sorted; none for an unknown path."""
        served = (
            methods
            for methods, pattern, _ in self._by_length.get(len(parts), ())
            if _match(pattern, parts) is not None
        )
        return sorted(frozenset[str]().union(*served))


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _match(pattern: Sequence[str], parts: Sequence[str]) -> list[str] | None:
    """Return the parts that the pattern leaves open; None if the others differ."""
    arguments: list[str] = []
    for expected, part in zip(pattern, parts, strict=True):
        if expected[0] == "{":
            if not part:
                return None
            arguments.append(part)
        elif expected != part:
            return None
    return arguments
