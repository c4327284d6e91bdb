"""The measured results of a simulated run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from bidplane.sim.engine import SimulationOutcome


class SimulationMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one policy on one workload."""

    policy: str
    jobs: int
    average_completion: float  # seconds from arrival to end
    median_completion: float
    p99_completion: float
    average_queueing: float  # seconds waited, in all
    p99_queueing: float
    makespan: int
    utilisation: float  # useful GPU time, of all until the last job ended
    busy_utilisation: float  # GPUs at work, of all until the last job arrived
    value: float  # of all jobs when they were done
    value_share: float  # of the value that all jobs had without waiting
    urgent_in_time: (
        float  # of urgent jobs and requests: those that waited no longer than they could
    )
    wasted: float  # GPU-hours of work done again
    preemptions: int
    worst_fairness: float  # completion, against that on an even share of the GPUs; 1 is fair
    unfair: float  # the share of jobs for which that is above 1.05


UNFAIR = 1.05


def measure(outcome: SimulationOutcome, *, contention: float | None = None) -> SimulationMetrics:
    """
    Measure an outcome.

    Finish-time fairness as Themis and Shockwave define it: completion over the time the job takes
    alone, times the number of jobs that share a GPU. `contention` is that number; by default the
    work asked for, over the capacity while jobs arrived.
    """
    tasks = outcome.tasks
    completion = sorted(task.ended - task.job.arrives for task in tasks)
    queueing = sorted(task.waited for task in tasks)
    span = outcome.ended - outcome.began
    arrived = max(task.job.arrives for task in tasks)
    useful = sum(task.job.work for task in tasks)
    if contention is None:
        contention = useful / (outcome.gpus * max(1, arrived - outcome.began))
    fairness = [
        (task.ended - task.job.arrives) / (task.job.seconds * max(1.0, contention))
        for task in tasks
    ]
    worth = sum(task.job.worth_after(task.waited) for task in tasks)
    urgent = {task: task.job.requests or 1.0 for task in tasks if task.job.urgent}
    in_time = sum(n * task.job.in_time_after(task.waited) for task, n in urgent.items())
    return SimulationMetrics(
        policy=outcome.policy,
        jobs=len(tasks),
        average_completion=sum(completion) / len(tasks),
        median_completion=percentile(completion, 0.5),
        p99_completion=percentile(completion, 0.99),
        average_queueing=sum(queueing) / len(tasks),
        p99_queueing=percentile(queueing, 0.99),
        makespan=span,
        utilisation=useful / (outcome.gpus * span) if span else 0.0,
        busy_utilisation=_utilisation_until(outcome, arrived),
        value=worth,
        value_share=worth / sum(task.job.value for task in tasks),
        urgent_in_time=in_time / sum(urgent.values()) if urgent else 1.0,
        wasted=sum(task.wasted for task in tasks) / 3600,
        preemptions=sum(task.preemptions for task in tasks),
        worst_fairness=max(fairness),
        unfair=sum(ratio > UNFAIR for ratio in fairness) / len(tasks),
    )


def _utilisation_until(outcome: SimulationOutcome, end: int) -> float:
    """The share of all GPU time until `end` in which GPUs were in use."""
    span = end - outcome.began
    busy = sum(
        task.job.gpus * (min(last, end) - first)
        for task in outcome.tasks
        for first, last in task.intervals
        if first < end
    )
    return busy / (outcome.gpus * span) if span else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that is not below the given share of all values."""
    return ordered[min(len(ordered), max(1, math.ceil(share * len(ordered)))) - 1]
