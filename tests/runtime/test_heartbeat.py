"""When silence means that a process hangs, and when it does not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.runtime.supervision import heartbeat
from bidplane.runtime.supervision import supervisor as module
from bidplane.runtime.supervision.health import Beat, Health, readiness_page
from bidplane.runtime.supervision.heartbeat import Pulse, SilenceLimits
from bidplane.runtime.supervision.statusfile import PartStatus, ProcessState
from bidplane.runtime.supervision.supervisor import SupervisedProgram, Supervisor

PATIENCE = 30.0
LIMITS = SilenceLimits(starting=60.0, silent=5.0, busy=10.0)


def test_a_process_that_starts_slowly_is_left_alone_for_a_while() -> None:
    pulse = Pulse(100.0, LIMITS)
    assert pulse.problem(159.0, cpu=0.0) == ""
    assert "did not start within 60 s" in pulse.problem(161.0, cpu=0.0)


def test_silence_without_work_is_a_hang() -> None:
    pulse = Pulse(0.0, LIMITS)
    pulse.beat(10.0, cpu=3.0)
    assert pulse.problem(14.9, cpu=3.0) == ""
    assert pulse.problem(15.5, cpu=3.0) == "no heartbeat for 6 s"


def test_one_long_computation_is_measured_by_its_own_cpu_time() -> None:
    """On a busy machine it takes long by the clock; that is not its fault."""
    pulse = Pulse(0.0, LIMITS)
    pulse.beat(10.0, cpu=3.0)
    assert pulse.problem(40.0, cpu=12.9) == ""
    assert "one computation" in pulse.problem(40.0, cpu=13.1)


@given(st.lists(st.floats(0, 600), max_size=20), st.floats(0, 4.9))
def test_a_pause_of_the_whole_machine_is_nobodys_silence(
    pauses: list[float], silence: float
) -> None:
    pulse = Pulse(0.0, LIMITS)
    pulse.beat(0.0, cpu=0.0)
    now = silence
    for pause in pauses:
        now += pause
        pulse.excuse(pause)
    assert pulse.problem(now, cpu=0.0) == ""


@given(st.dictionaries(st.text(max_size=2000), st.text(max_size=9000), max_size=8))
def test_a_beat_fits_a_pipe_and_is_never_ready_by_mistake(problems: dict[str, str]) -> None:
    line = heartbeat.encode(Beat(problems=problems))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    read = heartbeat.decode(line)
    assert read is not None
    assert bool(read.problems) == bool(problems)


def test_half_a_line_is_no_beat() -> None:
    assert heartbeat.decode(b'{"problems":{"rou') is None


def test_readiness_lists_every_check_as_kubernetes_does() -> None:
    assert readiness_page({"a": ""}, verbose=False) == (200, b"ok")
    assert readiness_page({"a": ""}, verbose=True) == (200, b"[+]a ok\nreadyz check passed\n")
    code, page = readiness_page({"a": "", "b": "is late"}, verbose=False)
    assert code == 503
    assert page == b"[+]a ok\n[-]b failed: is late\nreadyz check failed\n"


BEATING = """
import asyncio, os, sys
from bidplane.runtime.supervision.health import Health
from bidplane.runtime.supervision.heartbeat import beat
os.write(int(sys.argv[1]), b"%d\\n" % os.getpid())
asyncio.run(beat(Health()))
"""


class Watched:
    """A supervisor over one process that beats, with what it told of it."""

    def __init__(self, folder: Path, limits: SilenceLimits) -> None:
        self.news: list[str] = []
        self.changes: asyncio.Queue[PartStatus] = asyncio.Queue()
        self.read_end, self.write_end = os.pipe()
        self.supervisor = Supervisor(on_change=self._changed, limits=limits)
        self.supervisor.start(
            SupervisedProgram(
                name="it",
                command=[sys.executable, "-c", BEATING, str(self.write_end)],
                inherits=[self.write_end],
                log=folder / "it.log",
                beats=True,
            )
        )

    def _changed(self, part: PartStatus, news: str) -> None:
        self.changes.put_nowait(part)
        if news:
            self.news.append(news)

    async def until(self, state: ProcessState) -> PartStatus:
        async with asyncio.timeout(PATIENCE):
            while True:
                part = await self.changes.get()
                if part.state is state:
                    return part

    async def close(self) -> None:
        await self.supervisor.stop()
        os.close(self.read_end)
        os.close(self.write_end)


def test_a_process_that_hangs_is_killed_and_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        watched = Watched(tmp_path, SilenceLimits(starting=PATIENCE, silent=1.5, busy=PATIENCE))
        first = await watched.until(ProcessState.READY)
        os.kill(first.pid, signal.SIGSTOP)
        restarting = await watched.until(ProcessState.RESTARTING)
        assert restarting.pid in (first.pid, 0)
        again = await watched.until(ProcessState.READY)
        assert again.pid != first.pid
        assert again.restarts == 1
        await watched.close()
        hangs, ended, back = watched.news
        assert hangs.startswith("the it hangs: no heartbeat for")
        assert "killed by SIGKILL" in ended
        assert back == "the it is ready again"

    asyncio.run(story())


def test_a_pause_of_the_supervisor_too_restarts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a laptop that slept: the clock has moved on for all, and nobody has beaten."""

    async def story() -> None:
        watched = Watched(tmp_path, SilenceLimits(starting=PATIENCE, silent=5.0, busy=PATIENCE))
        first = await watched.until(ProcessState.READY)
        os.kill(first.pid, signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        real, jumped = loop.time, asyncio.Event()
        sleep = asyncio.sleep

        async def sleep_and_jump(seconds: float) -> None:
            await sleep(seconds)
            if not jumped.is_set():
                monkeypatch.setattr(loop, "time", lambda: real() + 3600.0, raising=False)
                jumped.set()

        monkeypatch.setattr(module.asyncio, "sleep", sleep_and_jump)
        async with asyncio.timeout(PATIENCE):
            await jumped.wait()
        os.kill(first.pid, signal.SIGCONT)
        for _ in range(6):
            await sleep(0.25)  # the next looks of the supervisor, which it takes by itself
        assert watched.supervisor.pid("it") == first.pid
        assert watched.news == []
        await watched.close()

    asyncio.run(story())


def test_unsupervised_nobody_beats() -> None:
    assert heartbeat.DESCRIPTOR not in os.environ
    asyncio.run(heartbeat.beat(Health()))  # returns
