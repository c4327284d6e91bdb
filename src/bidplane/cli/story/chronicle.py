"""
The narration of the demo's day, and the record of runs from which it is evaluated.

It prints the script's own lines, displacements and returns, and every few hours the prices and the
GPUs of each agent. Ordinary starts and ends are only recorded.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable, Sequence

from bidplane.api import labels
from bidplane.api.kinds import POOL
from bidplane.api.objects import (
    annotations_of,
    has_ended,
    is_deleted,
    name_of,
    phase_of,
    uid_of,
)
from bidplane.cli.story.agents import AgentWork, DemoAgents
from bidplane.cli.story.day import AGENTS, HOURS, NARRATION
from bidplane.kube.client import Object
from bidplane.sim.first_come import JobRun

WIDTH = 80
_MARGIN = 16  # the hour, and the agent
_PRICES_EVERY = 3  # hours
_GATHERED = 0.1  # hours: events within it are printed as one line
_GRACE = 1.0  # hours after the day in which its work may still end

Say = Callable[[str, str], None]  # takes a line and its style


class DayLog:
    """Records every change of the agents' pods, and prints the notable ones."""

    def __init__(self, works: Sequence[AgentWork], hour: float, say: Say) -> None:
        self._works = {work.name: work for work in works}
        self._hour = hour
        self._say = say
        self._began = 0.0
        self._running: dict[str, tuple[str, float]] = {}  # by uid: the work, since when
        self._leaving: set[str] = set()  # uids
        self._displaced: set[str] = set()  # displaced works that have not returned
        self._notes: dict[tuple[str, str, str], list[str]] = {}
        self.runs: list[JobRun] = []
        self.done: dict[str, float] = {}  # by work: when
        self.first_start: dict[str, float] = {}
        self.displacements = 0
        self.finished = asyncio.Event()

    @property
    def now(self) -> float:
        """Seconds from the start."""
        return asyncio.get_running_loop().time() - self._began

    def begin(self) -> None:
        self._began = asyncio.get_running_loop().time()

    def line(self, speaker: str, text: str, style: str = "") -> None:
        """Print a line, wrapped, with the hour of the day and the speaker."""
        minutes = min(round(self.now / self._hour * 60), HOURS * 60)
        stamp = f"{minutes // 60:02}:{minutes % 60:02}"
        first = f"{stamp}  {speaker:<9}"
        for part in textwrap.wrap(text, WIDTH - _MARGIN) or [""]:
            self._say(f"{first:<{_MARGIN}}{part}", style)
            first = ""

    def pod_changed(self, agent: str, event: str, pod: Object) -> None:
        """Record a change of an agent's pod."""
        name, uid = name_of(pod), uid_of(pod)
        work = self._works.get(name)
        if work is None:
            return
        phase = phase_of(pod)
        if event == "DELETED" or has_ended(pod):
            self._end_run(uid)
        if event == "DELETED":
            return
        if phase == "Succeeded":
            if name not in self.done:
                self.done[name] = self.now
                if len(self.done) == len(self._works):
                    self.finished.set()
        elif is_deleted(pod):
            self._pod_leaves(agent, name, uid, pod)
        elif phase == "Running" and uid not in self._running:
            self._running[uid] = name, self.now
            self.first_start.setdefault(name, self.now)
            if name in self._displaced:
                self._displaced.discard(name)
                saved = labels.SIMULATED_DONE in annotations_of(pod)
                restart_point = "its checkpoint" if saved else "the start"
                self._add_note(agent, name, f"GPUs again, from {restart_point}", "green")

    def _pod_leaves(self, agent: str, name: str, uid: str, pod: Object) -> None:
        """Record a displacement."""
        if uid in self._leaving or uid not in self._running:
            return
        self._leaving.add(uid)
        self._displaced.add(name)
        self.displacements += 1
        has_notice = labels.NOTICE in annotations_of(pod)
        event = "outbid, paid for leaving, bids again" if has_notice else "leaves, bids again"
        self._add_note(agent, name, event, "yellow")

    def _add_note(self, agent: str, name: str, event: str, style: str) -> None:
        """Collect an event: those of several pods at about the same time become one line."""
        if not self._notes:
            asyncio.get_running_loop().call_later(_GATHERED * self._hour, self.flush)
        self._notes.setdefault((agent, event, style), []).append(name)

    def flush(self) -> None:
        """Print the collected events."""
        notes, self._notes = self._notes, {}
        for (agent, event, style), names in notes.items():
            self.line(agent, f"{', '.join(names)}: {event}", style)

    def _end_run(self, uid: str) -> None:
        """Record the end of a run."""
        if uid in self._running:
            name, started = self._running.pop(uid)
            gpus = self._works[name].gpus
            self.runs.append(JobRun(job=name, gpus=gpus, started=started, ended=self.now))

    def busy(self) -> dict[str, int]:
        """The GPUs in use now, by agent."""
        gpus_by_agent: dict[str, int] = {}
        for name, _ in self._running.values():
            work = self._works[name]
            gpus_by_agent[work.agent] = gpus_by_agent.get(work.agent, 0) + work.gpus
        return gpus_by_agent


async def run_day(
    agents: DemoAgents, day_log: DayLog, works: Sequence[AgentWork], hour: float
) -> None:
    """Play the day; returns when all is done, or too late to count."""
    async with asyncio.TaskGroup() as group:
        watching = [
            group.create_task(agents.watch(name, day_log.pod_changed)) for name in agents.names
        ]
        day_log.begin()
        market = group.create_task(_market(agents, day_log, hour))
        for moment in sorted({work.at for work in works}):
            await asyncio.sleep(max(0.0, moment - day_log.now))
            narration = NARRATION.get(round(moment / hour))
            if narration:
                day_log.line("", narration, "bold")
            for work in works:
                if work.at == moment:
                    await agents.submit(work)
        try:
            async with asyncio.timeout((HOURS + _GRACE) * hour - day_log.now):
                await day_log.finished.wait()
        except TimeoutError:
            pass
        finally:
            day_log.flush()
            for task in [*watching, market]:
                task.cancel()


async def _market(agents: DemoAgents, day_log: DayLog, hour: float) -> None:
    """Print the prices and each agent's GPUs every few hours."""
    for moment in range(_PRICES_EVERY, HOURS, _PRICES_EVERY):
        await asyncio.sleep(max(0.0, (moment + 0.5) * hour - day_log.now))
        pools = (await agents.host.list(POOL)).items
        prices = "  ".join(
            f"{pool['spec']['product']} {(pool.get('status') or {}).get('price', '?')}"
            for pool in pools
        )
        busy = day_log.busy()
        usage = ", ".join(
            f"{agent.name} {busy[agent.name]}" for agent in AGENTS if agent.name in busy
        )
        day_log.line("market", prices, "cyan")
        day_log.line("GPUs", usage or "none in use", "cyan")
