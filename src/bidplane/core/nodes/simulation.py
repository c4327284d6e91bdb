"""
The behaviour of a simulated pod, from its annotations: how long it takes to start, to load and to
work, how often it fails, what its GPUs show.

A number may be given as a range, `20..40`: then each run draws it anew, by a seed. So runs vary,
and a replay is the same each time. Nothing here reads a clock: the stage of a run follows from how
long ago it began.
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
    """An annotation that cannot be read. The message names it and shows how to write it."""


class SimulationStage(enum.StrEnum):
    """The stages of a simulated container."""

    CREATING = "Creating"  # its image is pulled, its devices are prepared
    LOADING = "Loading"  # it runs and is not ready: weights on their way to the GPU
    WORKING = "Working"
    ENDED = "Ended"


class Draw(msgspec.Struct, frozen=True):
    """A number, or a range to draw it from."""

    least: float
    most: float

    def at(self, chance: float) -> float:
        """Return the number that `chance`, from 0 to below 1, draws."""
        return self.least + (self.most - self.least) * chance


_NONE = Draw(0.0, 0.0)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated behaviour that a pod's annotations describe."""

    start: Draw = _NONE
    load: Draw = _NONE
    work: Draw | None = None  # None: until it is deleted
    done: float = 0.0  # seconds of its work that an earlier pod has done
    exit_code: int | None = None
    failures_per_hour: float = 0.0
    shutdown: float = _SHUTDOWN_SECONDS
    utilisation: Draw = Draw(85.0, 85.0)
    memory: Draw = Draw(60.0, 60.0)
    linger: float = 0.0  # seconds from its end until its GPUs' memory is free
    xid: int = 0
    seed: str = ""

    def run(self, number: int) -> SimulatedRun:
        """Return the n-th run, counted from 0, with all its numbers drawn."""
        work = self.work.at(self._chance("work", number)) if self.work is not None else None
        fails = math.inf
        if self.failures_per_hour:
            # Failures come at a rate: the time until the first is exponential.
            fails = -math.log(1.0 - self._chance("fail", number)) * 3600 / self.failures_per_hour
        return SimulatedRun(
            # Only the first run pulls the image.
            start=self.start.at(self._chance("start", number)) if number == 0 else 0.0,
            load=self.load.at(self._chance("load", number)),
            work=None if work is None else max(0.0, work - self.done),
            fails_after=fails,
            exit_code=self.exit_code or 0,
            failure_code=self.exit_code or 1,
            utilisation=self.utilisation.at(self._chance("utilisation", number)),
            memory=self.memory.at(self._chance("memory", number)),
        )

    def _chance(self, quantity: str, number: int) -> float:
        """
        Return a number from 0 to below 1 that depends only on the seed, the quantity and the run.
        """
        digest = hashlib.blake2b(
            f"{self.seed}/{quantity}/{number}".encode(), digest_size=8
        ).digest()
        return (int.from_bytes(digest, "big") >> 11) / 2**53


class SimulatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a simulated container. `fails_after` and the ends count from its first process."""

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
        """The exit code it ends with."""
        finished = math.inf if self.work is None else self.load + self.work
        return self.failure_code if self.fails_after < finished else self.exit_code

    def stage(self, running: float) -> SimulationStage:
        """Return its stage, `running` seconds after its first process began."""
        if running >= self.ends_after:
            return SimulationStage.ENDED
        return SimulationStage.LOADING if running < self.load else SimulationStage.WORKING

    def load_percent(self, running: float) -> float:
        """Return how busy its GPUs are, in percent."""
        return (
            min(self.utilisation, 5.0)
            if self.stage(running) is SimulationStage.LOADING
            else self.utilisation
        )

    def memory_percent(self, running: float) -> float:
        """Return how much of its GPUs' memory is used, in percent: it fills while the run loads."""
        return self.memory * min(1.0, running / self.load) if self.load else self.memory


def read(pod: Object, *, seed: str = "") -> Script:
    """
    Return the script in a pod's annotations; raises `BadScript` for the first unreadable one.

    Without a seed of its own a pod is drawn by its name, so that a replay does the same.
    """
    metadata = pod["metadata"]
    notes: Mapping[str, str] = metadata.get("annotations") or {}
    own_seed = notes.get(labels.SIMULATED_SEED) or f"{metadata.get('namespace')}/{metadata['name']}"
    code = _read_number(notes, labels.SIMULATED_EXIT_CODE, most=255.0, whole=True)
    return Script(
        start=_read_range(notes, labels.SIMULATED_START_SECONDS) or _NONE,
        load=_read_range(notes, labels.SIMULATED_LOAD_SECONDS) or _NONE,
        work=_read_range(notes, labels.SIMULATED_SECONDS),
        done=_read_number(notes, labels.SIMULATED_DONE) or 0.0,
        exit_code=None if code is None else int(code),
        failures_per_hour=_read_number(notes, labels.SIMULATED_FAILURES, most=1e6) or 0.0,
        shutdown=_or_default(
            _read_number(notes, labels.SIMULATED_SHUTDOWN_SECONDS), _SHUTDOWN_SECONDS
        ),
        utilisation=_read_range(notes, labels.SIMULATED_UTILISATION, most=100.0)
        or Draw(85.0, 85.0),
        memory=_read_range(notes, labels.SIMULATED_MEMORY, most=100.0) or Draw(60.0, 60.0),
        linger=_read_number(notes, labels.SIMULATED_LINGER) or 0.0,
        xid=int(_read_number(notes, labels.SIMULATED_XID, most=1000.0, whole=True) or 0),
        seed=f"{seed}/{own_seed}",
    )


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value


def _read_number(
    notes: Mapping[str, str], name: str, *, most: float = _LONGEST_SECONDS, whole: bool = False
) -> float | None:
    """Return the number in an annotation; None without one. Raises `BadScript`."""
    text = notes.get(name)
    if text is None:
        return None
    value = _number(text)
    if value is None or not 0 <= value <= most or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise BadScript(f'{name}: {text!r} is not {kind} from 0 to {most:.0f}: write it as "5"')
    return value


def _read_range(
    notes: Mapping[str, str], name: str, *, most: float = _LONGEST_SECONDS
) -> Draw | None:
    """Return the number or range in an annotation; None without one. Raises `BadScript`."""
    text = notes.get(name)
    if text is None:
        return None
    low, dots, high = text.partition("..")
    least, highest = _number(low), _number(high if dots else low)
    if least is None or highest is None or not 0 <= least <= highest <= most:
        raise BadScript(
            f"{name}: {text!r} is neither a number from 0 to {most:.0f} nor a range of such: write"
            ' it as "20", or as "20..40"'
        )
    return Draw(least, highest)


def _number(text: str) -> float | None:
    """Return a finite number, or None for any other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
