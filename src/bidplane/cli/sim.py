"""`bidplane sim …`: the results of a policy on a workload, in seconds instead of weeks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from bidplane.cli.common import print_table
from bidplane.errors import UserError
from bidplane.sim import plot, policies, workload
from bidplane.sim.cluster import failures
from bidplane.sim.engine import Costs, simulate
from bidplane.sim.exchange import MarketRules
from bidplane.sim.metrics import SimulationMetrics, measure
from bidplane.sim.traces import Trace, read

app = App(name="sim", help="Simulate a workload under a policy, in virtual time.")

ALL = ("fifo", "backfill", "priority", "fair", "las", "srtf", "exchange")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)  # cyclopts reads no structs
class SimulationSetup:
    """The workload and the fleet of a simulation."""

    trace: Annotated[
        Path | None, Parameter(help="A public workload (docs/simulator.md); else drawn.")
    ] = None
    jobs: Annotated[int, Parameter(help="How many jobs to draw, or to take of a trace.")] = 0
    nodes: Annotated[int | None, Parameter(help="How many nodes; else the trace's own, or 40.")] = (
        None
    )
    gpus_per_node: int = 8
    load: Annotated[float, Parameter(help="The work of drawn jobs, relative to the GPUs.")] = 1.2
    values: Annotated[bool, Parameter(help="Draw each job's value; else all are equal.")] = False
    node_hours: Annotated[float, Parameter(help="Mean hours between a node's failures.")] = 0.0
    restart_seconds: Annotated[int, Parameter(help="The time an interruption costs a job.")] = 40
    notice_seconds: Annotated[int, Parameter(help="The exchange's notice before it reclaims.")] = 30
    budget: Annotated[
        float,
        Parameter(help="Credits granted per hour, as a share of the fleet's value; 0: unlimited."),
    ] = 0.0
    seed: int = 0


_DEFAULT = SimulationSetup()


@app.command
def run(*, policy: str, setting: SimulationSetup = _DEFAULT, json: bool = False) -> None:
    """
    Simulate a workload under one policy. One seed gives one result.

    Policies: fifo, backfill, sjf, priority, fair, las (Tiresias), srtf, exchange (durations
    known), exchange-blind (unknown), exchange-worth (bids by the value of the work).

    For example:
        bidplane sim run --policy exchange --jobs 500 --nodes 8
        bidplane sim run --trace jobs.csv --policy las --json
        bidplane sim run --trace servegen/reason/deepseek-r1 --policy exchange-worth --nodes 2
    """
    policies.find(policy)  # refuse a wrong name before reading anything
    metrics = _simulate(policy, setting, _trace(setting))
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(metrics)).decode() + "\n")
    else:
        _table([metrics])


@app.command
def compare(
    *,
    policy: Annotated[
        tuple[str, ...], Parameter(help="Repeat for each; else the usual ones.", negative=())
    ] = ALL,
    setting: SimulationSetup = _DEFAULT,
    svg: Annotated[Path | None, Parameter(help="Also draw the comparison into this file.")] = None,
    json: bool = False,
) -> None:
    """
    Simulate one workload under several policies, side by side: average and p99 completion, queueing
    and makespan in hours, GPUs used, value delivered, urgent jobs in time, unfairly late jobs,
    GPU-hours lost to interruptions, and the number of interruptions.

    For example:
        bidplane sim compare --jobs 500 --nodes 8 --svg compare.svg
        bidplane sim compare --policy fifo --policy exchange --trace jobs.csv --values
    """
    for name in policy:
        policies.find(name)  # refuse a wrong name before simulating anything
    trace = _trace(setting)
    metrics = [_simulate(name, setting, trace) for name in policy]
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(metrics)).decode() + "\n")
    else:
        _table(metrics)
    if svg is not None:
        try:
            svg.write_text(plot.compare(metrics))
        except OSError as error:
            raise UserError(f"cannot write {svg}: {error.strerror}") from error


def _simulate(policy: str, setting: SimulationSetup, trace: Trace) -> SimulationMetrics:
    market = MarketRules(notice_seconds=setting.notice_seconds, budget=setting.budget)
    chosen_policy = policies.find(policy, market)
    jobs, nodes = trace.jobs, trace.nodes
    costs = Costs(restart=setting.restart_seconds, restart_large=setting.restart_seconds * 3 // 2)
    span = 2 * (max(job.arrives for job in jobs) + max(job.seconds for job in jobs))
    node_failures = (
        failures(
            nodes, mean_hours=setting.node_hours, repair_seconds=3600, span=span, seed=setting.seed
        )
        if setting.node_hours > 0
        else []
    )
    return measure(
        simulate(
            jobs,
            nodes,
            chosen_policy,
            kinds=trace.kinds,
            costs=costs,
            failures=node_failures,
            progress=_progress(policy),
        )
    )


def _trace(setting: SimulationSetup) -> Trace:
    """The jobs, and the nodes they run on."""
    _check(setting)
    declared_nodes = (setting.gpus_per_node,) * (40 if setting.nodes is None else setting.nodes)
    if setting.trace is not None:
        trace = read(setting.trace)
        jobs = trace.jobs[: setting.jobs] if setting.jobs else trace.jobs
        if trace.kinds and setting.nodes is not None:
            raise UserError(f"{setting.trace} has its own nodes: leave out --nodes")
    else:
        trace = Trace((), "drawn")
        count = setting.jobs or 500
        jobs = workload.generate(
            count, gpus=sum(declared_nodes), load=setting.load, seed=setting.seed
        )
    if setting.values:
        jobs = workload.with_values(jobs, seed=setting.seed)
    return trace._replace(jobs=jobs, nodes=trace.nodes or declared_nodes)


def _check(setting: SimulationSetup) -> None:
    if (setting.nodes is not None and setting.nodes < 1) or setting.gpus_per_node < 1:
        raise UserError("there must be a node with a GPU: see --nodes and --gpus-per-node")
    if setting.load <= 0:
        raise UserError("--load must be more than zero")
    for name in ("jobs", "node_hours", "restart_seconds", "notice_seconds", "budget"):
        if getattr(setting, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} must be zero or more")


def _progress(policy: str) -> Callable[[int, int], None]:
    reported_at = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= 2.0:
            reported_at = time.monotonic()
            print(f"{policy}: {done} of {total} jobs done", file=sys.stderr, flush=True)

    return report


_COLUMNS: dict[str, Callable[[SimulationMetrics], str]] = {  # times in hours; 80 columns are enough
    "policy": lambda m: m.policy,
    "avg": lambda m: _hours(m.average_completion),
    "p99": lambda m: _hours(m.p99_completion),
    "wait": lambda m: _hours(m.average_queueing),
    "span": lambda m: _hours(m.makespan),
    "used%": lambda m: f"{100 * m.utilisation:.1f}",
    "value%": lambda m: f"{100 * m.value_share:.1f}",
    "urg%": lambda m: f"{100 * m.urgent_in_time:.0f}",
    "unf%": lambda m: f"{100 * m.unfair:.0f}",
    "lost": lambda m: f"{m.wasted:,.0f}",
    "stops": lambda m: f"{m.preemptions}",
}


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.2f}" if hours < 10 else f"{hours:.1f}" if hours < 100 else f"{hours:.0f}"


def _table(metrics: list[SimulationMetrics]) -> None:
    rows = [[column(m) for column in _COLUMNS.values()] for m in metrics]
    print_table(list(_COLUMNS), rows, right=" ".join(list(_COLUMNS)[1:]))
