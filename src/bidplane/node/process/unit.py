"""
One container of a pod: its process, its probes, its hooks, its end.

A unit does what the pod's worker tells it and remembers what it found; every change
wakes the worker, which decides.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress

import msgspec

from bidplane.core.pods import life
from bidplane.core.pods.life import Obstacle, Role, Run
from bidplane.core.pods.probes import Kind, Probe, Tally, tally
from bidplane.core.pods.probes import read as read_probes
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.process import probing, runs, sessions
from bidplane.node.process.confine import Confined, Engine
from bidplane.node.process.records import Attempt
from bidplane.node.process.sessions import Command, Ran

_RETRY_SECONDS = 0.05
_SETTLE_SECONDS, _SETTLE_TRIES = 0.005, 1000
_LEAST_GRACE_SECONDS = 2.0  # that is left for SIGTERM, however long a preStop hook took
_LONGEST_HOOK_SECONDS = 600.0

Say = Callable[[str, str, bool], None]  # an Event: reason, message, whether it is a warning


class Unit:
    def __init__(
        self,
        spec: Object,
        role: Role,
        *,
        engine: Engine,
        clock: Clock,
        wake: Callable[[], None],
        say: Say,
        target: Unit | None = None,
    ) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.role = role
        self.target = target  # the container whose processes and files it sees as its own
        self.attempt: Attempt | None = None
        self.run: Run | None = None
        self.previous: Run | None = None
        self.obstacle: Obstacle | None = None
        self.retry_at = 0.0
        self.confined: Confined | None = None
        self.env: Mapping[str, str] = {}
        self.cgroups: Sequence[str] = ()
        self.address = ""
        self._engine = engine
        self._clock = clock
        self._wake = wake
        self._say = say
        self._through = False  # the postStart hook is
        self._sick = ""
        self._sick_grace: float | None = None
        self._tallies: dict[Kind, Tally] = {}
        self._watch: runs.Watch | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._until = 0.0
        self._followed = False

    def __repr__(self) -> str:
        return f"<Unit {self.name} {self.run}>"

    def facts(self) -> life.Container:
        started = self._started()
        return life.Container(
            name=self.name,
            role=self.role,
            run=self.run,
            previous=self.previous,
            started=started,
            ready=started and self._good(Kind.READINESS),
            stopping=self._stopping is not None,
            sick=self._sick,
            obstacle=self.obstacle,
        )

    @property
    def sick_grace(self) -> float | None:
        return self._sick_grace

    def _started(self) -> bool:
        running = self.run is not None and self.run.running and self.run.started is not None
        return running and self._through and self._good(Kind.STARTUP)

    def _good(self, kind: Kind) -> bool:
        if not self.spec.get(f"{kind}Probe"):
            return True
        return self._tallies.get(kind, Tally()).good is True

    # Beginning.

    def began(self, attempt: Attempt, *, hook: bool, known: Object | None = None) -> None:
        """It runs: follow it. `known` is what the API said of it before we were started."""
        self.attempt, self.run, self.obstacle = attempt, attempt.run(), None
        self._sick, self._sick_grace = "", None
        self._tallies, self._through = {}, not hook
        state = attempt.state()
        assert state is not None
        self._watch = runs.Watch(state, self._wake)
        if known is not None and known.get("restartCount") == attempt.number:
            for kind, field in ((Kind.STARTUP, "started"), (Kind.READINESS, "ready")):
                if known.get(field):
                    self._tallies[kind] = Tally(True, True, 1)
        if hook and (self.spec.get("lifecycle") or {}).get("postStart"):
            self._spawn(self._post_start())
        else:
            self._through = True
        for probe in read_probes(self.spec):
            self._spawn(self._probe(probe))
        self._followed = True
        self.look()  # it may be over already

    def found_over(self, attempt: Attempt) -> None:
        """It ended before anybody followed it."""
        self.attempt, self.run = attempt, self._with_words(attempt.run(), attempt)

    def look(self) -> None:
        """Whether it has ended since; called when something woke the worker."""
        if self.attempt is None or not self._followed:
            return
        found = self.attempt.run()
        if found.running:
            if self.attempt.supervised():
                self.run = found
                return
            # Its shim is gone and left no word: neither will its process have a future.
            found = self.attempt.run()
            if found.running:
                state = self.attempt.state()
                if state is not None:
                    runs.kill(state)
                self.attempt.lost(self._clock.now())
                found = self.attempt.run()
        self.run = self._with_words(found, self.attempt)
        self._follow_no_more()

    def _with_words(self, run: Run, attempt: Attempt) -> Run:
        falls_back = self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if run.message or not run.exit_code or not falls_back:
            return run
        return msgspec.structs.replace(run, message=attempt.last_words())

    def _follow_no_more(self) -> None:
        self._followed = False
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        current = asyncio.current_task()
        for task in [*self._tasks, *([self._stopping] if self._stopping else [])]:
            if task is not current:
                task.cancel()
        self._stopping = None

    async def close(self) -> None:
        """Let go of it; the process runs on."""
        tasks = [*self._tasks, *([self._stopping] if self._stopping else [])]
        self._follow_no_more()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Beside it.

    def command(self, argv: Sequence[str], *, stdin: bool = False, tty: bool = False) -> Command:
        """A command as if the container had started it."""
        if self.target is not None:
            return self.target.command(argv, stdin=stdin, tty=tty)
        assert self.attempt is not None
        assert self.confined is not None
        state = self.attempt.state()
        assert state is not None
        what = msgspec.structs.replace(self.confined, stdin=stdin, tty=tty)
        env = {**self.env, "TERM": "xterm"} if tty else {**self.env}
        if not self._engine.maps_images:
            env = {**os.environ, **env}  # the engine's own: it gives the container what is its
        return Command(
            argv=self._engine.beside(what, state, argv), env=env, cgroups=self.cgroups, cwd="/"
        )

    async def settled(self) -> None:
        """Until there is something to be beside of."""
        assert self.attempt is not None
        state = self.attempt.state()
        if state is None or not self._engine.tells_inside:
            return
        for _ in range(_SETTLE_TRIES):
            if runs.settled(state):
                return
            await asyncio.sleep(_SETTLE_SECONDS)

    async def beside(self, argv: Sequence[str], timeout: float) -> Ran | None:
        await self.settled()
        try:
            return await sessions.run(self.command(argv), timeout=timeout)
        except OSError as error:
            return Ran(126, str(error).encode())

    # Probes and hooks.

    async def _probe(self, probe: Probe) -> None:
        await self._clock.sleep(probe.initial_delay)
        while True:
            if probe.kind is Kind.STARTUP and self._good(Kind.STARTUP):
                return
            if not self._through or (probe.kind is not Kind.STARTUP and not self._started()):
                await self._clock.sleep(_RETRY_SECONDS)
                continue
            answer = await probing.ask(probe, self.spec, self.address, self.beside)
            self._heard(probe, answer)
            if self._sick:
                return
            await self._clock.sleep(probe.period)

    def _heard(self, probe: Probe, answer: probing.Answer) -> None:
        before = self._tallies.get(probe.kind, Tally())
        after = self._tallies[probe.kind] = tally(probe, before, answer.good)
        if not answer.good:
            self._say("Unhealthy", f"{probe.kind.title()} probe failed: {answer.said}", True)
        if after.good is False and probe.kind is not Kind.READINESS and not self._sick:
            self._sick = f"Container {self.name} failed {probe.kind} probe, will be restarted"
            self._sick_grace = probe.grace_seconds
        if after.good != before.good or self._sick:
            self._wake()

    async def _post_start(self) -> None:
        problem = await self._hook(self.spec["lifecycle"]["postStart"], _LONGEST_HOOK_SECONDS)
        if problem:
            self._say("FailedPostStartHook", f"PostStartHook failed: {problem}", True)
            self._sick = f"FailedPostStartHook: container {self.name} will be restarted"
        self._through = True
        self._wake()

    async def _hook(self, hook: Object, timeout: float) -> str:
        """Run a lifecycle hook; returns what went wrong with it."""
        if hook.get("exec"):
            ran = await self.beside(hook["exec"].get("command") or (), timeout)
            if ran is None:
                return f"it took longer than {timeout:g} s"
            return (
                "" if ran.code == 0 else ran.output.decode(errors="replace") or f"exit {ran.code}"
            )
        if hook.get("httpGet"):
            answer = await probing.http(hook["httpGet"], self.spec, self.address, timeout)
            return answer.said
        if hook.get("sleep"):
            await self._clock.sleep(min(float(hook["sleep"].get("seconds") or 0), timeout))
        return ""

    # The end.

    def stop(self, until: float, message: str) -> None:
        """Ask it to end, and see to it by `until`."""
        self._until = until
        if self._stopping is None:
            self._say("Killing", message, False)
            self._stopping = asyncio.create_task(self._stop())

    def hurry(self, until: float) -> None:
        self._until = min(self._until, until)

    async def _stop(self) -> None:
        assert self.attempt is not None
        assert self.confined is not None
        state = self.attempt.state()
        if state is None:
            return
        grace = self._until - self._clock.now()
        hook = (self.spec.get("lifecycle") or {}).get("preStop")
        if hook and grace > 0:
            problem = await self._hook(hook, grace)
            if problem:
                self._say("FailedPreStopHook", f"PreStopHook failed: {problem}", True)
            self._until = max(self._until, self._clock.now() + _LEAST_GRACE_SECONDS)
        if grace > 0:
            while not runs.send(state, self._stop_signal()) and self._clock.now() < self._until:
                await self._clock.sleep(_RETRY_SECONDS)
            while self._clock.now() < self._until:
                await self._clock.sleep(min(self._until - self._clock.now(), 0.5))
        await self._engine.destroy(self.confined, state)

    def _stop_signal(self) -> signal.Signals:
        named = (self.spec.get("lifecycle") or {}).get("stopSignal") or "SIGTERM"
        with suppress(KeyError):
            return signal.Signals[named]
        return signal.SIGTERM
