"""
First come, first served, as most GPU queues do today: for comparison.

The oldest job waits until a link domain has enough free GPUs, and all jobs behind it wait too.
Nothing is preempted.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec


class QueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the queue."""

    name: str
    arrives: float
    gpus: int
    seconds: float
    only: frozenset[int] = frozenset()  # the domains it may use, by number; empty is all


class JobRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job on its GPUs; a preempted job has several."""

    job: str
    gpus: int
    started: float
    ended: float


def first_come(jobs: Sequence[QueuedJob], domains: Sequence[int]) -> list[JobRun]:
    """
    Run the jobs in order of arrival. `domains`: the GPUs of each link domain. Raises ValueError
    for a job that no domain can hold.
    """
    free = list(domains)
    ending: list[tuple[float, int, int]] = []  # when, GPUs, domain
    runs = []
    now = 0.0
    for job in sorted(jobs, key=lambda job: (job.arrives, job.name)):
        allowed = job.only or range(len(domains))
        if job.gpus > max(domains[index] for index in allowed):
            raise ValueError(f"{job.name} asks for {job.gpus} GPUs; no domain has as many")
        now = max(now, job.arrives)
        while (domain := _fits(free, job, ending, now)) is None:
            now, gpus, domain_of_ended = heapq.heappop(ending)
            free[domain_of_ended] += gpus
        free[domain] -= job.gpus
        heapq.heappush(ending, (now + job.seconds, job.gpus, domain))
        runs.append(JobRun(job=job.name, gpus=job.gpus, started=now, ended=now + job.seconds))
    return runs


def _fits(
    free: list[int], job: QueuedJob, ending: list[tuple[float, int, int]], now: float
) -> int | None:
    """
    The domain with the fewest free GPUs that suffice, after the jobs that ended by `now` have
    left.
    """
    while ending and ending[0][0] <= now:
        _, gpus, domain = heapq.heappop(ending)
        free[domain] += gpus
    fitting = [
        (free_gpus, index)
        for index, free_gpus in enumerate(free)
        if free_gpus >= job.gpus and (not job.only or index in job.only)
    ]
    return min(fitting)[1] if fitting else None


def utilisation(useful_gpu_seconds: float, gpus: int, seconds: float) -> float:
    """The share of the fleet's time spent on useful work."""
    return useful_gpu_seconds / (gpus * seconds) if seconds > 0 else 0.0
