"""`bidplane ledger …` on each database."""

from __future__ import annotations

from pathlib import Path

import pytest

from bidplane.cli.account import ledger as cli
from bidplane.errors import UserError
from bidplane.ledger import Ledger

from .conftest import Place
from .words import open_wallet


@pytest.fixture
def filled(place: Place) -> Place:
    ledger = Ledger.open(place, durable=False)
    open_wallet(ledger)
    ledger.close()
    return place


def test_verify_says_that_it_is_sound(filled: Place, capsys: pytest.CaptureFixture[str]) -> None:
    cli.verify(ledger=str(filled))
    assert "sound: 1 commits, 2 transfers, 4 accounts" in capsys.readouterr().out


def test_the_environment_may_name_the_ledger(
    filled: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIDPLANE_LEDGER", str(filled))
    cli.verify()
    assert "sound" in capsys.readouterr().out


def test_a_ledger_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no ledger in"):
        cli.verify(ledger=str(tmp_path / "none.db"))
    with pytest.raises(UserError, match="bidplane up"):
        cli.verify(data=tmp_path)
