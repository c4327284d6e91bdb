"""
A round that never ends raises nothing: its process is killed. Whoever's rows were new in it twice
is left out of the next, until they change; neighbours go on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bidplane.exchange.engine import Engine
from bidplane.exchange.service import Exchange
from bidplane.exchange.snapshot import HostSnapshot
from bidplane.exchange.stalls import STALL_SECONDS
from bidplane.runtime.identity.credentials import Tokens
from exchange.stage import Stage, play, settle


class KilledInRound(BaseException):
    """The supervisor's SIGKILL, as the code that runs sees it: nothing after it happens."""


class Journalled(Stage):
    def make_exchange(self) -> Exchange:
        work = self.path.with_name("exchange.work")
        return Exchange(self.host, self.ledger, Tokens(b"key"), clock=self.clock, work=work)

    async def killed_in_a_round(self, after: float = 2 * STALL_SECONDS) -> None:
        await settle()
        with pytest.raises(KilledInRound):
            self.exchange.run_round()
        await self._stop()
        self.clock.time += after
        await self._start()


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round with a bid called `poison` never ends."""
    run_round = Engine.run_round

    def stuck(self: Engine, snapshot: HostSnapshot, *args: Any) -> Any:
        if any(bid.name == "poison" and not bid.problem for bid in snapshot.bids):
            raise KilledInRound
        return run_round(self, snapshot, *args)

    monkeypatch.setattr(Engine, "run_round", stuck)


@pytest.mark.usefixtures("poison")
def test_who_stalled_two_rounds_is_left_out_until_it_changes(tmp_path: Path) -> None:
    async def story(stage: Any) -> None:
        stage.bid("chat", "before", 1, "1.00")
        await stage.second()
        stage.bid("trainer", "poison", 1, "1.00")
        await stage.killed_in_a_round()
        await stage.killed_in_a_round()
        stage.bid("chat", "after", 1, "1.00")
        await stage.second()
        assert stage.status("chat", "after")["phase"] == "Won"
        status = stage.status("trainer", "poison")
        assert status["reason"] == "Quarantined"
        assert "not completed, 2 times" in status["message"]
        assert any("agent trainer" in note for note in stage.exchange.notes)
        # It goes on when what it says has changed, and what it did is forgiven.
        stage.host.objects.pop(("bids", "agent-trainer", "poison"))
        await stage._stop()
        await stage._start()
        stage.bid("trainer", "harmless", 1, "1.00")
        await stage.second()
        assert stage.status("trainer", "harmless")["phase"] == "Won"

    play(tmp_path, story, Journalled)


@pytest.mark.usefixtures("poison")
def test_who_was_killed_at_once_was_not_killed_for_a_stall(tmp_path: Path) -> None:
    async def story(stage: Any) -> None:
        await stage.second()
        stage.bid("trainer", "poison", 1, "1.00")
        for _ in range(3):
            await stage.killed_in_a_round(after=1.0)
        with pytest.raises(KilledInRound):
            stage.exchange.run_round()
        stage.host.objects.pop(("bids", "agent-trainer", "poison"))
        await stage._stop()
        await stage._start()

    play(tmp_path, story, Journalled)


def test_a_slow_round_is_logged_with_who_was_new_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_round = Engine.run_round

    async def story(stage: Any) -> None:
        def slow(self: Engine, *args: Any) -> Any:
            stage.clock.time += 3
            return run_round(self, *args)

        await stage.second()
        monkeypatch.setattr(Engine, "run_round", slow)
        stage.bid("trainer", "large", 1, "1.00")
        await stage.second()

    play(tmp_path, story, Journalled)
    lines = [line for line in capsys.readouterr().out.splitlines() if "slow round" in line]
    assert len(lines) >= 1
    assert "trainer" in lines[0]
    assert "chat" not in lines[0]
    assert "h100" in lines[0]
