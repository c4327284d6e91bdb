"""
Every route there is, read from the tables that serve it: one that is added is tried too, or the
tests say that they do not know how.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bidplane.exchange.http import ExchangeApp, News
from bidplane.http.routes import Route
from bidplane.ledger import Ledger
from bidplane.machinery.clock import SystemClock
from bidplane.node.server import KubeletServer
from bidplane.runtime.identity.credentials import Tokens
from bidplane.web import app
from bidplane.web.credentials import CredentialsApp
from bidplane.web.planes import PlanesApp

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def of_the_exchange(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Method and path of each route; `values` are for what the paths leave open."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.open(Path(folder) / "ledger.db", durable=False)
        served = ExchangeApp(ledger, Tokens(b"key"), News(), clock=SystemClock())
        table = [*served.routes, *served.past]
        ledger.close()
    assert len(table) > 10
    for method, path in _filled(table, values):
        yield method, f"/exchange/v1{path}"


def of_a_node(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    return _filled(KubeletServer.routes, values)


def of_owners(agent: str) -> Iterator[tuple[str, str]]:
    """What only owners may, by any method: the life of planes, and credentials."""
    table = [*PlanesApp.routes, *CredentialsApp.routes]
    assert len(table) > 12
    paths = dict.fromkeys(
        path for _, path in _filled(table, {"name": agent, "agent": agent, "user": "ann"})
    )
    for path in (*paths, f"/bidplane/v1/planes/{agent}/fork?to=stolen"):
        for method in METHODS:
            yield method, path


def first_words() -> set[str]:
    """What the public address serves."""

    async def nothing(*_: Any) -> None: ...

    served = app.WebApp(planes=nothing, exchange=nothing, credentials=nothing)
    return set(served._routes) | app._ROOT_PATHS


def _filled(table: Iterable[Route[Any]], values: dict[str, str]) -> Iterator[tuple[str, str]]:
    for route in table:
        for name in re.findall(r"{(\w+)}", route.path):
            assert name in values, f"a route has {name!r} in it: say what to try in its place"
        path = re.sub(r"{(\w+)}", lambda match: values[match[1]], route.path)
        for method in route.method.split("|"):
            yield method, path
