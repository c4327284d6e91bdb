"""
The supervisor, with real processes.

Nothing here sleeps: each process says over a pipe what it does, and the test waits for
that, or for the end of the process itself.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys

import pytest

from bidplane.runtime.supervision import supervisor as module
from bidplane.runtime.supervision.supervisor import SupervisedProgram, Supervisor

PATIENCE = 20.0  # seconds until a test that waits for a process fails

# A program is told by its arguments where to write what it does.
LIVE = "import os, sys; os.write(int(sys.argv[1]), b'%d\\n' % os.getpid()); sys.stdin.read()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + LIVE
BRIEF = "import os, sys; os.write(int(sys.argv[1]), b'%d\\n' % os.getpid())"


class Pipe:
    """Lines that processes write, awaited."""

    def __init__(self):
        self.read_end, self.write_end = os.pipe()
        self._buffer = b""

    async def line(self):
        loop = asyncio.get_running_loop()
        while b"\n" not in self._buffer:
            ready = asyncio.Event()
            loop.add_reader(self.read_end, ready.set)
            try:
                await asyncio.wait_for(ready.wait(), PATIENCE)
            finally:
                loop.remove_reader(self.read_end)
            self._buffer += os.read(self.read_end, 4096)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def close(self):
        os.close(self.read_end)
        os.close(self.write_end)


@pytest.fixture
def pipe():
    made = Pipe()
    yield made
    made.close()


@pytest.fixture
def program(tmp_path, pipe):
    def make(code, name="it"):
        return SupervisedProgram(
            name=name,
            command=[sys.executable, "-c", code, str(pipe.write_end)],
            inherits=[pipe.write_end],
            log=tmp_path / f"{name}.log",
        )

    return make


def ended(pid):
    """Wait for the end of a process that need not be our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], PATIENCE)[0])
    finally:
        os.close(handle)


def test_what_is_started_runs_and_what_is_stopped_is_gone(program, pipe):
    async def story():
        it = Supervisor()
        it.start(program(LIVE, "one"))
        it.start(program(LIVE, "two"))
        pids = {int(await pipe.line()), int(await pipe.line())}
        assert {it.pid("one"), it.pid("two")} == pids
        await it.stop()
        assert it.pid("one") is None
        return pids

    for pid in asyncio.run(story()):
        assert ended(pid)


def test_what_was_killed_is_started_again(program, pipe):
    async def story():
        it = Supervisor()
        it.start(program(LIVE))
        first = int(await pipe.line())
        os.kill(first, signal.SIGKILL)
        second = int(await pipe.line())
        assert second != first
        assert it.pid("it") == second
        await it.stop()

    asyncio.run(story())


def test_what_ends_by_itself_is_started_later_and_later(program, pipe, monkeypatch):
    waits = []
    monkeypatch.setattr(module, "_FIRST_RESTART_SECONDS", 0.001)
    monkeypatch.setattr(module, "_LAST_RESTART_SECONDS", 0.004)
    timeout = asyncio.timeout

    def noted(seconds):
        waits.append(seconds)
        return timeout(seconds)

    async def story():
        it = Supervisor()
        monkeypatch.setattr(module.asyncio, "timeout", noted)
        it.start(program(BRIEF))
        assert len({await pipe.line() for _ in range(5)}) == 5
        monkeypatch.setattr(module.asyncio, "timeout", timeout)
        await it.stop()

    asyncio.run(story())
    assert waits[:4] == [0.001, 0.002, 0.004, 0.004]


def test_a_listening_socket_outlives_the_process_that_serves_it(program, pipe):
    """The descriptor is the supervisor's: the restarted process gets the same one."""

    async def story():
        it = Supervisor()
        it.start(program(LIVE))
        os.kill(int(await pipe.line()), signal.SIGKILL)
        await pipe.line()
        await it.stop()
        os.fstat(pipe.write_end)

    asyncio.run(story())


def test_who_does_not_obey_is_killed(program, pipe, monkeypatch):
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.05)

    async def story():
        it = Supervisor()
        it.start(program(STUBBORN))
        pid = int(await pipe.line())
        await it.stop()
        return pid

    assert ended(asyncio.run(story()))


def test_stopping_does_not_wait_for_the_next_start(program, pipe, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_RESTART_SECONDS", 1000.0)

    async def story():
        it = Supervisor()
        it.start(program(BRIEF))
        assert ended(int(await pipe.line()))
        async with asyncio.timeout(PATIENCE):
            await it.stop()

    asyncio.run(story())


def test_what_is_being_started_when_all_is_stopped_is_stopped_too(program, monkeypatch):
    monkeypatch.setattr(module, "_STOP_SECONDS", 1000.0)
    made = []

    async def story():
        it = Supervisor()
        create = asyncio.create_subprocess_exec

        async def slow(*args, **options):
            stopping.append(asyncio.create_task(it.stop()))
            await asyncio.sleep(0)
            made.append(await create(*args, **options))
            return made[-1]

        stopping = []
        monkeypatch.setattr(module.asyncio, "create_subprocess_exec", slow)
        it.start(program("import sys; sys.stdin.read()"))
        while not stopping:
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await stopping[0]

    asyncio.run(story())
    assert [process.returncode for process in made] == [-signal.SIGTERM]


def test_a_command_that_is_not_there_is_tried_again_and_can_be_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_RESTART_SECONDS", 0.001)
    tried = []

    async def story():
        it = Supervisor()
        enough = asyncio.Event()

        async def missing(*args, **options):
            tried.append(args)
            if len(tried) == 3:
                enough.set()
            raise FileNotFoundError("no such file")

        monkeypatch.setattr(module.asyncio, "create_subprocess_exec", missing)
        it.start(SupervisedProgram(name="it", command=["/no/such/command"], log=tmp_path / "log"))
        await asyncio.wait_for(enough.wait(), PATIENCE)
        await it.stop()

    asyncio.run(story())


def test_what_a_program_says_is_kept_over_restarts(program, pipe, tmp_path):
    async def story():
        it = Supervisor()
        it.start(program("print('hello', flush=True); " + LIVE))
        os.kill(int(await pipe.line()), signal.SIGKILL)
        await pipe.line()
        await it.stop()

    asyncio.run(story())
    assert (tmp_path / "it.log").read_text() == "hello\nhello\n"


SUPERVISOR = """
import asyncio, pathlib, sys
from bidplane.runtime.supervision.supervisor import SupervisedProgram, Supervisor
async def main():
    it = Supervisor()
    descriptor = int(sys.argv[1])
    it.start(SupervisedProgram(name="it", command=[sys.executable, "-c", CHILD, sys.argv[1]],
                     inherits=[descriptor], log=pathlib.Path(sys.argv[2])))
    await asyncio.Event().wait()
CHILD = '''
import os, signal, sys
from bidplane.runtime.supervision.supervisor import end_with_supervisor
end_with_supervisor()
os.write(int(sys.argv[1]), b"%d\\\\n" % os.getpid())
signal.pause()
'''
asyncio.run(main())
"""


def test_children_end_when_the_supervisor_is_killed(pipe, tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(pipe.write_end), str(tmp_path / "log")],
        pass_fds=[pipe.write_end],
    )
    try:
        child = int(asyncio.run(pipe.line()))
    finally:
        parent.kill()
        parent.wait()
    assert ended(child)
