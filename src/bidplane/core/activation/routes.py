"""
Routes: which Endpoint a request is for, by its host, path and headers. Pure.

A path prefix matches whole segments: `/v1` matches `/v1` and `/v1/models`, not `/v10`. The most
specific route wins: the longest prefix, then the most headers, then the most headers with a value,
then the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import msgspec

from bidplane.api.endpoint import EndpointSpec, HeaderMatch, StaticAnswer

T = TypeVar("T")
RequestHeaders = Sequence[tuple[bytes, bytes]]


class RouteRule(msgspec.Struct, frozen=True):
    """One combination of host, path prefix and headers."""

    host: str
    prefix: str = "/"
    headers: tuple[tuple[str, str], ...] = ()  # names in lower case, sorted; "" is any value

    def __str__(self) -> str:
        headers = "".join(f", {name}: {value or '*'}" for name, value in self.headers)
        return f"{self.host}{self.prefix}{headers}"


def rules(
    hosts: Iterable[str], prefixes: Iterable[str], headers: Iterable[HeaderMatch]
) -> list[RouteRule]:
    """Return the rules of an Endpoint: each of its hosts with each of its prefixes."""
    pairs = tuple(sorted((header.name.lower(), header.value) for header in headers))
    return [
        RouteRule(host, prefix.rstrip("/") or "/", pairs)
        for host in hosts
        for prefix in (tuple(prefixes) or ("/",))
    ]


def rules_of(spec: EndpointSpec, hosts: Sequence[str]) -> list[RouteRule]:
    """Return the rules of an Endpoint that has these names; its default name is the last."""
    if not spec.routes:
        return rules(hosts, spec.path_prefixes, spec.headers)
    default_hosts = spec.hosts or tuple(hosts[-1:])
    return list(
        dict.fromkeys(
            rule
            for route in spec.routes
            for rule in rules(route.hosts or default_hosts, route.path_prefixes, route.headers)
            if rule.host in hosts
        )
    )


class _Entry(msgspec.Struct, Generic[T]):
    prefix: bytes
    below: bytes  # the prefix with a slash
    headers: tuple[tuple[bytes, bytes], ...]
    value: T

    def matches(self, path: bytes, headers: RequestHeaders) -> bool:
        if self.prefix != b"/" and path != self.prefix and not path.startswith(self.below):
            return False
        return not self.headers or all(
            any(key.lower() == name and (not value or text == value) for key, text in headers)
            for name, value in self.headers
        )


class RouteTable(Generic[T]):
    """The routes by host; built once, and replaced when an Endpoint changes."""

    def __init__(self, routes: Iterable[tuple[RouteRule, T]]) -> None:
        """`routes`: the oldest Endpoint's first."""
        self._hosts: dict[bytes, list[_Entry[T]]] = {}
        for rule, value in routes:
            prefix = rule.prefix.encode()
            headers = tuple((name.encode(), text.encode()) for name, text in rule.headers)
            entry = _Entry(prefix, prefix + b"/", headers, value)
            self._hosts.setdefault(rule.host.encode(), []).append(entry)
        for entries in self._hosts.values():
            entries.sort(key=_specificity)

    def has_host(self, host: bytes) -> bool:
        return host in self._hosts

    def find(self, host: bytes, path: bytes, headers: RequestHeaders) -> T | None:
        """Return the value of the most specific route; `host` in lower case, without a port."""
        for entry in self._hosts.get(host, ()):
            if entry.matches(path, headers):
                return entry.value
        return None


class StaticRoutes:
    """The static answers of an Endpoint; the first that matches a request counts."""

    def __init__(self, spec: EndpointSpec, hosts: Sequence[str]) -> None:
        self._tables = [
            RouteTable(
                (rule, answer)
                for match in answer.routes
                for rule in rules(match.hosts or hosts, match.path_prefixes, match.headers)
            )
            for answer in spec.static_routes
        ]

    def find(self, host: bytes, path: bytes, headers: RequestHeaders) -> StaticAnswer | None:
        """Return the answer for a request; None if it is for the service."""
        for table in self._tables:
            answer = table.find(host, path, headers)
            if answer is not None:
                return answer
        return None


def _specificity(entry: _Entry[T]) -> tuple[int, int, int]:
    values = sum(1 for _, value in entry.headers if value)
    return (-len(entry.prefix), -len(entry.headers), -values)
