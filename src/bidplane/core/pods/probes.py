"""
Probes: the number of good or bad answers in a row that counts.

A container is started when its startup probe succeeded once; until then its other probes wait. It
is ready, or sick, when the required number of answers in a row agree.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from bidplane.api.kinds import Object


class ProbeKind(enum.StrEnum):
    """The kinds of probe, in the order they matter."""

    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A container's probe with its defaults filled in."""

    kind: ProbeKind
    action: Object  # httpGet, tcpSocket, grpc or exec, as the spec has it
    initial_delay: float = 0.0
    period: float = 10.0
    timeout: float = 1.0
    successes: int = 1
    failures: int = 3
    grace_seconds: float | None = None


class Tally(msgspec.Struct, frozen=True):
    """The answers of a probe so far."""

    good: bool | None = None  # None: not enough answers yet
    answer: bool | None = None  # the last one
    streak: int = 0


def read(container: Object) -> list[Probe]:
    """Return the probes of a container, in the order they matter."""
    probes = []
    for kind in ProbeKind:
        spec = container.get(f"{kind}Probe")
        if spec:
            probes.append(_read_probe(kind, spec))
    return probes


def _read_probe(kind: ProbeKind, spec: Object) -> Probe:
    """Read a probe of a container's spec."""
    grace: Any = spec.get("terminationGracePeriodSeconds")
    return Probe(
        kind=kind,
        action=spec,
        initial_delay=float(spec.get("initialDelaySeconds") or 0),
        period=float(spec.get("periodSeconds") or 10),
        timeout=float(spec.get("timeoutSeconds") or 1),
        # The API allows only 1 for liveness and startup probes.
        successes=int(spec.get("successThreshold") or 1),
        failures=int(spec.get("failureThreshold") or 3),
        grace_seconds=None if grace is None else float(grace),
    )


def tally(probe: Probe, before: Tally, answer: bool) -> Tally:
    """Return the tally with one more answer."""
    streak = before.streak + 1 if answer == before.answer else 1
    needed = probe.successes if answer else probe.failures
    good = answer if streak >= needed else before.good
    return Tally(good, answer, streak)
