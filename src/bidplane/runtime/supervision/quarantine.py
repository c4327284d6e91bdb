"""
Quarantine: work that held a process for more than ten seconds, twice, is refused from then on.

The supervisor records it in a file when it kills the process, for the next one to read. The owner
lifts it with `bidplane plane release`; so does deleting the plane.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

FILE = "quarantine.json"
STRIKES = 2


class RunningWork(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of work of a process for a plane: a request, or a controller's pass."""

    plane: str
    verb: str  # get, list, …; reconcile; round
    kind: str  # a resource, or a controller

    def __str__(self) -> str:
        return f"{self.verb} {self.kind} of {self.plane}"


class QuarantineEntry(msgspec.Struct, frozen=True, kw_only=True):
    work: RunningWork
    strikes: int


class WorkQuarantine:
    """The work that is refused, and the file that keeps it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._strikes: dict[RunningWork, int] = {}
        self.load()

    def load(self) -> None:
        if self._path is None:
            return
        try:
            entries = msgspec.json.decode(self._path.read_bytes(), type=list[QuarantineEntry])
        except (OSError, msgspec.MsgspecError):
            entries = []
        self._strikes = {entry.work: entry.strikes for entry in entries}

    def strike(self, work: RunningWork) -> bool:
        """Count that `work` held a process; return whether it is refused from now on."""
        self.load()
        self._strikes[work] = self._strikes.get(work, 0) + 1
        self._write()
        return self._strikes[work] >= STRIKES

    def release(self, plane: str) -> int:
        """Forget all strikes of a plane; return how much work was refused."""
        self.load()
        count = sum(work.plane == plane for work in self.refused())
        if any(work.plane == plane for work in self._strikes):
            self._strikes = {w: n for w, n in self._strikes.items() if w.plane != plane}
            self._write()
        return count

    def refused(self) -> list[RunningWork]:
        """Return the work that is refused."""
        return [work for work, strikes in self._strikes.items() if strikes >= STRIKES]

    def refusal(self, work: RunningWork) -> str:
        """Return the reason why `work` is refused; "" if it is not."""
        if self._strikes.get(work, 0) < STRIKES:
            return ""
        return (
            f"quarantined: {work.verb} {work.kind} of the plane {work.plane!r} held the server for"
            f" more than ten seconds, {self._strikes[work]} times. The owner of the installation"
            f" lifts this with `bidplane plane release {work.plane}`"
        )

    def _write(self) -> None:
        if self._path is None:
            return
        entries = [
            QuarantineEntry(work=work, strikes=strikes) for work, strikes in self._strikes.items()
        ]
        temporary = self._path.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(entries))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
