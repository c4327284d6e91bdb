"""
The contract suite: every test here that takes `ledger` runs against each store. Another
database joins by one more entry in STORES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bidplane.ledger.ledger import Ledger
from bidplane.ledger.store import SqliteStore, Store

STORES: dict[str, Callable[[Path], Store]] = {
    "sqlite": lambda folder: SqliteStore(folder / "ledger.db", durable=False),
}


@pytest.fixture(params=sorted(STORES))
def fresh(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], Store]:
    """Makes an empty store each time: for tests that try many examples."""
    return lambda: STORES[request.param](tmp_path_factory.mktemp("ledger"))


@pytest.fixture
def store(fresh: Callable[[], Store]) -> Iterator[Store]:
    made = fresh()
    yield made
    made.close()


@pytest.fixture
def ledger(store: Store) -> Ledger:
    return Ledger(store)
