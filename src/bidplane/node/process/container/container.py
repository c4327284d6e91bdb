"""
One container of a pod: its process, its probes, its hooks, its end.

A unit carries out the worker's decisions and records what it observes; every change wakes the
pod's worker, which decides.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress

import msgspec

from bidplane.core.pods import life
from bidplane.core.pods.life import ContainerRun, Obstacle, Role
from bidplane.core.pods.probes import Probe, ProbeKind, Tally, tally
from bidplane.core.pods.probes import read as read_probes
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.process.container import sessions, shims
from bidplane.node.process.container.sessions import Command, CommandResult
from bidplane.node.process.probes import probing
from bidplane.node.process.records import Attempt
from bidplane.node.process.sandbox.confinement import Confined, ContainerEngine

_RETRY_SECONDS = 0.05
_SETTLE_SECONDS, _SETTLE_TRIES = 0.005, 1000
_LEAST_GRACE_SECONDS = 2.0  # that is left for SIGTERM, however long a preStop hook took
_LONGEST_HOOK_SECONDS = 600.0

Say = Callable[[str, str, bool], None]  # an Event: reason, message, whether it is a warning


class Unit:
    """One container of a pod, as its worker runs it."""

    def __init__(
        self,
        spec: Object,
        role: Role,
        *,
        engine: ContainerEngine,
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
        self.run: ContainerRun | None = None
        self.previous: ContainerRun | None = None
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
        self._through = False  # the postStart hook is done
        self._sick = ""
        self._sick_grace: float | None = None
        self._tallies: dict[ProbeKind, Tally] = {}
        self._watch: shims.ShimWatch | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._until = 0.0
        self._followed = False

    def __repr__(self) -> str:
        return f"<Unit {self.name} {self.run}>"

    def facts(self) -> life.ContainerState:
        started = self._started()
        return life.ContainerState(
            name=self.name,
            role=self.role,
            run=self.run,
            previous=self.previous,
            started=started,
            ready=started and self._good(ProbeKind.READINESS),
            stopping=self._stopping is not None,
            sick=self._sick,
            obstacle=self.obstacle,
        )

    @property
    def sick_grace(self) -> float | None:
        return self._sick_grace

    def _started(self) -> bool:
        running = self.run is not None and self.run.running and self.run.started is not None
        return running and self._through and self._good(ProbeKind.STARTUP)

    def _good(self, kind: ProbeKind) -> bool:
        if not self.spec.get(f"{kind}Probe"):
            return True
        return self._tallies.get(kind, Tally()).good is True

    # Beginning.

    def follow(self, attempt: Attempt, *, hook: bool, reported: Object | None = None) -> None:
        """Follow a running attempt. `reported` is its status in the API from before a restart."""
        self.attempt, self.run, self.obstacle = attempt, attempt.run(), None
        self._sick, self._sick_grace = "", None
        self._tallies, self._through = {}, not hook
        state = attempt.state()
        assert state is not None
        self._watch = shims.ShimWatch(state, self._wake)
        if reported is not None and reported.get("restartCount") == attempt.number:
            for kind, field in ((ProbeKind.STARTUP, "started"), (ProbeKind.READINESS, "ready")):
                if reported.get(field):
                    self._tallies[kind] = Tally(True, True, 1)
        if hook and (self.spec.get("lifecycle") or {}).get("postStart"):
            self._spawn(self._post_start())
        else:
            self._through = True
        for probe in read_probes(self.spec):
            self._spawn(self._probe(probe))
        self._followed = True
        self.refresh()  # it may be over already

    def mark_finished(self, attempt: Attempt) -> None:
        """Take the result of an attempt that ended before it was followed."""
        self.attempt, self.run = attempt, self._with_log_message(attempt.run(), attempt)

    def refresh(self) -> None:
        """Update `run`, and stop following if the attempt has ended."""
        if self.attempt is None or not self._followed:
            return
        run = self.attempt.run()
        if run.running:
            if self.attempt.is_supervised():
                self.run = run
                return
            # The shim died without an exit record: kill what is left of the container.
            run = self.attempt.run()
            if run.running:
                state = self.attempt.state()
                if state is not None:
                    shims.kill(state)
                self.attempt.mark_lost(self._clock.now())
                run = self.attempt.run()
        self.run = self._with_log_message(run, self.attempt)
        self._stop_following()

    def _with_log_message(self, run: ContainerRun, attempt: Attempt) -> ContainerRun:
        falls_back = self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if run.message or not run.exit_code or not falls_back:
            return run
        return msgspec.structs.replace(run, message=attempt.log_tail())

    def _stop_following(self) -> None:
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
        """Stop following; the process continues."""
        tasks = [*self._tasks, *([self._stopping] if self._stopping else [])]
        self._stop_following()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Commands in the container.

    def command(self, argv: Sequence[str], *, stdin: bool = False, tty: bool = False) -> Command:
        """Return a command that runs in the container's sandbox and cgroups."""
        if self.target is not None:
            return self.target.command(argv, stdin=stdin, tty=tty)
        assert self.attempt is not None
        assert self.confined is not None
        state = self.attempt.state()
        assert state is not None
        env = {**self.env, "TERM": "xterm"} if tty else {**self.env}
        joined = msgspec.structs.replace(self.confined, stdin=stdin, tty=tty, env=env)
        line = self._engine.join_command(joined, state, argv)
        return Command(
            argv=line.argv,
            env=line.env,
            descriptors=line.descriptors,
            cgroups=self.cgroups,
            cwd="/",
        )

    async def wait_joinable(self) -> None:
        """Wait until the container's process can be joined."""
        assert self.attempt is not None
        state = self.attempt.state()
        if state is None or not self._engine.tells_inside:
            return
        for _ in range(_SETTLE_TRIES):
            if shims.is_joinable(state):
                return
            await asyncio.sleep(_SETTLE_SECONDS)

    async def run_command(self, argv: Sequence[str], timeout: float) -> CommandResult | None:
        await self.wait_joinable()
        try:
            return await sessions.run(self.command(argv), timeout=timeout)
        except OSError as error:
            return CommandResult(126, str(error).encode())

    # Probes and hooks.

    async def _probe(self, probe: Probe) -> None:
        await self._clock.sleep(probe.initial_delay)
        while True:
            if probe.kind is ProbeKind.STARTUP and self._good(ProbeKind.STARTUP):
                return
            if not self._through or (probe.kind is not ProbeKind.STARTUP and not self._started()):
                await self._clock.sleep(_RETRY_SECONDS)
                continue
            answer = await probing.ask(probe, self.spec, self.address, self.run_command)
            self._record_probe(probe, answer)
            if self._sick:
                return
            await self._clock.sleep(probe.period)

    def _record_probe(self, probe: Probe, answer: probing.ProbeResult) -> None:
        before = self._tallies.get(probe.kind, Tally())
        after = self._tallies[probe.kind] = tally(probe, before, answer.good)
        if not answer.good:
            self._say("Unhealthy", f"{probe.kind.title()} probe failed: {answer.message}", True)
        if after.good is False and probe.kind is not ProbeKind.READINESS and not self._sick:
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
        """Run a lifecycle hook; return its error, or an empty text."""
        if hook.get("exec"):
            ran = await self.run_command(hook["exec"].get("command") or (), timeout)
            if ran is None:
                return f"it took longer than {timeout:g} s"
            return (
                "" if ran.code == 0 else ran.output.decode(errors="replace") or f"exit {ran.code}"
            )
        if hook.get("httpGet"):
            answer = await probing.http(hook["httpGet"], self.spec, self.address, timeout)
            return answer.message
        if hook.get("sleep"):
            await self._clock.sleep(min(float(hook["sleep"].get("seconds") or 0), timeout))
        return ""

    # The end.

    def stop(self, until: float, message: str) -> None:
        """Stop the container, and kill it at `until`."""
        self._until = until
        if self._stopping is None:
            self._say("Killing", message, False)
            self._stopping = asyncio.create_task(self._stop())

    def shorten_grace(self, until: float) -> None:
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
            while not shims.send(state, self._stop_signal()) and self._clock.now() < self._until:
                await self._clock.sleep(_RETRY_SECONDS)
            while self._clock.now() < self._until:
                await self._clock.sleep(min(self._until - self._clock.now(), 0.5))
        await self._engine.destroy(self.confined, state)

    def _stop_signal(self) -> signal.Signals:
        named = (self.spec.get("lifecycle") or {}).get("stopSignal") or "SIGTERM"
        with suppress(KeyError):
            return signal.Signals[named]
        return signal.SIGTERM
