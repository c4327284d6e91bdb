"""
What a simulated pod does, from its annotations: how long it takes to start, to load and to work,
how often it fails, what its GPUs show.

A number may be given as a range, `20..40`: then it is drawn, anew for each run, by a seed; so what
happens is chance to whoever watches, and the same each time it is played. Nothing here reads a
clock: where a run is follows from how long ago it began.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections.abc import Mapping

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object

_LONGEST_SECONDS = 1e9
_SHUTDOWN_SECONDS = 1.0  # how long a simulated process takes to obey SIGTERM


class BadScript(ValueError):
    """An annotation that cannot be read; names it, and how to write it."""


class Stage(enum.StrEnum):
    CREATING = "Creating"  # its image is pulled, its devices are prepared
    LOADING = "Loading"  # it runs and is not ready: weights on their way to the GPU
    WORKING = "Working"
    ENDED = "Ended"


class Draw(msgspec.Struct, frozen=True):
    """A number, or any between two."""

    least: float
    most: float

    def at(self, chance: float) -> float:
        return self.least + (self.most - self.least) * chance


_NONE = Draw(0.0, 0.0)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """All that a pod says of its simulated life."""

    start: Draw = _NONE
    load: Draw = _NONE
    work: Draw | None = None  # until it is deleted
    done: float = 0.0  # of its work, in an earlier life
    exit_code: int | None = None
    failures_per_hour: float = 0.0
    shutdown: float = _SHUTDOWN_SECONDS
    utilisation: Draw = Draw(85.0, 85.0)
    memory: Draw = Draw(60.0, 60.0)
    xid: int = 0
    seed: str = ""

    def run(self, number: int) -> Run:
        """Its n-th run, counted from 0, with everything drawn."""
        work = self.work.at(self._chance("work", number)) if self.work is not None else None
        fails = math.inf
        if self.failures_per_hour:
            # Failures come at a rate: the time until the first is exponential.
            fails = -math.log(1.0 - self._chance("fail", number)) * 3600 / self.failures_per_hour
        return Run(
            # Only once: when it runs again, its image is there.
            start=self.start.at(self._chance("start", number)) if number == 0 else 0.0,
            load=self.load.at(self._chance("load", number)),
            work=None if work is None else max(0.0, work - self.done),
            fails_after=fails,
            exit_code=self.exit_code or 0,
            failure_code=self.exit_code or 1,
            utilisation=self.utilisation.at(self._chance("utilisation", number)),
            memory=self.memory.at(self._chance("memory", number)),
        )

    def _chance(self, what: str, number: int) -> float:
        """From 0 to below 1; looks like chance, and is none."""
        drawn = hashlib.blake2b(f"{self.seed}/{what}/{number}".encode(), digest_size=8).digest()
        return (int.from_bytes(drawn, "big") >> 11) / 2**53


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run; times in seconds, `fails_after` and what follows counted from its first process."""

    start: float
    load: float
    work: float | None
    fails_after: float
    exit_code: int
    failure_code: int
    utilisation: float
    memory: float

    @property
    def ends_after(self) -> float:
        """Seconds from its first process to its end; infinite if nothing ends it."""
        finished = math.inf if self.work is None else self.load + self.work
        return min(finished, self.fails_after)

    @property
    def code(self) -> int:
        """How it ends."""
        finished = math.inf if self.work is None else self.load + self.work
        return self.failure_code if self.fails_after < finished else self.exit_code

    def stage(self, running: float) -> Stage:
        """Where it is, so long after its first process began."""
        if running >= self.ends_after:
            return Stage.ENDED
        return Stage.LOADING if running < self.load else Stage.WORKING

    def load_percent(self, running: float) -> float:
        """How busy its GPUs are."""
        return (
            min(self.utilisation, 5.0) if self.stage(running) is Stage.LOADING else self.utilisation
        )

    def memory_percent(self, running: float) -> float:
        """Of its GPUs' memory: filled while it loads."""
        return self.memory * min(1.0, running / self.load) if self.load else self.memory


def read(pod: Object, *, seed: str = "") -> Script:
    """
    What a pod's annotations say; raises `BadScript` that names the first that cannot be read.

    Without a seed of its own a pod is drawn by its name: played again, it does the same again.
    """
    metadata = pod["metadata"]
    notes: Mapping[str, str] = metadata.get("annotations") or {}
    own = notes.get(labels.SIMULATED_SEED) or f"{metadata.get('namespace')}/{metadata['name']}"
    code = _one(notes, labels.SIMULATED_EXIT_CODE, most=255.0, whole=True)
    return Script(
        start=_draw(notes, labels.SIMULATED_START_SECONDS) or _NONE,
        load=_draw(notes, labels.SIMULATED_LOAD_SECONDS) or _NONE,
        work=_draw(notes, labels.SIMULATED_SECONDS),
        done=_one(notes, labels.SIMULATED_DONE) or 0.0,
        exit_code=None if code is None else int(code),
        failures_per_hour=_one(notes, labels.SIMULATED_FAILURES, most=1e6) or 0.0,
        shutdown=_given(_one(notes, labels.SIMULATED_SHUTDOWN_SECONDS), _SHUTDOWN_SECONDS),
        utilisation=_draw(notes, labels.SIMULATED_UTILISATION, most=100.0) or Draw(85.0, 85.0),
        memory=_draw(notes, labels.SIMULATED_MEMORY, most=100.0) or Draw(60.0, 60.0),
        xid=int(_one(notes, labels.SIMULATED_XID, most=1000.0, whole=True) or 0),
        seed=f"{seed}/{own}",
    )


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _one(
    notes: Mapping[str, str], name: str, *, most: float = _LONGEST_SECONDS, whole: bool = False
) -> float | None:
    text = notes.get(name)
    if text is None:
        return None
    value = _number(text)
    if value is None or not 0 <= value <= most or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise BadScript(f'{name}: {text!r} is not {kind} from 0 to {most:.0f}: write it as "5"')
    return value


def _draw(notes: Mapping[str, str], name: str, *, most: float = _LONGEST_SECONDS) -> Draw | None:
    text = notes.get(name)
    if text is None:
        return None
    low, dots, high = text.partition("..")
    least, last = _number(low), _number(high if dots else low)
    if least is None or last is None or not 0 <= least <= last <= most:
        raise BadScript(
            f"{name}: {text!r} is neither a number from 0 to {most:.0f} nor a range of such: write"
            ' it as "20", or as "20..40"'
        )
    return Draw(least, last)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
