"""
A ledger that lost commits is refused by name: without its write-ahead log, replaced by an older
copy or another ledger, empty, or gone. The operator restores it, or accepts the loss.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bidplane.api.kinds import GPU_LEASE
from bidplane.cli.account.ledger import accept_loss
from bidplane.ledger import Ledger, verify, wallets
from bidplane.ledger.watermark import FILE, LedgerLost
from bidplane.runtime.supervision.health import Health
from exchange.stage import Stage, play, settle


def fund(ledger: Ledger, key: str) -> None:
    with ledger.commit(1000) as commit:
        wallets.open_wallet(commit, uid="u", name="a", owner="o")
        wallets.fund(commit, uid="u", amount=5, key=key)


def opened(folder: Path) -> Ledger:
    return Ledger.open(folder / "ledger.db", mark=folder / FILE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An installation whose ledger had 40 commits; `early` has its file as of the first."""
    ledger = opened(tmp_path)
    fund(ledger, "first")
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "early")
    ledger = opened(tmp_path)
    for n in range(39):
        fund(ledger, f"later-{n}")
    # As a crash leaves it: the file as it was, and all that followed in the log.
    shutil.copy(tmp_path / "ledger.db", tmp_path / "at-crash")
    shutil.copy(tmp_path / "ledger.db-wal", tmp_path / "at-crash-wal")
    ledger.close()
    return tmp_path


def test_a_ledger_that_kept_everything_opens(folder: Path) -> None:
    ledger = opened(folder)
    assert ledger.head.sequence == 40
    fund(ledger, "more")
    ledger.close()
    opened(folder).close()


def test_a_lost_write_ahead_log_is_refused_by_name(folder: Path) -> None:
    shutil.copy(folder / "at-crash", folder / "ledger.db")
    with pytest.raises(LedgerLost, match=r"39 commits are lost.*accept-loss"):
        opened(folder)
    # The remedy that it names.
    shutil.copy(folder / "at-crash", folder / "ledger.db")
    shutil.copy(folder / "at-crash-wal", folder / "ledger.db-wal")
    ledger = opened(folder)
    assert ledger.head.sequence == 40
    ledger.close()


@pytest.mark.parametrize("state", ["gone", "empty"])
def test_an_empty_or_missing_ledger_is_refused(folder: Path, state: str) -> None:
    path = folder / "ledger.db"
    path.unlink() if state == "gone" else path.write_bytes(b"")
    with pytest.raises(LedgerLost, match=f"is {state}, and had 40 commits"):
        opened(folder)
    assert path.exists() == (state == "empty"), "nothing is made where one was"


def test_another_ledger_is_refused_though_it_is_longer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = opened(tmp_path / "other")
    for n in range(50):
        fund(other, f"other-{n}")
    other.close()
    shutil.copy(tmp_path / "other" / "ledger.db", folder / "ledger.db")
    with pytest.raises(LedgerLost, match="its commit 40 is another"):
        opened(folder)


def test_a_mark_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / FILE).write_bytes(b"\0" * 256)
    with pytest.raises(LedgerLost, match="mark, cannot be read"):
        opened(folder)


@pytest.mark.parametrize("damage", ["early", "empty", "gone"])
def test_a_loss_that_was_accepted_is_gone_on_from(
    folder: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "ledger.db"
    path.unlink()
    if damage != "gone":
        path.write_bytes((folder / "early").read_bytes() if damage == "early" else b"")
    accept_loss(data=folder)
    assert "commits are given up" in capsys.readouterr().out
    ledger = opened(folder)
    assert ledger.accepts_loss
    assert ledger.head.sequence == (1 if damage == "early" else 0)
    fund(ledger, "after")
    assert ledger.accepts_loss, "until the host shows nothing else"
    ledger.close()
    assert verify(path).is_sound


class Marked(Stage):
    async def _start(self) -> None:
        await super()._start()
        self.exchange.check_ledger()


def test_an_exchange_whose_host_knows_later_commits_sells_nothing(tmp_path: Path) -> None:
    """Also where the mark is lost with the ledger: the host's leases carry what they show."""

    async def story(stage: Any) -> None:
        shutil.copy(stage.path, tmp_path / "early")
        stage.bid("trainer", "b", 4, "5.00")
        await stage.second()
        stage.claim("trainer", "b")
        await stage.second()
        await stage.second(90)
        shown = max(lease["status"]["sequence"] for lease in stage.host.of(GPU_LEASE))
        await stage._stop()
        stage.path.with_name("ledger.db-wal").unlink(missing_ok=True)
        shutil.copy(tmp_path / "early", stage.path)
        await stage._start()
        health = Health()
        stage.exchange.add_checks(health)
        problem = health.results()["ledger"]
        assert f"and had {shown}" in problem
        assert "ledger.db-wal" in problem
        stage.bid("chat", "mine", 1, "5.00", instant=True)
        await settle()
        assert stage.ledger.head.sequence < shown

    play(tmp_path, story, Marked)
