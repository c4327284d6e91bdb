"""Each story's ledger is verified when the story is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bidplane.ledger import verify

from .market import Market


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    made = Market(tmp_path / "ledger.db")
    yield made
    made.ledger.close()
    report = verify(made.path)
    assert report.is_sound, report.problem
