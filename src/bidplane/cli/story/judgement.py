"""The results of the demo's day: the market's, and a queue's with the same work and GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api.money import MICRO
from bidplane.cli.story.agents import AgentWork
from bidplane.cli.story.chronicle import Narrator
from bidplane.cli.story.day import AGENTS, HOURS, URGENT
from bidplane.ledger.records import Lease
from bidplane.sim.day import MarketDay, offered_rent
from bidplane.sim.first_come import QueuedJob, first_come, utilisation

_SECONDS = HOURS * 3600
_PRIORITIES = {agent.name: agent.priority for agent in AGENTS}


class AgentResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The GPU-hours of an agent and their cost; amounts are credits."""

    agent: str
    priority: int
    gpu_hours: float
    granted: float
    paid: float
    paid_per_hour: float  # and GPU
    offered_per_hour: float  # the average of what its leases offered
    compensation_paid: float
    compensation_received: float


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The day under one policy."""

    value: float  # GPU-hours done in time, each times its agent's priority
    utilisation: float  # by work that was done within the day
    done_in_time: int
    urgent_wait_seconds: int  # the longest
    urgent_in_time: int


class DayResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The day under the market, beside the same work in a queue."""

    seed: int
    jobs: int
    urgent_jobs: int
    value_of_all: float
    market: PolicyResult
    queue: PolicyResult
    agents: list[AgentResult]
    displacements: int
    leases: int
    highest_paid_percent: int  # of what it offered, of all leases the highest
    rounds: int
    transfers: int
    ledger_problem: str


def day_result(
    seed: int,
    works: Sequence[AgentWork],
    played: MarketDay,
    narrator: Narrator,
    domains: Sequence[tuple[str, int]],
) -> DayResult:
    """Evaluate the day, and the same work under first come, first served."""
    gpus = sum(size for _, size in domains)
    started, done = queue_times(works, domains)
    waits = [started[work.name] - work.at for work in works if work.agent == URGENT]
    unstarted = [_SECONDS] if len(narrator.urgent_waits) < len(waits) else []
    verification = played.verify()
    return DayResult(
        seed=seed,
        jobs=len(works),
        urgent_jobs=len(waits),
        value_of_all=round(sum(map(value, works)), 1),
        market=_policy_result(works, narrator.done, [*narrator.urgent_waits, *unstarted], gpus),
        queue=_policy_result(works, done, waits, gpus),
        agents=_agent_results(played),
        displacements=narrator.displacements,
        leases=len(played.leases),
        highest_paid_percent=max(map(_paid_percent, played.leases), default=0),
        rounds=played.rounds,
        transfers=verification.transfers,
        ledger_problem=verification.problem,
    )


def queue_times(
    works: Sequence[AgentWork], domains: Sequence[tuple[str, int]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return when each work starts and ends under first come, first served."""
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
    return {run.job: run.started for run in runs}, {run.job: run.ended for run in runs}


def value(work: AgentWork) -> float:
    """Return the value of a work: its GPU-hours times its agent's priority."""
    return _PRIORITIES[work.agent] * work.gpus * work.seconds / 3600


def _policy_result(
    works: Sequence[AgentWork],
    done: Mapping[str, float],
    urgent_waits: Sequence[float],
    gpus: int,
) -> PolicyResult:
    in_time = [work for work in works if done.get(work.name, _SECONDS + 1) <= work.due]
    finished = [work for work in works if done.get(work.name, _SECONDS + 1) <= _SECONDS]
    useful = sum(work.gpus * work.seconds for work in finished)
    return PolicyResult(
        value=round(sum(map(value, in_time)), 1),
        utilisation=round(utilisation(useful, gpus, _SECONDS), 4),
        done_in_time=len(in_time),
        urgent_wait_seconds=round(max(urgent_waits, default=0)),
        urgent_in_time=sum(work.agent == URGENT for work in in_time),
    )


def _agent_results(played: MarketDay) -> list[AgentResult]:
    bills, results = played.bills(), []
    for agent in AGENTS:
        bill = bills[agent.name]
        gpu_seconds = sum(
            stay.job.gpus * (stay.ended - stay.began)
            for stay in played.stays
            if stay.job.agent == agent.name
        )
        hours = gpu_seconds / 3600
        results.append(
            AgentResult(
                agent=agent.name,
                priority=agent.priority,
                gpu_hours=round(hours, 1),
                granted=_credits(bill.granted),
                paid=_credits(bill.rent),
                paid_per_hour=_credits(bill.rent / hours) if hours else 0.0,
                offered_per_hour=_credits(bill.offered / hours) if hours else 0.0,
                compensation_paid=_credits(bill.compensation_paid),
                compensation_received=_credits(bill.compensation_received),
            )
        )
    return results


def _paid_percent(lease: Lease) -> int:
    """The rent of a lease as a percentage of what it offered for its time, rounded up."""
    offered = offered_rent(lease)
    # A lease pays for a few seconds at least, however soon it is given back.
    paid = lease.charged - lease.displacement
    return -(-100 * paid // offered) if offered and paid > lease.minimum else 0


def _credits(micro: float) -> float:
    return round(micro / MICRO, 2)
