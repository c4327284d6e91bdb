"""
First come, first served: what most GPU queues do today, for comparison.

The oldest job waits until a link domain has room for it, and everybody behind waits
with it. Nothing is preempted.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec


class Job(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arrives: float
    gpus: int
    seconds: float
    only: frozenset[int] = frozenset()  # the domains it may use, by number; empty is all


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One stay of a job on its GPUs; a preempted job has several."""

    job: str
    gpus: int
    started: float
    ended: float


def first_come(jobs: Sequence[Job], domains: Sequence[int]) -> list[Run]:
    """`domains`: the GPUs of each link domain. Raises ValueError for a job none can hold."""
    free = list(domains)
    ending: list[tuple[float, int, int]] = []  # when, GPUs, domain
    runs = []
    now = 0.0
    for job in sorted(jobs, key=lambda job: (job.arrives, job.name)):
        may = job.only or range(len(domains))
        if job.gpus > max(domains[index] for index in may):
            raise ValueError(f"{job.name} asks for {job.gpus} GPUs; no domain has as many")
        now = max(now, job.arrives)
        while (domain := _fits(free, job, ending, now)) is None:
            now, gpus, where = heapq.heappop(ending)
            free[where] += gpus
        free[domain] -= job.gpus
        heapq.heappush(ending, (now + job.seconds, job.gpus, domain))
        runs.append(Run(job=job.name, gpus=job.gpus, started=now, ended=now + job.seconds))
    return runs


def _fits(
    free: list[int], job: Job, ending: list[tuple[float, int, int]], now: float
) -> int | None:
    """The tightest domain with room, once what has ended by `now` has left."""
    while ending and ending[0][0] <= now:
        _, left, where = heapq.heappop(ending)
        free[where] += left
    room = [
        (have, index)
        for index, have in enumerate(free)
        if have >= job.gpus and (not job.only or index in job.only)
    ]
    return min(room)[1] if room else None


def utilisation(useful_gpu_seconds: float, gpus: int, seconds: float) -> float:
    """The share of the fleet's time that went into work that counted."""
    return useful_gpu_seconds / (gpus * seconds) if seconds > 0 else 0.0
