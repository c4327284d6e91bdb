"""The results of the demo's day: the market's, and a queue's with the same work and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bidplane.api.money import MICRO, format_credits, parse_credits
from bidplane.cli.story.agents import AgentWork
from bidplane.cli.story.chronicle import DayLog
from bidplane.cli.story.day import AGENTS, HOURS
from bidplane.sim.first_come import QueuedJob, first_come, utilisation


class Paid(NamedTuple):
    """The amounts that an agent paid and received, in micro-credits."""

    paid: int
    compensated: int


class DaySchedule(NamedTuple):
    """The start and end of each work under one policy."""

    started: Mapping[str, float]
    done: Mapping[str, float]


class DayComparison(NamedTuple):
    """The bill, and the market's figures beside the queue's."""

    bill: list[list[str]]
    beside: list[list[str]]
    market: DaySchedule
    queue: DaySchedule


def compare_with_queue(
    works: Sequence[AgentWork],
    day_log: DayLog,
    payments: Mapping[str, Paid],
    domains: Sequence[tuple[str, int]],
    hour: float,
) -> DayComparison:
    """Evaluate the day, and the same work under first come, first served."""
    market = DaySchedule(day_log.first_start, day_log.done)
    queue = _queue(works, domains)
    gpus = sum(size for _, size in domains)
    end = HOURS * hour
    chats = [work for work in works if work.agent == "chat"]

    def longest_chat_wait(schedule: DaySchedule) -> str:
        longest = max(schedule.started.get(work.name, end) - work.at for work in chats)
        return f"{longest / hour:.1f} h"

    def row(label: str, figure: Callable[[DaySchedule], str]) -> list[str]:
        return [label, figure(market), figure(queue)]

    worth = sum(_value(work, hour) for work in works)
    beside = [
        row("useful utilisation", lambda schedule: f"{_useful(works, schedule, end, gpus):.0%}"),
        row("value", lambda schedule: f"{value(works, schedule, hour):.0f} of {worth:.0f}"),
        row("done in time", lambda schedule: f"{len(_in_time(works, schedule))} of {len(works)}"),
        row("chat waited at most", longest_chat_wait),
    ]
    return DayComparison(_bill(day_log, works, payments, hour), beside, market, queue)


def _queue(works: Sequence[AgentWork], domains: Sequence[tuple[str, int]]) -> DaySchedule:
    """The schedule under first come, first served."""
    jobs = [
        QueuedJob(
            name=work.name,
            arrives=work.at,
            gpus=work.gpus,
            seconds=work.seconds,
            only=frozenset(index for index, (pool, _) in enumerate(domains) if pool == work.pool),
        )
        for work in works
    ]
    runs = first_come(jobs, [size for _, size in domains])
    return DaySchedule({run.job: run.started for run in runs}, {run.job: run.ended for run in runs})


def _in_time(works: Sequence[AgentWork], schedule: DaySchedule) -> list[AgentWork]:
    """The works done in time."""
    return [
        work
        for work in works
        if work.name in schedule.done and schedule.done[work.name] <= work.due
    ]


def _value(work: AgentWork, hour: float) -> float:
    """The value of a work done in time, in credits: its price for its whole duration."""
    price = next(parse_credits(agent.price) for agent in AGENTS if agent.name == work.agent)
    return price / MICRO * work.gpus * work.seconds / hour


def value(works: Sequence[AgentWork], schedule: DaySchedule, hour: float) -> float:
    """The value of all works done in time, in credits."""
    return sum(_value(work, hour) for work in _in_time(works, schedule))


def _useful(works: Sequence[AgentWork], schedule: DaySchedule, end: float, gpus: int) -> float:
    """The useful utilisation of the day."""
    finished = [work for work in works if schedule.done.get(work.name, end + 1) <= end]
    return utilisation(sum(work.gpus * work.seconds for work in finished), gpus, end)


def _bill(
    day_log: DayLog, works: Sequence[AgentWork], payments: Mapping[str, Paid], hour: float
) -> list[list[str]]:
    """
    A row per agent. The ledger charged `hour` seconds for an hour of the day, so amounts are
    scaled.
    """
    agents = {work.name: work.agent for work in works}
    rows = []
    for demo_agent in AGENTS:
        runs = [run for run in day_log.runs if agents[run.job] == demo_agent.name]
        hours = sum(run.gpus * (run.ended - run.started) for run in runs) / hour
        payment = payments[demo_agent.name]
        scale = 3600 / hour
        rows.append(
            [
                demo_agent.name,
                f"{hours:.0f}",
                _rounded(payment.paid * scale),
                _rounded(payment.paid * scale / hours) if hours else "",
                _rounded(payment.compensated * scale),
            ]
        )
    return rows


def _rounded(micro: float) -> str:
    return format_credits(round(micro / MICRO * 100) * MICRO // 100)
