"""`bidplane bench NAME`: our figures beside a peer's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from bidplane import bench as benches
from bidplane.bench.report import print_report
from bidplane.cli.common import console
from bidplane.errors import UserError


def bench(
    name: str,
    /,
    *,
    quick: bool = False,
    json: bool = False,
    data: Annotated[
        Path | None, Parameter(help="A folder of public workloads; else $BIDPLANE_DATA.")
    ] = None,
) -> None:
    """
    Run a benchmark, and print our figures beside a peer's from the same run.

    Exit code 1 means that an aim was missed. --quick ends within 45 seconds and says what
    it reduced. Benchmarks: market, traces, plane, nodes, agents, neighbours,
    activator, idle, pilot, ledger.

    For example:
        bidplane bench market --quick
        bidplane bench traces --data traces --json > traces.json
    """
    if data is None and (folder := os.environ.get("BIDPLANE_DATA")):
        data = Path(folder)
    if data is not None and not data.is_dir():
        raise UserError(f"{data} is not a folder: give --data one that holds the workloads")
    report = benches.find(name)(quick=quick, data=data)
    if json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        print_report(report, console)
    if not report.is_met:
        sys.exit(1)
