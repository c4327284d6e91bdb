"""
Public workloads under every policy, in virtual time.

With --data, whatever is there: training jobs (`jobs/*.csv`), inference (`llm/`, `genai/`,
`servegen/`) beside training jobs that are drawn, and the openb cluster's packing (`openb/`).
Without: work drawn from a seed.

Each figure of ours stands beside each peer's from the same run; an aim stands where ours
meets the best of them. `docs/simulator.md` says on which work the bidding rules were chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import msgspec

from bidplane.bench import tracefigures as figures
from bidplane.bench.packing import results as packing_results
from bidplane.bench.report import Report, Result, ratio_at_least, say
from bidplane.sim.engine import Costs, simulate
from bidplane.sim.metrics import Metrics, measure
from bidplane.sim.policies import find
from bidplane.sim.traces import Trace, read
from bidplane.sim.traces.requests import is_servegen
from bidplane.sim.workload import Job, generate, with_values

PROCESSES = 2
SEED = 8
BLIND = ("fifo", "backfill", "fair", "las")  # those that know no durations
KNOWING = (*BLIND, "sjf", "srtf")
VALUED = (*KNOWING, "priority")
_QUICK_JOBS = 300
_LOAD = 1.3  # of a fleet that a trace does not name: somebody has to wait
_QUICK_LOAD = 6.0  # of few jobs, which would else hardly meet
_HOUR = 3600
_TELL_SECONDS = 15.0


class Setting(NamedTuple):
    """A workload on a fleet."""

    name: str
    jobs: Sequence[Job]
    nodes: tuple[int, ...]
    kinds: tuple[str, ...] = ()
    costs: Costs = Costs()
    contention: float | None = None
    serves: bool = False  # requests beside training jobs: only their values differ
    published: bool = False  # whether it is what others have published figures for

    @property
    def how(self) -> str:
        return f"{self.name}: {len(self.jobs)} jobs on {sum(self.nodes)} GPUs"


def run(*, quick: bool, data: Path | None) -> Report:
    settings = [*_training(quick, data), *_serving(quick, data)] if data else []
    settings = settings or [_drawn(quick)]
    found = _play(settings)
    results = [result for setting in settings for result in _results(setting, found)]
    packed, how = packing_results(quick=quick, data=data)
    told = [setting.how for setting in settings]
    if quick:
        told.insert(
            0, f"quick: the first {_QUICK_JOBS} small jobs of larger traces, one of inference"
        )
    told.append("a preemption costs 40 s, of more than 8 GPUs 60 s; the exchange gives 30 s notice")
    told.append(f"values from seed {SEED}")
    return Report(name="traces", how="; ".join([*told, how]), results=tuple(results + packed))


# What is played


def _drawn(quick: bool) -> Setting:
    count, nodes = (200, 4) if quick else (1500, 16)
    jobs = generate(count, gpus=8 * nodes, load=2.0, seed=SEED)
    return Setting(f"drawn from seed {SEED}", jobs, (8,) * nodes)


def _training(quick: bool, data: Path) -> list[Setting]:
    return [_of_jobs(path, quick) for path in sorted((data / "jobs").glob("*.csv"))]


def _of_jobs(path: Path, quick: bool) -> Setting:
    trace = read(path)
    name, jobs = path.stem, trace.jobs
    if trace.kinds:
        return Setting(name, jobs, trace.nodes, trace.kinds, published=True)
    if name.startswith("shockwave"):
        # 32 V100, four to a machine; who was absent from the round before loses 20 s.
        gpus = 32
        return Setting(
            name,
            jobs,
            (4,) * 8,
            costs=Costs(restart=20, restart_large=20),
            contention=len(jobs) / gpus,
            published=True,
        )
    if quick and len(jobs) > _QUICK_JOBS:
        jobs = [job for job in jobs if job.gpus <= 8][:_QUICK_JOBS]
        return Setting(name, jobs, _fleet(jobs, _QUICK_LOAD))
    if name.startswith("philly"):
        return Setting(name, jobs, (8,) * 40, published=True)
    return Setting(name, jobs, _fleet(jobs))


def _fleet(jobs: Sequence[Job], load: float = _LOAD) -> tuple[int, ...]:
    """Nodes of 8 GPUs, so few that what is asked for while jobs arrive does not fit."""
    span = max(1, max(job.arrives for job in jobs) - min(job.arrives for job in jobs))
    gpus = max(sum(job.work for job in jobs) / span / load, max(job.gpus for job in jobs))
    return (8,) * max(1, round(gpus / 8))


def _serving(quick: bool, data: Path) -> list[Setting]:
    paths = sorted((data / "llm").glob("*.*")) + sorted((data / "genai").glob("*duty*"))
    paths += sorted({p.parent for p in (data / "servegen").glob("*/*/*.csv") if is_servegen(p)})
    if quick:
        paths = paths[1:2]
    return [_beside_training(read(path), path.name.partition(".")[0], quick) for path in paths]


def _beside_training(trace: Trace, name: str, quick: bool) -> Setting:
    """Requests of a day at most, and drawn training jobs: together more than there is."""
    span = 24 * _HOUR
    while span > _HOUR and sum(job.arrives < span for job in trace.jobs) > _MOST_REPLICAS:
        span //= 2
    requests = [_cut(job, span) for job in trace.jobs if job.arrives < span]
    end = max(job.arrives + job.seconds for job in requests)
    work = sum(job.work for job in requests)
    gpus = 8 * max(2, round(2 * work / end / 8))  # half of them for the requests, on average
    drawn = generate(_TRAINING // (4 if quick else 1), gpus=gpus, load=0.8, seed=SEED)
    # As drawn, but in the time the requests take: all of it is shorter.
    faster = end / max(job.arrives for job in drawn)
    training = [
        msgspec.structs.replace(
            job, arrives=int(job.arrives * faster), seconds=max(1, int(job.seconds * faster))
        )
        for job in drawn
    ]
    return Setting(f"{name} and training", [*requests, *training], (8,) * (gpus // 8), serves=True)


_TRAINING = 400
_MOST_REPLICAS = 1_200


def _cut(job: Job, end: int) -> Job:
    seconds = min(job.seconds, end - job.arrives)
    share = seconds / job.seconds
    return msgspec.structs.replace(job, seconds=seconds, requests=job.requests * share)


# Playing


Key = tuple[str, str, str]  # setting, values, policy


def _wanted(setting: Setting) -> list[tuple[str, str]]:
    equal = [("equal", name) for name in (*KNOWING, "exchange", "exchange-blind")]
    worth = [("differ", name) for name in (*VALUED, "exchange-worth")]
    return worth if setting.serves else equal + worth


def _play(settings: Sequence[Setting]) -> dict[Key, Metrics]:
    """Every policy by itself, in processes of their own."""
    todo = [(setting, *wanted) for setting in settings for wanted in _wanted(setting)]
    # The slow ones first, so that none is left to run alone at the end.
    todo.sort(key=lambda item: ("exchange" not in item[2], -len(item[0].jobs)))
    say(f"traces: {len(todo)} runs, {PROCESSES} at a time …")
    found: dict[Key, Metrics] = {}
    with ProcessPoolExecutor(PROCESSES) as pool:
        running = {
            pool.submit(_one, name, setting, values): (setting.name, values, name)
            for setting, values, name in todo
        }
        for done in as_completed(running):
            key = running[done]
            found[key] = done.result()
            say(f"traces: {key[0]}, values {key[1]}, {key[2]}: {len(found)} of {len(todo)}")
    return found


def _one(name: str, setting: Setting, values: str) -> Metrics:
    jobs = with_values(setting.jobs, seed=SEED) if values == "differ" else setting.jobs
    outcome = simulate(
        jobs,
        setting.nodes,
        find(name),
        kinds=setting.kinds,
        costs=setting.costs,
        progress=_teller(f"traces: {setting.name}, values {values}, {name}"),
    )
    return measure(outcome, contention=setting.contention)


def _teller(what: str) -> Callable[[int, int], None]:
    """Says how many jobs are done, now and then: the longest run takes minutes."""
    told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            say(f"{what}: {done} of {total} jobs")

    return tell


# What it came to


def _results(setting: Setting, found: dict[Key, Metrics]) -> list[Result]:
    def of(values: str) -> dict[str, Metrics]:
        return {key[2]: m for key, m in found.items() if key[:2] == (setting.name, values)}

    name, differ = setting.name, of("differ")
    if setting.serves:
        return figures.beside(name, figures.SERVICES, differ, "exchange-worth", VALUED)
    equal = of("equal")
    known, blind = f"{name}, equal values", f"{name}, durations unknown"
    results = figures.beside(known, figures.EQUAL, equal, "exchange", KNOWING)
    if setting.published:
        published = figures.PUBLISHED.get(name, {})
        results += figures.beside_published(known, equal["exchange"], published)
    tiresias = figures.COMPLETION._replace(aim=ratio_at_least(1.0))
    results += figures.beside(blind, [tiresias], equal, "exchange-blind", ("las",))
    results += figures.beside(blind, figures.BLIND, equal, "exchange-blind", BLIND)
    results += figures.beside(
        f"{name}, values differ", figures.WORTH, differ, "exchange-worth", VALUED
    )
    return results
