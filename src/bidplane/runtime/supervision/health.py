"""
The health of a process: named checks, each of which returns its problem or "".

Checks run on the process's own event loop, so they are cheap and never wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

Check = Callable[[], str]  # returns the problem; "" if there is none


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """One report of a process about itself. It is ready if it has no problems."""

    problems: dict[str, str] = {}  # by check
    notes: tuple[str, ...] = ()  # for the operator; the process is ready all the same

    @property
    def message(self) -> str:
        return "; ".join(
            [*(f"{name}: {text}" for name, text in self.problems.items()), *self.notes]
        )


class Health:
    def __init__(self, notes: Callable[[], Iterable[str]] = lambda: ()) -> None:
        self._checks: dict[str, Check] = {}
        self._notes = notes

    def add(self, name: str, check: Check) -> None:
        self._checks[name] = check

    def beat(self) -> Beat:
        """Return a report of all checks, for the supervisor."""
        return Beat(
            problems={name: text for name, text in self.results().items() if text},
            notes=tuple(self._notes()),
        )

    def results(self) -> dict[str, str]:
        """Return the problem of each check, or ""."""
        return {name: check() for name, check in self._checks.items()}


def readiness_page(results: dict[str, str], *, verbose: bool) -> tuple[int, bytes]:
    """Return the code and body of `/readyz`, in the form that kube-apiserver answers with."""
    ready = not any(results.values())
    if ready and not verbose:
        return 200, b"ok"
    lines = [
        f"[-]{name} failed: {text}" if text else f"[+]{name} ok" for name, text in results.items()
    ]
    lines.append("readyz check passed" if ready else "readyz check failed")
    return (200 if ready else 503), ("\n".join(lines) + "\n").encode()
