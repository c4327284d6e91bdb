"""
Probes: when a run of good or bad answers counts.

A container is started when its startup probe succeeded once; until then its other
probes wait. It is ready, or sick, when the last so many answers in a row said so.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from bidplane.api.kinds import Object


class Kind(enum.StrEnum):
    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    action: Object  # httpGet, tcpSocket, grpc or exec, as the spec has it
    initial_delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    successes: int = 1
    failures: int = 3
    grace_seconds: float | None = None


class Tally(msgspec.Struct, frozen=True):
    """What a probe has said so far."""

    good: bool | None = None  # None: not enough answers
    answer: bool | None = None  # the last
    streak: int = 0


def read(container: Object) -> list[Probe]:
    """The probes of a container, in the order they matter."""
    found = []
    for kind in Kind:
        spec = container.get(f"{kind}Probe")
        if spec:
            found.append(_probe(kind, spec))
    return found


def _probe(kind: Kind, spec: Object) -> Probe:
    grace: Any = spec.get("terminationGracePeriodSeconds")
    return Probe(
        kind=kind,
        action=spec,
        initial_delay=float(spec.get("initialDelaySeconds") or 0),
        period=float(spec.get("periodSeconds") or 10),
        timeout=float(spec.get("timeoutSeconds") or 1),
        # A liveness or startup probe that had to succeed twice would mean nothing.
        successes=int(spec.get("successThreshold") or 1),
        failures=int(spec.get("failureThreshold") or 3),
        grace_seconds=None if grace is None else float(grace),
    )


def tally(probe: Probe, so_far: Tally, answer: bool) -> Tally:
    streak = so_far.streak + 1 if answer == so_far.answer else 1
    needed = probe.successes if answer else probe.failures
    good = answer if streak >= needed else so_far.good
    return Tally(good, answer, streak)
