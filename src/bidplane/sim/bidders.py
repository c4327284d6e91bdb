"""
The values that agents give their jobs, and the autobidder that bids for them.

A rule says what finishing a job is worth to its agent, spread over the remaining work;
`core.bidding.pacing` turns that, a budget and a deadline into a bid. The market never sees
more than a price per GPU-hour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bidplane.api.money import GPU_WEIGHT, LARGEST_PRICE
from bidplane.core.bidding import pacing
from bidplane.sim.engine import Task

# Chosen on drawn work (`generate`, seeds 1 to 6), _LONG also on a trace: see docs/simulator.md.
_IMPATIENT = 3 * 3600.0  # seconds of waiting that make a job worth as much again
_LONG, _STEEP = 20.0, 3.0  # times the average length; the power by which value grows beyond it
_AHEAD = 3600.0  # seconds that an agent looks ahead
_FOREVER = 30 * 86_400.0  # seconds in which a job that keeps its value is assumed to lose it
_LEVEL, _LEVELS = 3600.0, 4.0  # GPU-seconds of the first level; each is so many times the last

# Called with a task, the time and the average length of jobs. Returns the job's present value as a
# multiple of its value without waiting, and the GPU-seconds over which that value is spread.
Rule = Callable[[Task, int, float], tuple[float, float]]


class AverageLength:
    """The average length of all jobs that have arrived so far."""

    def __init__(self) -> None:
        self._jobs, self._seconds = 0, 0

    def add(self, seconds: int) -> None:
        self._jobs, self._seconds = self._jobs + 1, self._seconds + seconds

    @property
    def seconds(self) -> float:
        return self._seconds / max(1, self._jobs)


def by_remaining_work(task: Task, now: int, average: float) -> tuple[float, float]:
    """
    Value all jobs alike, so that the least remaining work is worth most per GPU-second. The value
    grows with waiting, so that long jobs are not put off for ever.

    The few jobs with many times the average length end last in any case. Put off in favour of
    shorter ones, they would then run alone on an idle fleet: so their value grows with their
    length.
    """
    remaining = max(1, task.left(now))
    share = 1.0 + task.waiting(now) / _IMPATIENT
    share *= max(1.0, remaining / (_LONG * average)) ** _STEEP
    return share, float(task.job.gpus * remaining)


def by_attained_service(task: Task, now: int, average: float) -> tuple[float, float]:
    """
    Value a job of unknown length by its past service: one that has had little is likely to end
    soon. In levels, so that jobs of one level do not take turns.
    """
    level, service = _LEVEL, task.service(now)
    while service >= level:
        level *= _LEVELS
    return 1.0, level


def by_worth(task: Task, now: int, average: float) -> tuple[float, float]:
    """
    Value a job by what another hour of waiting would cost it, per GPU-second it needs. Its value
    alone does not matter: a job that loses nothing by waiting lets others go first.
    """
    job, waited = task.job, task.waiting(now)
    value = job.worth_after(waited)
    loss = max(value - job.worth_after(waited + _AHEAD), value * _AHEAD / _FOREVER)
    return loss / job.value if job.value else 0.0, float(job.gpus * max(1, task.left(now)))


class PriceQuote(NamedTuple):
    """The value of a GPU-hour to a job, and the price it bids."""

    value: int  # of a GPU-hour, micro-credits
    price: int  # what is bid for it


class JobBidder:
    """The autobidder of one job."""

    def __init__(
        self, task: Task, rule: Rule, average: AverageLength, *, worth: int, start: int, cover: int
    ) -> None:
        self._task, self._rule, self._average = task, rule, average
        self._worth = worth  # micro-credits: its value, and so the most it may cost in all
        self._start, self._cover = start, cover
        self._pace = pacing.Pace()
        self.spent = 0  # micro-credits, by leases that have ended

    def quote(self, now: int, *, at: int, spent: int) -> PriceQuote:
        """
        The present value and bid. `at`: the same moment in milliseconds; `spent`: by its present
        lease, if any.
        """
        task, gpus = self._task, self._task.job.gpus
        share, work = self._rule(task, now, self._average.seconds)
        value = min(LARGEST_PRICE, int(self._worth * share * 3600 / work))
        ran_seconds = task.service(now) // gpus
        plan = pacing.PacingPlan(
            value=value,
            weight=GPU_WEIGHT * gpus,
            work_seconds=ran_seconds + max(1, int(work / gpus)),  # as far as the agent can tell
            budget=int(self._worth * max(1.0, share)),
            start=self._start,
            deadline=0,
        )
        progress = pacing.WorkProgress(spent=self.spent + spent, ran_seconds=ran_seconds)
        offer, self._pace = pacing.bid(
            plan, self._pace, progress, now=at, cover_seconds=self._cover
        )
        return PriceQuote(value, offer.price)
