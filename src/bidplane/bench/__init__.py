"""
Reproducible benchmarks: our figures beside a peer's, from the same run.

A benchmark is a module here with `run(*, quick, data) -> Report`; it is named below and
imported when it is asked for.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol

from bidplane.bench.report import BenchReport
from bidplane.errors import UserError

BENCHES = {
    "market": "clear, price and place a round; welfare against the optimum",
    "traces": "public workloads under every policy: completion time, value, packing",
    "plane": "planes made, what one costs idle, and carries; beside etcd + kube-apiserver",
    "nodes": "claims allocated, beside kube-scheduler; what nodes cost",
    "agents": "agents and pods from create to running; beside kube-scheduler with DRA",
    "neighbours": "a quiet agent's GET and bid → won while another attacks, beside before",
    "activator": "CPU and time a request and a held request cost; beside nginx, HAProxy, Go",
    "idle": "GPU hours and cold starts of idle services, beside fixed windows and the optimum",
    "pilot": "services let sleep and pre-warmed by rules, beside a window and an oracle",
    "ledger": "transfers per second in rounds, on SQLite and PostgreSQL",
}


class Bench(Protocol):
    """The function that runs a benchmark."""

    def __call__(self, *, quick: bool, data: Path | None) -> BenchReport: ...


def find(name: str) -> Bench:
    """The benchmark of that name; raises `UserError` with the known names for an unknown one."""
    if name not in BENCHES:
        raise UserError(f"there is no benchmark {name!r}: choose one of {', '.join(BENCHES)}")
    path = f"bidplane.bench.{name}"
    try:
        run: Bench = importlib.import_module(path).run
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == path:
            raise UserError(f"the benchmark {name!r} is not part of this build") from None
        raise UserError(
            f"the benchmark {name!r} needs the Python package {missing!r}: install it"
        ) from error
    return run
