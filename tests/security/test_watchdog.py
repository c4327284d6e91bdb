"""Work that holds a process: who did it is logged, the second time it is refused, and lifted."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bidplane.machinery.controller import Controller
from bidplane.runtime.supervision import running
from bidplane.runtime.supervision.heartbeat import SilenceLimits
from bidplane.runtime.supervision.quarantine import FILE, RunningWork, WorkQuarantine
from bidplane.runtime.supervision.supervisor import SupervisedProgram, Supervisor

from .test_large_lists import MAPS, Answer, big_plane, request

LIST = RunningWork(plane="big", verb="list", kind="configmaps")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "quarantine", WorkQuarantine())


def test_what_holds_the_loop_is_named() -> None:
    async def story() -> None:
        watchdog = running.Watchdog(asyncio.get_running_loop())
        with capture_logs() as logs:
            with running.work(plane="big", verb="list", kind="pods"):
                watchdog.look(time.monotonic() + 0.9)
                assert not logs
                await asyncio.sleep(0)  # others have run, and left no mark of theirs
                with running.work(plane="other", verb="get", kind="pods"):
                    pass
                watchdog.look(time.monotonic() + 2.0)
                watchdog.look(time.monotonic() + 3.0)
            watchdog.turned()
        assert [
            (entry["event"], entry["plane"], entry["verb"], entry["kind"]) for entry in logs
        ] == [
            ("the event loop is held", "big", "list", "pods"),
            ("the event loop was held", "big", "list", "pods"),
        ]
        assert "test_watchdog.py" in logs[0]["at"]

    asyncio.run(story())


HANG = """
    import asyncio, sys
    from pathlib import Path
    from bidplane.runtime.supervision import heartbeat, health, running

    async def main():
        asyncio.create_task(heartbeat.beat(health.Health()))
        asyncio.create_task(running.watch(Path(sys.argv[1]), "server"))
        await asyncio.sleep(0.3)
        if running.refusal(plane="big", verb="list", kind="configmaps"):
            Path(sys.argv[1], "refused").touch()
            await asyncio.sleep(60)
        with running.work(plane="big", verb="list", kind="configmaps"):
            sum(range(10**12))  # in C: no other thread runs

    asyncio.run(main())
"""


def test_what_hangs_a_process_twice_is_quarantined(tmp_path: Path) -> None:
    async def story() -> None:
        news: list[str] = []
        limits = SilenceLimits(busy=1.0)
        supervisor = Supervisor(on_change=lambda part, text: news.append(text), limits=limits)
        script = textwrap.dedent(HANG)
        supervisor.start(
            SupervisedProgram(
                name="server",
                command=[sys.executable, "-c", script, str(tmp_path)],
                log=tmp_path / "log",
                beats=True,
                data=tmp_path,
            )
        )
        try:
            async with asyncio.timeout(60):
                while not (tmp_path / "refused").exists():
                    await asyncio.sleep(0.05)
        finally:
            await supervisor.stop()
        hangs = [text for text in news if text.endswith("killing it")]
        assert len(hangs) == 2
        assert "list configmaps of big" in hangs[0]
        assert "quarantined" not in hangs[0]
        assert "quarantined" in hangs[1]
        assert WorkQuarantine(tmp_path / FILE).refused() == [LIST]

    asyncio.run(story())


def test_a_quarantined_request_is_refused_until_it_is_released(tmp_path: Path) -> None:
    async def story() -> None:
        planes, token = await big_plane(tmp_path / "planes", 10)
        running.quarantine = WorkQuarantine(tmp_path / FILE)
        for _ in range(2):
            running.quarantine.strike(LIST)
        running.quarantine = WorkQuarantine(tmp_path / FILE)  # another process
        answer = Answer()
        await request(planes, token, MAPS, "", answer.send)
        assert b"bidplane plane release big" in answer.body
        assert b'"code":429' in answer.body
        other = Answer()
        await request(planes, token, MAPS.replace("configmaps", "secrets"), "", other.send)
        assert b"SecretList" in other.body
        assert running.quarantine.release("big") == 1
        again = Answer()
        await request(planes, token, MAPS, "", again.send)
        assert len(again.names) >= 10
        for _ in range(2):
            running.quarantine.strike(LIST)
        await planes.delete("big")
        assert not WorkQuarantine(tmp_path / FILE).refused(), "a plane of that name may come again"
        await planes.close()

    asyncio.run(story())


def test_a_quarantined_reconcile_is_left_out(tmp_path: Path) -> None:
    async def story() -> None:
        looked: list[Any] = []

        async def reconcile(key: tuple[str, str]) -> None:
            looked.append(key)
            if len(looked) == 1:
                raise asyncio.CancelledError  # ends the test's controller if it is the wrong one

        for _ in range(2):
            running.quarantine.strike(RunningWork(plane="bad", verb="reconcile", kind="jobs"))
        controller: Controller[tuple[str, str]] = Controller("jobs", reconcile)
        assert await controller._reconcile_marked(("bad", "x")) is None
        assert not looked
        with pytest.raises(asyncio.CancelledError):
            await controller._reconcile_marked(("good", "x"))

    asyncio.run(story())


def test_a_first_strike_refuses_nothing_and_damage_is_no_strike(tmp_path: Path) -> None:
    quarantine = WorkQuarantine(tmp_path / FILE)
    assert not quarantine.strike(LIST)
    assert not WorkQuarantine(tmp_path / FILE).refusal(LIST)
    (tmp_path / FILE).write_bytes(b"{")
    assert not WorkQuarantine(tmp_path / FILE).refused()
