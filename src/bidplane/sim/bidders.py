"""
How agents value their jobs, and what they bid: the autobidder, asked anew at each look.

A rule says what finishing a job is worth to its agent, spread over the work that is left;
`core.market.pacing` turns that, a budget and a deadline into a bid. The market never sees
more than a price per GPU-hour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bidplane.api.money import GPU_WEIGHT, LARGEST_PRICE
from bidplane.core.market import pacing
from bidplane.sim.engine import Task

# Chosen on drawn work (`generate`, seeds 1 to 6), _LONG also on a trace: see docs/simulator.md.
_IMPATIENT = 3 * 3600.0  # seconds of waiting that make a job worth as much again
_LONG, _STEEP = 20.0, 3.0  # times the usual length; and the power that what is longer grows by
_AHEAD = 3600.0  # seconds that an agent looks ahead
_FOREVER = 30 * 86_400.0  # seconds: what never loses its worth is bid for as if it did in these
_LEVEL, _LEVELS = 3600.0, 4.0  # GPU-seconds of the first level; each is so many times the last

# Of a job at a moment, where jobs usually take so many seconds: what finishing it is worth, against
# what it would be worth without having waited; and over how many GPU-seconds that is spread.
Rule = Callable[[Task, int, float], tuple[float, float]]


class Usual:
    """How long jobs take here, on average of those that have come so far."""

    def __init__(self) -> None:
        self._jobs, self._seconds = 0, 0

    def add(self, seconds: int) -> None:
        self._jobs, self._seconds = self._jobs + 1, self._seconds + seconds

    @property
    def seconds(self) -> float:
        return self._seconds / max(1, self._jobs)


def by_remaining_work(task: Task, now: int, usual: float) -> tuple[float, float]:
    """
    All jobs are worth the same: then the least work left is worth most per GPU-second. It
    grows with waiting, so that long jobs are not put off for ever.

    The few with many times more before them than is usual are the last to end whatever happens.
    Put off while shorter ones come, they would then run by themselves, on a fleet that is idle
    but for them: they are worth the more, the longer they are.
    """
    left = max(1, task.left(now))
    share = 1.0 + task.waiting(now) / _IMPATIENT
    share *= max(1.0, left / (_LONG * usual)) ** _STEEP
    return share, float(task.job.gpus * left)


def by_attained(task: Task, now: int, usual: float) -> tuple[float, float]:
    """
    How long a job takes is not known: what has had little is likely to end soon. In levels,
    so that jobs of one level do not take turns.
    """
    level, had = _LEVEL, task.service(now)
    while had >= level:
        level *= _LEVELS
    return 1.0, level


def by_worth(task: Task, now: int, usual: float) -> tuple[float, float]:
    """
    What another hour of waiting would cost it, per GPU-second it needs. What it is worth does not
    matter by itself: what can wait, and be worth as much then, lets others go first.
    """
    job, waited = task.job, task.waiting(now)
    worth = job.worth_after(waited)
    lost = max(worth - job.worth_after(waited + _AHEAD), worth * _AHEAD / _FOREVER)
    return lost / job.value if job.value else 0.0, float(job.gpus * max(1, task.left(now)))


class Quote(NamedTuple):
    value: int  # of a GPU-hour, micro-credits
    price: int  # what is bid for it


class Bidder:
    """The autobidder of one job."""

    def __init__(
        self, task: Task, rule: Rule, usual: Usual, *, worth: int, start: int, cover: int
    ) -> None:
        self._task, self._rule, self._usual = task, rule, usual
        self._worth = worth  # micro-credits: its value, and so what it may cost in all
        self._start, self._cover = start, cover
        self._pace = pacing.Pace()
        self.spent = 0  # by leases that are over

    def quote(self, now: int, *, at: int, spent: int) -> Quote:
        """`at`: the same moment in milliseconds; `spent`: by the lease it has, if any."""
        task, gpus = self._task, self._task.job.gpus
        share, work = self._rule(task, now, self._usual.seconds)
        value = min(LARGEST_PRICE, int(self._worth * share * 3600 / work))
        ran = task.service(now) // gpus
        plan = pacing.Plan(
            value=value,
            weight=GPU_WEIGHT * gpus,
            work_seconds=ran + max(1, int(work / gpus)),  # as far as the agent can tell
            budget=int(self._worth * max(1.0, share)),
            start=self._start,
            deadline=0,
        )
        done = pacing.Progress(spent=self.spent + spent, ran_seconds=ran)
        offer, self._pace = pacing.bid(plan, self._pace, done, now=at, cover_seconds=self._cover)
        return Quote(value, offer.price)
