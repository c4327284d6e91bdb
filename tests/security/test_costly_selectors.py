"""
A selector is an agent's program, and runs outside the round: one that costs too much is refused
by name, and neither stops a round nor delays a neighbour's.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bidplane.exchange.service import Exchange
from bidplane.exchange.workers import selectors
from bidplane.exchange.workers.selectors import Selectors
from bidplane.runtime.identity.credentials import Tokens
from exchange.stage import Stage, play

# What text of an agent's own making costs; loops and growing text are refused when compiled.
COSTLY = {
    "a long regular expression": f"'{'a' * 5000}'.matches('(a?){{900}}(a{{900}})b')",
    "a nested one": f"'{'ab' * 2000}'.matches('((a?b?){{30}}){{30}}(ab){{900}}c')",
}


class Screened(Stage):
    """A stage whose exchange evaluates selectors in a worker."""

    def make_exchange(self) -> Exchange:
        self.selectors = Selectors()
        self._running = asyncio.create_task(self.selectors.run())
        return Exchange(
            self.host, self.ledger, Tokens(b"key"), clock=self.clock, selectors=self.selectors
        )

    async def _stop(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await super()._stop()

    async def evaluated(self) -> None:
        """Wait for the worker; the minute is for a machine that is busy."""
        await self.selectors.wait(60)
        await self.second()


def devices_cost(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(selectors, "CPU_SECONDS", seconds)


@pytest.mark.parametrize("kind", COSTLY)
def test_a_costly_selector_is_refused_and_named_and_stops_no_round(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices_cost(monkeypatch, 0.05)

    async def story(stage: Any) -> None:
        stage.bid("trainer", "costly", 1, "5.00", selector=COSTLY[kind])
        stage.bid("chat", "plain", 1, "1.00")
        await stage.second()
        # The round did not wait for the selector: the neighbour has won in it.
        assert stage.status("chat", "plain")["phase"] == "Won"
        assert stage.status("trainer", "costly")["reason"] == "SelectorPending"
        await stage.evaluated()
        status = stage.status("trainer", "costly")
        assert (status["phase"], status["reason"]) == ("Refused", "SelectorTooCostly")
        assert "CPU" in status["message"]
        assert "compare attributes" in status["message"]

    play(tmp_path, story, Screened)


def test_a_plain_selector_wins_in_the_round_after_it_was_evaluated(tmp_path: Path) -> None:
    async def story(stage: Any) -> None:
        stage.bid("trainer", "h", 1, "5.00", selector='device.driver == "gpu.bidplane.dev"')
        stage.bid("chat", "none", 1, "5.00", selector='device.driver == "x"')
        stage.bid("chat", "bad", 1, "5.00", selector="device.nothing == 1")
        await stage.second()
        await stage.evaluated()
        assert stage.status("trainer", "h")["phase"] == "Won"
        assert stage.status("chat", "none")["reason"] == "SelectsNothing"
        assert stage.status("chat", "bad")["reason"] == "BadBid"

    play(tmp_path, story, Screened)


def test_a_worker_that_died_of_one_selector_answers_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices_cost(monkeypatch, 0.05)

    async def story(stage: Any) -> None:
        for n in range(3):
            costly = COSTLY["a long regular expression"] + f" && {n} < 9"
            stage.bid("trainer", f"costly-{n}", 1, "5.00", selector=costly)
        stage.bid("chat", "h", 1, "1.00", selector='device.driver == "gpu.bidplane.dev"')
        await stage.second()
        await stage.evaluated()
        assert stage.status("chat", "h")["phase"] == "Won"
        for n in range(3):
            assert stage.status("trainer", f"costly-{n}")["reason"] == "SelectorTooCostly"

    play(tmp_path, story, Screened)


def test_agents_take_turns_at_the_worker(tmp_path: Path) -> None:
    """Of the questions asked until the neighbour's, at most one is of the agent with many."""
    asked: list[str] = []

    class Asking(Selectors):
        async def _ask(self, selector: str, facts: list[bytes]) -> list[bool | str] | None:
            asked.append(selector)
            return [True for _ in facts]

    class Turns(Screened):
        def make_exchange(self) -> Exchange:
            exchange = super().make_exchange()
            self._running.cancel()
            self.selectors.__class__ = Asking
            self._running = asyncio.create_task(self.selectors.run())
            return exchange

    async def story(stage: Any) -> None:
        for n in range(20):
            stage.bid("chat", f"many-{n}", 1, "5.00", selector=f"{n} < 99")
        stage.bid("trainer", "h", 1, "1.00", selector="true")
        await stage.second()
        await stage.evaluated()

    play(tmp_path, story, Turns)
    assert "true" in asked[:2]
    assert len(asked) == 21


def test_an_agent_has_so_many_selectors_and_no_more(tmp_path: Path) -> None:
    async def story(stage: Any) -> None:
        for n in range(33):
            stage.clock.time += 1
            stage.bid("chat", f"s-{n:02}", 1, "5.00", selector=f"{n} < 99")
        await stage.second()
        reasons = [stage.status("chat", f"s-{n:02}")["reason"] for n in range(33)]
        assert reasons.count("TooManySelectors") == 1
        await stage.evaluated()

    play(tmp_path, story, Screened)
