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
from bidplane.sim.metrics import Metrics, measure
from bidplane.sim.workload import Job

app = App(name="sim", help="Play a workload under a policy, in virtual time.")

ALL = ("fifo", "backfill", "priority", "fair", "las", "srtf", "exchange")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)  # cyclopts reads no structs
class Setting:
    """What is played, on what."""

    trace: Annotated[Path | None, Parameter(help="A CSV of jobs; else they are drawn.")] = None
    jobs: Annotated[int, Parameter(help="How many to draw; of a trace, how many to take.")] = 0
    nodes: int = 40
    gpus_per_node: int = 8
    load: Annotated[float, Parameter(help="Of drawn jobs: what they ask for of the GPUs.")] = 1.2
    values: Annotated[bool, Parameter(help="Draw what each job is worth; else all are equal.")] = (
        False
    )
    node_hours: Annotated[float, Parameter(help="Mean hours between a node's failures.")] = 0.0
    restart_seconds: int = 40
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
    """
    found = _play(policy, setting)
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
    Play one workload under several policies, side by side.

    Examples:
        bidplane sim compare --jobs 500 --nodes 8 --svg compare.svg
        bidplane sim compare --policy fifo --policy exchange --trace jobs.csv --values
    """
    for name in policy:
        policies.find(name)  # a wrong name is refused before anything is played
    found = [_play(name, setting) for name in policy]
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        _table(found)
    if svg is not None:
        try:
            svg.write_text(plot.compare(found))
        except OSError as error:
            raise UserError(f"cannot write {svg}: {error.strerror}") from error


def _play(policy: str, setting: Setting) -> Metrics:
    chosen = policies.find(policy)
    nodes = [setting.gpus_per_node] * setting.nodes
    if setting.nodes < 1 or setting.gpus_per_node < 1:
        raise UserError("there must be a node with a GPU: see --nodes and --gpus-per-node")
    jobs = _jobs(setting)
    costs = Costs(restart=setting.restart_seconds, restart_large=setting.restart_seconds * 3 // 2)
    span = 2 * (max(job.arrives for job in jobs) + max(job.seconds for job in jobs))
    trouble = (
        failures(
            nodes, mean_hours=setting.node_hours, repair_seconds=3600, span=span, seed=setting.seed
        )
        if setting.node_hours > 0
        else []
    )
    progress = _progress(policy)
    return measure(simulate(jobs, nodes, chosen, costs=costs, failures=trouble, progress=progress))


def _jobs(setting: Setting) -> list[Job]:
    if setting.trace is not None:
        jobs = workload.read_trace(setting.trace)
        jobs = jobs[: setting.jobs] if setting.jobs > 0 else jobs
    else:
        gpus = setting.nodes * setting.gpus_per_node
        if setting.load <= 0:
            raise UserError("--load must be more than zero")
        jobs = workload.generate(
            setting.jobs if setting.jobs > 0 else 500,
            gpus=gpus,
            load=setting.load,
            seed=setting.seed,
        )
    return workload.with_values(jobs, seed=setting.seed) if setting.values else jobs


def _progress(policy: str) -> Callable[[int, int], None]:
    told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= 2.0:
            told = time.monotonic()
            print(f"{policy}: {done} of {total} jobs done", file=sys.stderr, flush=True)

    return tell


_COLUMNS: dict[str, Callable[[Metrics], str]] = {  # times in seconds; 80 columns are enough
    "policy": lambda m: m.policy,
    "average": lambda m: f"{m.average_completion:,.0f}",
    "p99": lambda m: f"{m.p99_completion:,.0f}",
    "queueing": lambda m: f"{m.average_queueing:,.0f}",
    "makespan": lambda m: f"{m.makespan:,}",
    "used": lambda m: f"{m.utilisation:.1%}",
    "value": lambda m: f"{m.value_share:.1%}",
    "urgent": lambda m: f"{m.urgent_in_time:.0%}",
    "lost": lambda m: f"{m.wasted:,.0f} h",
    "stops": lambda m: f"{m.preemptions:,}",
}


def _table(found: list[Metrics]) -> None:
    rows = [[column(m) for column in _COLUMNS.values()] for m in found]
    print_table(list(_COLUMNS), rows, right=" ".join(list(_COLUMNS)[1:]))
