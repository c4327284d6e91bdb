"""
The contract suite: every test here that takes `ledger` runs against each store. Another
database joins by one more entry in STORES.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bidplane.bench.support import postgres
from bidplane.ledger.ledger import Ledger
from bidplane.ledger.store import LedgerStore
from bidplane.ledger.stores import open_store
from bidplane.sim.memory import MemoryStore

STORES = ("sqlite", "postgres")
_numbers = itertools.count(1)

Place = Path | str


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Server]:
    """A PostgreSQL of our own; tests that need it are skipped, with the reason, without."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(postgres.Server(durable=False))
        except postgres.NoPostgres as error:
            pytest.skip(str(error))
        yield running


@pytest.fixture(params=STORES)
def new_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Place]:
    """Names a place where there is no ledger yet, each time."""
    return _places(request, tmp_path_factory)


def _places(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Place]:
    if request.param == "sqlite":
        return lambda: tmp_path_factory.mktemp("ledger") / "ledger.db"
    server: postgres.Server = request.getfixturevalue("server")
    return lambda: server.dsn(f"ledger_{next(_numbers)}")


@pytest.fixture
def place(new_place: Callable[[], Place]) -> Place:
    return new_place()


@pytest.fixture(params=(*STORES, "memory"))
def fresh(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], LedgerStore]:
    """Makes an empty store each time: for tests that try many examples."""
    if request.param == "memory":  # the simulator's
        return MemoryStore
    places = _places(request, tmp_path_factory)
    return lambda: open_store(places(), durable=False)


@pytest.fixture
def store(fresh: Callable[[], LedgerStore]) -> Iterator[LedgerStore]:
    made = fresh()
    yield made
    made.close()


@pytest.fixture
def ledger(store: LedgerStore) -> Ledger:
    return Ledger(store)
