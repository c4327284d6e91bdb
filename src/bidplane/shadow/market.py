"""
The same pods under the market and under queues, by three stated models of what they are worth.

A cluster does not record what a pod's work is worth. So each model says what it assumes, and the
reader decides which is nearest. Every policy plays the same jobs on the same nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from bidplane.core.shadow.model import ClusterRecording
from bidplane.core.shadow.waiting import SIZES, average, quantile, size_class
from bidplane.sim.engine import simulate
from bidplane.sim.policies import find
from bidplane.sim.traces.recorded import RecordedJob, nodes_for, recorded_jobs
from bidplane.sim.workload import Job

HAPPENED, MARKET = "happened", "market"
QUEUES = ("fifo", "backfill")
_HOUR = 3600.0
_SHORTEST_PATIENCE, _PATIENCE = 7200.0, 5.0  # seconds; times a job's length
_SERVICE_PATIENCE, _SERVICE_WORTH = 300.0, 5.0


class ValueModel(msgspec.Struct, frozen=True, kw_only=True):
    """An assumption about the worth of pods, and the bidders that go with it."""

    name: str
    statement: str
    policy: str  # of `sim.policies`
    apply: Callable[[RecordedJob], Job]


class PolicyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one policy under one model."""

    policy: str
    average_wait: float  # seconds
    p99_wait: float
    waits: Mapping[str, float]  # average, by size
    value_share: float  # of the worth that all pods had without waiting
    urgent_in_time: float | None  # None: no pod is urgent
    stops: int  # pods that were interrupted, and went on later


class ModelComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One model's worth, and all policies under it."""

    model: str
    statement: str
    figures: Sequence[PolicyFigures]


def _equal(recorded: RecordedJob) -> Job:
    return _patient(recorded.job, value=1.0)


def _by_work(recorded: RecordedJob) -> Job:
    return _patient(recorded.job, value=recorded.job.work / _HOUR)


def _services_first(recorded: RecordedJob) -> Job:
    job = _by_work(recorded)
    if not recorded.pod.is_service:
        return job
    return msgspec.structs.replace(
        job,
        value=_SERVICE_WORTH * job.value,
        patience=_SERVICE_PATIENCE,
        urgent=True,
        priority=1,
    )


def _patient(job: Job, *, value: float) -> Job:
    patience = max(_SHORTEST_PATIENCE, _PATIENCE * job.seconds)
    return msgspec.structs.replace(job, value=value, patience=patience)


MODELS: tuple[ValueModel, ...] = (
    ValueModel(
        name="equal",
        statement="Every pod is worth the same. Its worth falls evenly to nothing while it waits"
        " five times its own length (at least 2 h). Nobody knows how long a pod will run.",
        policy="exchange-blind",
        apply=_equal,
    ),
    ValueModel(
        name="work",
        statement="Every GPU-hour of work is worth the same, and worth falls as under `equal`."
        " Who bids knows how long the pod will run.",
        policy="exchange-worth",
        apply=_by_work,
    ),
    ValueModel(
        name="services",
        statement="As `work`; but a service's GPU-hour (of a Deployment, StatefulSet, or other"
        " owner that is no Job) is worth five times as much, and all of its worth is lost after"
        " 5 min.",
        policy="exchange-worth",
        apply=_services_first,
    ),
)


def compare_models(
    recording: ClusterRecording,
    models: Sequence[ValueModel] = MODELS,
    *,
    progress: Callable[[str, int, int], None] = lambda label, done, total: None,
) -> list[ModelComparison]:
    """Play a recording under every model and policy; nothing if no pod was scheduled in it."""
    recorded = recorded_jobs(recording)
    if not recorded:
        return []
    nodes = nodes_for(recording, [r.job for r in recorded])
    # Queues do not look at worth: one run serves all models.
    waits = {name: _waits(recorded, nodes, name, progress) for name in QUEUES}
    comparisons = []
    for model in models:
        valued = [r._replace(job=model.apply(r)) for r in recorded]
        figures = []
        if recording.waits_known:
            happened = {r.job.name: (r.waited, 0) for r in valued}
            figures.append(_figures(HAPPENED, valued, happened))
        figures += [_figures(name, valued, waits[name]) for name in QUEUES]
        label = f"market, {model.name}"
        market = _waits(valued, nodes, model.policy, progress, label)
        figures.append(_figures(MARKET, valued, market))
        comparisons.append(
            ModelComparison(model=model.name, statement=model.statement, figures=figures)
        )
    return comparisons


def _waits(
    recorded: Sequence[RecordedJob],
    nodes: Sequence[int],
    policy: str,
    progress: Callable[[str, int, int], None],
    label: str = "",
) -> Mapping[str, tuple[int, int]]:
    """Return each job's wait in seconds, and how often it was interrupted, under a policy."""
    outcome = simulate(
        [r.job for r in recorded],
        nodes,
        find(policy),
        progress=lambda done, total: progress(label or policy, done, total),
    )
    return {task.job.name: (task.waited, task.preemptions) for task in outcome.tasks}


def _figures(
    policy: str, recorded: Sequence[RecordedJob], waits: Mapping[str, tuple[int, int]]
) -> PolicyFigures:
    jobs = [r.job for r in recorded]
    by_size: dict[str, list[float]] = {name: [] for _, name in SIZES}
    for job in jobs:
        by_size[size_class(job.gpus)].append(waits[job.name][0])
    urgent = [job for job in jobs if job.urgent]
    in_time = sum(job.in_time_after(waits[job.name][0]) for job in urgent)
    all_waits = [float(waits[job.name][0]) for job in jobs]
    return PolicyFigures(
        policy=policy,
        average_wait=average(all_waits),
        p99_wait=quantile(all_waits, 0.99),
        waits={name: average(values) for name, values in by_size.items() if values},
        value_share=sum(job.worth_after(waits[job.name][0]) for job in jobs)
        / sum(job.value for job in jobs),
        urgent_in_time=in_time / len(urgent) if urgent else None,
        stops=sum(waits[job.name][1] for job in jobs),
    )
