"""
Public workloads under every policy, in virtual time.

With --data, all traces in that folder: training jobs (`jobs/*.csv`), and of those with a published
fleet the later half, on three sizes of it; inference (`llm/`, `genai/`, `servegen/`) beside drawn
training jobs; and the packing of the openb cluster (`openb/`). Without: work drawn from a seed.

Each of our figures stands beside each peer's from the same run; the aim is set against the best of
them. `docs/simulator.md` says on which work the bidding rules were chosen.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple, TypedDict

import msgspec

from bidplane.bench import tracefigures as figures
from bidplane.bench.packing import results as packing_results
from bidplane.bench.report import BenchReport, Result, ratio_at_least, say
from bidplane.sim.engine import Costs, simulate
from bidplane.sim.metrics import SimulationMetrics, measure
from bidplane.sim.policies import find
from bidplane.sim.traces import Trace, read
from bidplane.sim.traces.requests import is_servegen
from bidplane.sim.workload import Job, generate, with_values

PROCESSES = 2
SEED = 8
BLIND = ("fifo", "backfill", "fair", "las")  # policies that do not know durations
KNOWING = (*BLIND, "sjf", "srtf")
VALUED = (*KNOWING, "priority")
_QUICK_JOBS = 300
_LOAD = 1.3  # of a fleet that a trace does not name: some jobs must wait
_QUICK_LOAD = 6.0  # of few jobs, which would otherwise hardly compete
_HOUR = 3600
_TELL_SECONDS = 15.0


class TraceSetting(NamedTuple):
    """A workload on a fleet."""

    name: str
    jobs: Sequence[Job]
    nodes: tuple[int, ...]
    kinds: tuple[str, ...] = ()
    costs: Costs = Costs()
    contention: float | None = None
    serves: bool = False  # requests beside training jobs: only their values differ
    published: bool = False  # True if there are published figures for it
    half: bool = False  # the later half of a trace: only durations known, and values

    @property
    def how(self) -> str:
        return f"{self.name}: {len(self.jobs)} jobs on {sum(self.nodes)} GPUs"


def run(*, quick: bool, data: Path | None) -> BenchReport:
    settings = [*_training(quick, data), *_serving(quick, data)] if data else []
    settings += [] if quick else [half for setting in settings for half in later_halves(setting)]
    settings = settings or [_drawn_setting(quick)]
    metrics = _simulate_all(settings)
    results = [result for setting in settings for result in _results(setting, metrics)]
    packed, how = packing_results(quick=quick, data=data)
    notes = [setting.how for setting in settings]
    if quick:
        notes.insert(
            0,
            f"quick: the first {_QUICK_JOBS} small jobs of larger traces, one of inference, and no"
            " halves",
        )
    notes.append(
        "a preemption costs 40 s, of more than 8 GPUs 60 s; the exchange gives 30 s notice"
    )
    notes.append(f"values from seed {SEED}")
    return BenchReport(name="traces", how="; ".join([*notes, how]), results=tuple(results + packed))


# Settings


def _drawn_setting(quick: bool) -> TraceSetting:
    count, nodes = (200, 4) if quick else (1500, 16)
    jobs = generate(count, gpus=8 * nodes, load=2.0, seed=SEED)
    return TraceSetting(f"drawn from seed {SEED}", jobs, (8,) * nodes)


def _training(quick: bool, data: Path) -> list[TraceSetting]:
    return [_job_setting(path, quick) for path in sorted((data / "jobs").glob("*.csv"))]


def _job_setting(path: Path, quick: bool) -> TraceSetting:
    """The setting of a trace of training jobs."""
    trace = read(path)
    name, jobs = path.stem, trace.jobs
    if trace.kinds:
        return TraceSetting(name, jobs, trace.nodes, trace.kinds, published=True)
    if name.startswith("shockwave"):
        # 32 V100, four to a machine; a job that did not run in the last round loses 20 s.
        gpus = 32
        return TraceSetting(
            name,
            jobs,
            (4,) * 8,
            costs=Costs(restart=20, restart_large=20),
            contention=len(jobs) / gpus,
            published=True,
        )
    if quick and len(jobs) > _QUICK_JOBS:
        jobs = [job for job in jobs if job.gpus <= 8][:_QUICK_JOBS]
        return TraceSetting(name, jobs, _fleet(jobs, _QUICK_LOAD))
    if name.startswith("philly"):
        return TraceSetting(name, jobs, (8,) * 40, published=True)
    return TraceSetting(name, jobs, _fleet(jobs))


def later_halves(setting: TraceSetting) -> list[TraceSetting]:
    """
    The later half of a trace, by arrival, on 0.75, 1 and 1.5 times its published fleet; none of
    others.
    """
    if not setting.published:
        return []
    jobs = sorted(setting.jobs, key=lambda job: job.arrives)[len(setting.jobs) // 2 :]
    moved = [msgspec.structs.replace(job, arrives=job.arrives - jobs[0].arrives) for job in jobs]
    return [
        setting._replace(
            name=f"{setting.name}, later half, {size:g} × the fleet",
            jobs=moved,
            **_scaled(setting, size),
            published=False,
            half=True,
        )
        for size in _SIZES
    ]


_SIZES = (0.75, 1.0, 1.5)


class _Nodes(TypedDict):
    nodes: tuple[int, ...]
    kinds: tuple[str, ...]


def _scaled(setting: TraceSetting, size: float) -> _Nodes:
    """So many times the machines of each kind, rounded."""
    alike = Counter(zip(setting.nodes, setting.kinds or ("",) * len(setting.nodes), strict=True))
    machines = [machine for machine, count in alike.items() for _ in range(round(size * count))]
    kinds = tuple(kind for _, kind in machines) if setting.kinds else ()
    return {"nodes": tuple(gpus for gpus, _ in machines), "kinds": kinds}


def _fleet(jobs: Sequence[Job], load: float = _LOAD) -> tuple[int, ...]:
    """Nodes of 8 GPUs, few enough that the work does not fit while jobs arrive."""
    span = max(1, max(job.arrives for job in jobs) - min(job.arrives for job in jobs))
    gpus = max(sum(job.work for job in jobs) / span / load, max(job.gpus for job in jobs))
    return (8,) * max(1, round(gpus / 8))


def _serving(quick: bool, data: Path) -> list[TraceSetting]:
    paths = sorted((data / "llm").glob("*.*")) + sorted((data / "genai").glob("*duty*"))
    paths += sorted({p.parent for p in (data / "servegen").glob("*/*/*.csv") if is_servegen(p)})
    if quick:
        paths = paths[1:2]
    return [_beside_training(read(path), path.name.partition(".")[0], quick) for path in paths]


def _beside_training(trace: Trace, name: str, quick: bool) -> TraceSetting:
    """
    A setting with at most a day of requests and drawn training jobs: together more than the fleet
    can do.
    """
    span = 24 * _HOUR
    while span > _HOUR and sum(job.arrives < span for job in trace.jobs) > _MOST_REPLICAS:
        span //= 2
    requests = [_truncated(job, span) for job in trace.jobs if job.arrives < span]
    end = max(job.arrives + job.seconds for job in requests)
    work = sum(job.work for job in requests)
    gpus = 8 * max(2, round(2 * work / end / 8))  # half of them for the requests, on average
    drawn = generate(_TRAINING // (4 if quick else 1), gpus=gpus, load=0.8, seed=SEED)
    # Scale the drawn jobs to the time span of the requests.
    faster = end / max(job.arrives for job in drawn)
    training = [
        msgspec.structs.replace(
            job, arrives=int(job.arrives * faster), seconds=max(1, int(job.seconds * faster))
        )
        for job in drawn
    ]
    return TraceSetting(
        f"{name} and training", [*requests, *training], (8,) * (gpus // 8), serves=True
    )


_TRAINING = 400
_MOST_REPLICAS = 1_200


def _truncated(job: Job, end: int) -> Job:
    """The job, cut off at `end`."""
    seconds = min(job.seconds, end - job.arrives)
    share = seconds / job.seconds
    return msgspec.structs.replace(job, seconds=seconds, requests=job.requests * share)


# Simulation


Key = tuple[str, str, str]  # setting, values, policy


def _runs_of(setting: TraceSetting) -> list[tuple[str, str]]:
    """The values and policies with which the setting is run."""
    equal = [("equal", name) for name in (*KNOWING, "exchange", "exchange-blind")]
    worth = [("differ", name) for name in (*VALUED, "exchange-worth")]
    if setting.half:
        return equal[:-1] + worth
    return worth if setting.serves else equal + worth


def _simulate_all(settings: Sequence[TraceSetting]) -> dict[Key, SimulationMetrics]:
    """Run every policy on every setting, each in a process of its own."""
    todo = [
        (setting, *values_and_policy)
        for setting in settings
        for values_and_policy in _runs_of(setting)
    ]
    # The slow ones first, so that none runs alone at the end.
    todo.sort(key=lambda item: ("exchange" not in item[2], -len(item[0].jobs)))
    say(f"traces: {len(todo)} runs, {PROCESSES} at a time …")
    metrics: dict[Key, SimulationMetrics] = {}
    with ProcessPoolExecutor(PROCESSES) as pool:
        running = {
            pool.submit(_simulate_one, name, setting, values): (setting.name, values, name)
            for setting, values, name in todo
        }
        for future in as_completed(running):
            key = running[future]
            metrics[key] = future.result()
            say(f"traces: {key[0]}, values {key[1]}, {key[2]}: {len(metrics)} of {len(todo)}")
    return metrics


def _simulate_one(name: str, setting: TraceSetting, values: str) -> SimulationMetrics:
    """Run one policy on one setting."""
    jobs = with_values(setting.jobs, seed=SEED) if values == "differ" else setting.jobs
    outcome = simulate(
        jobs,
        setting.nodes,
        find(name),
        kinds=setting.kinds,
        costs=setting.costs,
        progress=_progress_printer(f"traces: {setting.name}, values {values}, {name}"),
    )
    return measure(outcome, contention=setting.contention)


def _progress_printer(label: str) -> Callable[[int, int], None]:
    """
    A callback that prints how many jobs are done from time to time: the longest run takes minutes.
    """
    reported_at = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= _TELL_SECONDS:
            reported_at = time.monotonic()
            say(f"{label}: {done} of {total} jobs")

    return report


# Results


def _results(setting: TraceSetting, metrics: dict[Key, SimulationMetrics]) -> list[Result]:
    """The results of one setting."""

    def metrics_for(values: str) -> dict[str, SimulationMetrics]:
        return {key[2]: m for key, m in metrics.items() if key[:2] == (setting.name, values)}

    name, differ = setting.name, metrics_for("differ")
    if setting.serves:
        return figures.compare_with_peers(name, figures.SERVICES, differ, "exchange-worth", VALUED)
    equal = metrics_for("equal")
    if setting.half:
        return [
            *figures.compare_with_peers(name, figures.HALF_TIME, equal, "exchange", ("srtf",)),
            *figures.compare_with_peers(name, figures.HALF_USE, equal, "exchange", KNOWING),
            *figures.compare_with_peers(
                f"{name}, values differ", figures.HALF_VALUE, differ, "exchange-worth", VALUED
            ),
        ]
    known_title, blind_title = f"{name}, equal values", f"{name}, durations unknown"
    results = figures.compare_with_peers(known_title, figures.EQUAL, equal, "exchange", KNOWING)
    if setting.published:
        published = figures.PUBLISHED.get(name, {})
        results += figures.compare_with_published(known_title, equal["exchange"], published)
    tiresias = figures.COMPLETION._replace(aim=ratio_at_least(1.0))
    results += figures.compare_with_peers(
        blind_title, [tiresias], equal, "exchange-blind", ("las",)
    )
    results += figures.compare_with_peers(
        blind_title, figures.BLIND, equal, "exchange-blind", BLIND
    )
    results += figures.compare_with_peers(
        f"{name}, values differ", figures.WORTH, differ, "exchange-worth", VALUED
    )
    return results
