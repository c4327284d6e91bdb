"""What a day came to: the market's, and a queue's with the same work on the same GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bidplane.api.money import MICRO, format_credits, parse_credits
from bidplane.cli.chronicle import Chronicle
from bidplane.cli.day import CAST, HOURS
from bidplane.cli.story import Work
from bidplane.sim.first_come import Job, first_come, utilisation


class Paid(NamedTuple):
    """Micro-credits, as the ledger has them."""

    paid: int
    compensated: int


class Side(NamedTuple):
    """One way to run the day: when each work first ran, and when it was done."""

    started: Mapping[str, float]
    done: Mapping[str, float]


class Judgement(NamedTuple):
    bill: list[list[str]]
    beside: list[list[str]]
    ours: Side
    queue: Side


def judge(
    works: Sequence[Work],
    chronicle: Chronicle,
    paid: Mapping[str, Paid],
    domains: Sequence[tuple[str, int]],
    hour: float,
) -> Judgement:
    ours = Side(chronicle.first_start, chronicle.done)
    queue = _queue(works, domains)
    gpus = sum(size for _, size in domains)
    end = HOURS * hour
    chats = [work for work in works if work.agent == "chat"]

    def waited(side: Side) -> str:
        longest = max(side.started.get(work.name, end) - work.at for work in chats)
        return f"{longest / hour:.1f} h"

    def both(what: str, of: Callable[[Side], str]) -> list[str]:
        return [what, of(ours), of(queue)]

    worth = sum(_value(work, hour) for work in works)
    beside = [
        both("useful utilisation", lambda side: f"{_useful(works, side, end, gpus):.0%}"),
        both("value", lambda side: f"{value(works, side, hour):.0f} of {worth:.0f}"),
        both("done in time", lambda side: f"{len(_in_time(works, side))} of {len(works)}"),
        both("chat waited at most", waited),
    ]
    return Judgement(_bill(chronicle, works, paid, hour), beside, ours, queue)


def _queue(works: Sequence[Work], domains: Sequence[tuple[str, int]]) -> Side:
    jobs = [
        Job(
            name=work.name,
            arrives=work.at,
            gpus=work.gpus,
            seconds=work.seconds,
            only=frozenset(index for index, (pool, _) in enumerate(domains) if pool == work.pool),
        )
        for work in works
    ]
    runs = first_come(jobs, [size for _, size in domains])
    return Side({run.job: run.started for run in runs}, {run.job: run.ended for run in runs})


def _in_time(works: Sequence[Work], side: Side) -> list[Work]:
    return [work for work in works if work.name in side.done and side.done[work.name] <= work.due]


def _value(work: Work, hour: float) -> float:
    """What it is worth done in time: its price, for as long as it takes. In credits."""
    price = next(parse_credits(one.price) for one in CAST if one.name == work.agent)
    return price / MICRO * work.gpus * work.seconds / hour


def value(works: Sequence[Work], side: Side, hour: float) -> float:
    return sum(_value(work, hour) for work in _in_time(works, side))


def _useful(works: Sequence[Work], side: Side, end: float, gpus: int) -> float:
    done = [work for work in works if side.done.get(work.name, end + 1) <= end]
    return utilisation(sum(work.gpus * work.seconds for work in done), gpus, end)


def _bill(
    chronicle: Chronicle, works: Sequence[Work], paid: Mapping[str, Paid], hour: float
) -> list[list[str]]:
    """An hour of the story took `hour` seconds, which is what the ledger charged for."""
    agents = {work.name: work.agent for work in works}
    rows = []
    for character in CAST:
        runs = [run for run in chronicle.runs if agents[run.job] == character.name]
        hours = sum(run.gpus * (run.ended - run.started) for run in runs) / hour
        found = paid[character.name]
        scale = 3600 / hour
        rows.append(
            [
                character.name,
                f"{hours:.0f}",
                _rounded(found.paid * scale),
                _rounded(found.paid * scale / hours) if hours else "",
                _rounded(found.compensated * scale),
            ]
        )
    return rows


def _rounded(micro: float) -> str:
    return format_credits(round(micro / MICRO * 100) * MICRO // 100)
