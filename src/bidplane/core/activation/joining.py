"""
Several activators in front of one service: when it may sleep. Pure.

One of them, the leader, writes the demand. What it knows of the others is what they reported, and a
request may have come since. So it does not decide alone: it *proposes* to sleep. Each activator
judges its own traffic; if it agrees it stops sending, holds what comes from then on, and says so.
Once all have agreed, and nobody holds a request, the leader writes the demand, on condition that
the object is still the one that it judged. Else it withdraws the proposal, and all send again.

An activator reports before it sends its first request, so nobody sends whom the leader's write does
not know of.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import msgspec

from bidplane.api.endpoint import ActivatorReport, Demand
from bidplane.api.times import parse_rfc3339

Load = TypeVar("Load", Demand, ActivatorReport)


class Step(enum.Enum):
    """The leader's next step."""

    WAIT = "wait"
    PROPOSE = "propose"
    WITHDRAW = "withdraw"
    SLEEP = "sleep"


def may_sleep(*, holds: int, in_flight: int, idle_seconds: float, window: float) -> bool:
    """Return an activator's answer to a proposal, by its own traffic."""
    return not holds and not in_flight and idle_seconds >= window


def next_step(
    demand: Demand,
    own: ActivatorReport,
    reports: Iterable[ActivatorReport],
    *,
    is_quiet: bool,
    now: float,
    window: float,
) -> Step:
    """
    Return the leader's next step; `reports` are those of the other activators that may be alive.

    `is_quiet`: by the leader's own traffic and rules it may sleep.
    """
    if not demand.awake:
        return Step.WAIT
    everyone = [own, *reports]
    if demand.proposes:
        if any(report.holds or refuses(report, demand) for report in everyone):
            return Step.WITHDRAW
        agreed = all(r.answers == demand.proposal and r.agrees for r in everyone)
        return Step.SLEEP if agreed else Step.WAIT
    quiet = is_quiet and all(_is_quiet(report, now, window) for report in everyone[1:])
    return Step.PROPOSE if quiet else Step.WAIT


def refuses(report: ActivatorReport, demand: Demand) -> bool:
    return report.answers == demand.proposal and not report.agrees


def _is_quiet(report: ActivatorReport, now: float, window: float) -> bool:
    last = parse_rfc3339(report.last_request) if report.last_request else 0.0
    return may_sleep(
        holds=report.holds, in_flight=report.in_flight, idle_seconds=now - last, window=window
    )


def counted_reports(
    reports: Mapping[str, ActivatorReport], own: str, counts: Callable[[str, str], bool]
) -> list[ActivatorReport]:
    """Return the reports of the other activators; `counts` tells if a name's life may go on."""
    return [r for name, r in reports.items() if name != own and counts(name, r.life)]


def is_of_another(before: Demand | None, written: Demand, own: Collection[Demand]) -> bool:
    """
    Tell if another one led meanwhile, and wrote this demand: then it is what a leader goes on from.

    `before` was there the last time, `own` are those that this activator wrote.
    """
    return written != before and written not in own


def asks_to_wake(demand: Demand, reports: Iterable[ActivatorReport]) -> bool:
    """Tell if an activator holds a request that may wake the service from this demand."""
    return not demand.awake and any(report.wakes == demand.number for report in reports)


def joined(demand: Demand, own: ActivatorReport, reports: Iterable[ActivatorReport]) -> Demand:
    """Return the demand with the traffic of all activators."""
    everyone = [own, *reports]
    drained = min(report.drained for report in everyone)
    same = all(report.drained == drained for report in everyone)
    free = set.intersection(*(set(report.free_pods) for report in everyone)) if same else set()
    return msgspec.structs.replace(
        demand,
        last_request=max(report.last_request for report in everyone),
        holds=sum(report.holds for report in everyone),
        in_flight=sum(report.in_flight for report in everyone),
        concurrency=sum(report.concurrency for report in everyone),
        recent=sum(report.recent for report in everyone),
        whole_window=all(report.whole_window for report in everyone),
        drained=drained,
        free_pods=tuple(sorted(free)),
    )
