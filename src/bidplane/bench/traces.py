"""
Public workloads under every policy, in virtual time.

With --data: the Philly week on 40 nodes of 8 GPUs (`jobs/philly_w1106.csv`, Lucid's rules)
and the openb cluster's packing (`openb/`). Without: work drawn from a seed.

Each figure of ours stands beside each peer's from the same run; an aim stands where ours
meets the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from bidplane.bench.packing import results as packing_results
from bidplane.bench.report import (
    Aim,
    Report,
    Result,
    less,
    more,
    ratio_above,
    ratio_at_least,
    say,
)
from bidplane.sim.engine import simulate
from bidplane.sim.metrics import Metrics, measure
from bidplane.sim.policies import find
from bidplane.sim.workload import Job, generate, read_trace, with_values

PROCESSES = 2
SEED = 8
BLIND = ("fifo", "backfill", "fair", "las")  # those that know no durations
ALL = (*BLIND, "srtf")
VALUED = (*BLIND, "srtf", "priority")
CLEARLY = 1.05


class Setting(NamedTuple):
    jobs: Sequence[Job]
    nodes: tuple[int, ...]
    how: str


def run(*, quick: bool, data: Path | None) -> Report:
    setting = _setting(quick, data)
    equal = dict.fromkeys((*ALL, "exchange", "exchange-blind"), setting.jobs)
    valued = with_values(setting.jobs, seed=SEED)
    worth = dict.fromkeys((*VALUED, "exchange-worth"), valued)
    found = _play(
        setting,
        {("equal", n): j for n, j in equal.items()} | {("valued", n): j for n, j in worth.items()},
    )
    same = {name: found["equal", name] for name in equal}
    results = _completion("durations known", same, "exchange", ALL)
    results += _completion("durations unknown", same, "exchange-blind", BLIND)
    results += _value({name: found["valued", name] for name in worth})
    packed, how = packing_results(quick=quick, data=data)
    return Report(name="traces", how=f"{setting.how}; {how}", results=tuple(results + packed))


def _setting(quick: bool, data: Path | None) -> Setting:
    path = data / "jobs" / "philly_w1106.csv" if data else None
    if path is not None and path.exists():
        jobs, nodes = read_trace(path), 40
        how = f"{path.name}: {len(jobs)} jobs on {nodes} × 8 GPUs"
        if quick:
            jobs, nodes = [job for job in jobs if job.gpus <= 8][:500], 4
            how = f"quick: the first {len(jobs)} jobs of {path.name} on {nodes} × 8 GPUs"
    else:
        count, nodes = (300, 4) if quick else (1500, 16)
        jobs = generate(count, gpus=8 * nodes, load=2.0, seed=SEED)
        how = f"{'quick: ' if quick else ''}{count} jobs drawn from seed {SEED} on {nodes} × 8 GPUs"
    restart = "a preemption costs 40 s, of more than 8 GPUs 60 s"
    return Setting(jobs, (8,) * nodes, f"{how}, {restart}; values from seed {SEED}")


Key = tuple[str, str]


def _play(setting: Setting, wanted: dict[Key, Sequence[Job]]) -> dict[Key, Metrics]:
    """Every policy by itself, in processes of their own."""
    found: dict[Key, Metrics] = {}
    # The slow ones first, so that none is left to run alone at the end.
    order = sorted(wanted, key=lambda key: ("exchange" not in key[1], "backfill" not in key[1]))
    say(f"traces: {len(wanted)} runs of {len(setting.jobs)} jobs, {PROCESSES} at a time …")
    with ProcessPoolExecutor(PROCESSES) as pool:
        running = {
            pool.submit(_one, name, wanted[kind, name], setting.nodes): (kind, name)
            for kind, name in order
        }
        for done in as_completed(running):
            found[running[done]] = done.result()
            kind, name = running[done]
            say(f"traces: {name}, {kind} values, {len(found)} of {len(wanted)}")
    return found


def _one(name: str, jobs: Sequence[Job], nodes: Sequence[int]) -> Metrics:
    return measure(simulate(jobs, nodes, find(name)))


class Figure(NamedTuple):
    """One metric: how it is read, which way it points, what is aimed at with the best peer."""

    name: str
    unit: str
    read: Callable[[Metrics], float]
    is_more: bool
    aim: Aim | None = None


_COMPLETION = Figure(
    "average completion", "s", lambda m: m.average_completion, False, ratio_at_least(1.0)
)
_UTILISATION = Figure("utilisation", "share", lambda m: m.utilisation, True, ratio_above(1.0))
_OTHERS = (
    Figure("p99 completion", "s", lambda m: m.p99_completion, False),
    Figure("average queueing", "s", lambda m: m.average_queueing, False),
    Figure("p99 queueing", "s", lambda m: m.p99_queueing, False),
    Figure("makespan", "s", lambda m: float(m.makespan), False),
    Figure("wasted", "GPU-hours", lambda m: m.wasted, False),
    Figure("preemptions", "count", lambda m: float(m.preemptions), False),
)
_VALUE = (
    Figure("value delivered", "share", lambda m: m.value_share, True, ratio_at_least(CLEARLY)),
    Figure("urgent in time", "share", lambda m: m.urgent_in_time, True, ratio_at_least(1.0)),
    _UTILISATION,
    Figure("average completion", "s", lambda m: m.average_completion, False),
    *_OTHERS,
)


def _completion(
    title: str, found: dict[str, Metrics], ours: str, peers: Sequence[str]
) -> list[Result]:
    figures = (_COMPLETION, _UTILISATION, *_OTHERS)
    return [r for figure in figures for r in _beside(title, figure, found, ours, peers)]


def _value(found: dict[str, Metrics]) -> list[Result]:
    return [
        result
        for figure in _VALUE
        for result in _beside("values differ", figure, found, "exchange-worth", VALUED)
    ]


def _beside(
    title: str, figure: Figure, found: dict[str, Metrics], ours: str, peers: Sequence[str]
) -> list[Result]:
    """Ours beside each peer; the aim is set against the best of them."""
    values = {name: figure.read(found[name]) for name in peers}
    best = (max if figure.is_more else min)(values, key=lambda name: values[name])
    tell = more if figure.is_more else less
    return [
        tell(
            f"{title}: {figure.name}",
            figure.unit,
            figure.read(found[ours]),
            peer=value,
            peer_name=f"{name} (best)" if name == best else name,
            aim=figure.aim if name == best else None,
        )
        for name, value in values.items()
    ]
