"""`bidplane sim …`: what a policy would do with a workload, in seconds instead of weeks."""

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
from bidplane.sim.exchange import Market
from bidplane.sim.metrics import Metrics, measure
from bidplane.sim.traces import Trace, read

app = App(name="sim", help="Play a workload under a policy, in virtual time.")

ALL = ("fifo", "backfill", "priority", "fair", "las", "srtf", "exchange")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)  # cyclopts reads no structs
class Setting:
    """What is played, on what."""

    trace: Annotated[
        Path | None, Parameter(help="A public workload, see docs/simulator.md; else drawn.")
    ] = None
    jobs: Annotated[int, Parameter(help="How many to draw; of a trace, how many to take.")] = 0
    nodes: Annotated[int | None, Parameter(help="Else the trace's own, or 40.")] = None
    gpus_per_node: int = 8
    load: Annotated[float, Parameter(help="Of drawn jobs: what they ask for of the GPUs.")] = 1.2
    values: Annotated[bool, Parameter(help="Draw what each job is worth; else all are equal.")] = (
        False
    )
    node_hours: Annotated[float, Parameter(help="Mean hours between a node's failures.")] = 0.0
    restart_seconds: Annotated[int, Parameter(help="What an interruption costs a job.")] = 40
    notice_seconds: Annotated[int, Parameter(help="The exchange's, before it reclaims.")] = 30
    budget: Annotated[
        float,
        Parameter(help="What tenants are granted an hour, of what the fleet is worth; 0: enough."),
    ] = 0.0
    seed: int = 0


_DEFAULT = Setting()


@app.command
def run(*, policy: str, setting: Setting = _DEFAULT, json: bool = False) -> None:
    """
    Play a workload under one policy. One seed, one result.

    Policies: fifo, backfill, sjf, priority, fair, las (Tiresias), srtf, exchange (durations
    known), exchange-blind (unknown), exchange-worth (bids what the work is worth).

    Examples:
        bidplane sim run --policy exchange --jobs 500 --nodes 8
        bidplane sim run --trace jobs.csv --policy las --json
        bidplane sim run --trace servegen/reason/deepseek-r1 --policy exchange-worth --nodes 2
    """
    policies.find(policy)  # a wrong name is refused before anything is read
    found = _play(policy, setting, _trace(setting))
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        _table([found])


@app.command
def compare(
    *,
    policy: Annotated[
        tuple[str, ...], Parameter(help="Again for each; else the usual ones.", negative=())
    ] = ALL,
    setting: Setting = _DEFAULT,
    svg: Annotated[Path | None, Parameter(help="Also draw the comparison into this file.")] = None,
    json: bool = False,
) -> None:
    """
    Play one workload under several policies, side by side: average and p99 completion, queueing
    and makespan in hours, GPUs used, value delivered, urgent ones in time, jobs that were late
    by more than their share, GPU-hours lost to interruptions, and how many there were.

    Examples:
        bidplane sim compare --jobs 500 --nodes 8 --svg compare.svg
        bidplane sim compare --policy fifo --policy exchange --trace jobs.csv --values
    """
    for name in policy:
        policies.find(name)  # a wrong name is refused before anything is played
    trace = _trace(setting)
    found = [_play(name, setting, trace) for name in policy]
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        _table(found)
    if svg is not None:
        try:
            svg.write_text(plot.compare(found))
        except OSError as error:
            raise UserError(f"cannot write {svg}: {error.strerror}") from error


def _play(policy: str, setting: Setting, trace: Trace) -> Metrics:
    market = Market(notice_seconds=setting.notice_seconds, budget=setting.budget)
    chosen = policies.find(policy, market)
    jobs, nodes = trace.jobs, trace.nodes
    costs = Costs(restart=setting.restart_seconds, restart_large=setting.restart_seconds * 3 // 2)
    span = 2 * (max(job.arrives for job in jobs) + max(job.seconds for job in jobs))
    trouble = (
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
            chosen,
            kinds=trace.kinds,
            costs=costs,
            failures=trouble,
            progress=_progress(policy),
        )
    )


def _trace(setting: Setting) -> Trace:
    """What is played, and the nodes it is played on."""
    _check(setting)
    asked = (setting.gpus_per_node,) * (40 if setting.nodes is None else setting.nodes)
    if setting.trace is not None:
        trace = read(setting.trace)
        jobs = trace.jobs[: setting.jobs] if setting.jobs else trace.jobs
        if trace.kinds and setting.nodes is not None:
            raise UserError(f"{setting.trace} says which nodes there are: leave out --nodes")
    else:
        trace = Trace((), "drawn")
        count = setting.jobs or 500
        jobs = workload.generate(count, gpus=sum(asked), load=setting.load, seed=setting.seed)
    if setting.values:
        jobs = workload.with_values(jobs, seed=setting.seed)
    return trace._replace(jobs=jobs, nodes=trace.nodes or asked)


def _check(setting: Setting) -> None:
    if (setting.nodes is not None and setting.nodes < 1) or setting.gpus_per_node < 1:
        raise UserError("there must be a node with a GPU: see --nodes and --gpus-per-node")
    if setting.load <= 0:
        raise UserError("--load must be more than zero")
    for name in ("jobs", "node_hours", "restart_seconds", "notice_seconds", "budget"):
        if getattr(setting, name) < 0:
            raise UserError(f"--{name.replace('_', '-')} must be zero or more")


def _progress(policy: str) -> Callable[[int, int], None]:
    told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= 2.0:
            told = time.monotonic()
            print(f"{policy}: {done} of {total} jobs done", file=sys.stderr, flush=True)

    return tell


_COLUMNS: dict[str, Callable[[Metrics], str]] = {  # times in hours; 80 columns are enough
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


def _table(found: list[Metrics]) -> None:
    rows = [[column(m) for column in _COLUMNS.values()] for m in found]
    print_table(list(_COLUMNS), rows, right=" ".join(list(_COLUMNS)[1:]))
