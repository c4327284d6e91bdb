"""
A day as it happens: lines that tell it, and what is needed to judge it afterwards.

Told are the script's own words, who is displaced and comes back, and every few hours the
prices and who has how many GPUs. What merely starts and ends is counted, not told.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable, Sequence

from bidplane.api import labels
from bidplane.api.kinds import POOL
from bidplane.cli.day import CAST, HOURS, TELLING
from bidplane.cli.story import Cast, Work
from bidplane.kube.client import Object
from bidplane.sim.first_come import Run

WIDTH = 80
_MARGIN = 16  # the hour, and who
_PRICES_EVERY = 3  # hours
_GATHERED = 0.1  # hours: what is told in one line
_GRACE = 1.0  # hours after the day, in which what it began may still end

Say = Callable[[str, str], None]  # a line, and its style


class Chronicle:
    """Hears of every change of the agents' pods."""

    def __init__(self, works: Sequence[Work], hour: float, say: Say) -> None:
        self._works = {work.name: work for work in works}
        self._hour = hour
        self._say = say
        self._began = 0.0
        self._running: dict[str, tuple[str, float]] = {}  # by uid: the work, since when
        self._leaving: set[str] = set()  # uids
        self._displaced: set[str] = set()  # works that wait to come back
        self._notes: dict[tuple[str, str, str], list[str]] = {}
        self.runs: list[Run] = []
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

    def line(self, who: str, text: str, style: str = "") -> None:
        minutes = min(round(self.now / self._hour * 60), HOURS * 60)
        stamp = f"{minutes // 60:02}:{minutes % 60:02}"
        first = f"{stamp}  {who:<9}"
        for part in textwrap.wrap(text, WIDTH - _MARGIN) or [""]:
            self._say(f"{first:<{_MARGIN}}{part}", style)
            first = ""

    def tell(self, agent: str, event: str, pod: Object) -> None:
        metadata = pod["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        work = self._works.get(name)
        if work is None:
            return
        phase = (pod.get("status") or {}).get("phase", "")
        if event == "DELETED" or phase in ("Succeeded", "Failed"):
            self._stopped(uid)
        if event == "DELETED":
            return
        if phase == "Succeeded":
            if name not in self.done:
                self.done[name] = self.now
                if len(self.done) == len(self._works):
                    self.finished.set()
        elif metadata.get("deletionTimestamp"):
            self._leaves(agent, name, uid, pod)
        elif phase == "Running" and uid not in self._running:
            self._running[uid] = name, self.now
            self.first_start.setdefault(name, self.now)
            if name in self._displaced:
                self._displaced.discard(name)
                saved = labels.SIMULATED_DONE in (metadata.get("annotations") or {})
                where = "its checkpoint" if saved else "the start"
                self._note(agent, name, f"GPUs again, from {where}", "green")

    def _leaves(self, agent: str, name: str, uid: str, pod: Object) -> None:
        if uid in self._leaving or uid not in self._running:
            return
        self._leaving.add(uid)
        self._displaced.add(name)
        self.displacements += 1
        told = labels.NOTICE in (pod["metadata"].get("annotations") or {})
        how = "outbid, paid for leaving, bids again" if told else "leaves, bids again"
        self._note(agent, name, how, "yellow")

    def _note(self, agent: str, name: str, what: str, style: str) -> None:
        """What happens to several at about the same time is one line."""
        if not self._notes:
            asyncio.get_running_loop().call_later(_GATHERED * self._hour, self.flush)
        self._notes.setdefault((agent, what, style), []).append(name)

    def flush(self) -> None:
        notes, self._notes = self._notes, {}
        for (agent, what, style), names in notes.items():
            self.line(agent, f"{', '.join(names)}: {what}", style)

    def _stopped(self, uid: str) -> None:
        if uid in self._running:
            name, started = self._running.pop(uid)
            gpus = self._works[name].gpus
            self.runs.append(Run(job=name, gpus=gpus, started=started, ended=self.now))

    def busy(self) -> dict[str, int]:
        """GPUs that run something now, by agent."""
        found: dict[str, int] = {}
        for name, _ in self._running.values():
            work = self._works[name]
            found[work.agent] = found.get(work.agent, 0) + work.gpus
        return found


async def perform(cast: Cast, chronicle: Chronicle, works: Sequence[Work], hour: float) -> None:
    """Play the day; returns when all is done, or it is so late that the rest does not count."""
    async with asyncio.TaskGroup() as group:
        watching = [group.create_task(cast.watch(name, chronicle.tell)) for name in cast.names]
        chronicle.begin()
        market = group.create_task(_market(cast, chronicle, hour))
        for moment in sorted({work.at for work in works}):
            await asyncio.sleep(max(0.0, moment - chronicle.now))
            words = TELLING.get(round(moment / hour))
            if words:
                chronicle.line("", words, "bold")
            for work in works:
                if work.at == moment:
                    await cast.submit(work)
        try:
            async with asyncio.timeout((HOURS + _GRACE) * hour - chronicle.now):
                await chronicle.finished.wait()
        except TimeoutError:
            pass
        finally:
            chronicle.flush()
            for task in [*watching, market]:
                task.cancel()


async def _market(cast: Cast, chronicle: Chronicle, hour: float) -> None:
    """Prices, and who has what, every few hours."""
    for moment in range(_PRICES_EVERY, HOURS, _PRICES_EVERY):
        await asyncio.sleep(max(0.0, (moment + 0.5) * hour - chronicle.now))
        pools = (await cast.host.list(POOL)).items
        prices = "  ".join(
            f"{pool['spec']['product']} {(pool.get('status') or {}).get('price', '?')}"
            for pool in pools
        )
        busy = chronicle.busy()
        who = ", ".join(f"{one.name} {busy[one.name]}" for one in CAST if one.name in busy)
        chronicle.line("market", prices, "cyan")
        chronicle.line("GPUs", who or "none in use", "cyan")
