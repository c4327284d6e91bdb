"""`bidplane doctor`: can a Kubernetes cluster be a host, and what stands in the way?"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from bidplane.cli.common import Json, console, print_json
from bidplane.core.diagnosis import ClusterFacts, Finding, Level, diagnose
from bidplane.errors import UserError
from bidplane.kube.kubeconfig import client_from
from bidplane.kube.survey import survey
from bidplane.machinery.clock import SystemClock
from bidplane.telemetry.prometheus import PrometheusReader

_MARKS = {Level.OK: "ok", Level.NOTE: "note", Level.PROBLEM: "PROBLEM"}
_STYLES = {Level.OK: "green", Level.NOTE: "yellow", Level.PROBLEM: "bold red"}


def doctor(
    *,
    kubeconfig: Annotated[
        Path | None, Parameter(help="The cluster's kubeconfig; else kubectl's own.")
    ] = None,
    context: Annotated[str, Parameter(help="The kubeconfig's context; else its current one.")] = "",
    prometheus: Annotated[
        str, Parameter(help="The address of the Prometheus that scrapes dcgm-exporter.")
    ] = "",
    json: Json = False,
) -> None:
    """
    Diagnose a Kubernetes cluster: can its GPUs be sold, and what stands in the way?

    Each line says what was found, what it costs, and the command that mends it. Nothing on the
    cluster is changed: objects are only sent as dry-runs. The exit code is 0 without a problem,
    else 1.

    For example:
        bidplane doctor --kubeconfig admin.kubeconfig
        bidplane doctor --context staging --prometheus http://127.0.0.1:9090
        bidplane doctor --json | jq '.findings[] | select(.level == "problem")'
    """
    path = kubeconfig or default_kubeconfig()
    facts = asyncio.run(_facts(path, context, prometheus))
    findings = diagnose(facts)
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    if json:
        print_json(
            {
                "version": facts.version,
                "ready": not problems,
                "findings": [msgspec.to_builtins(finding) for finding in findings],
            }
        )
    else:
        for finding in findings:
            _print(finding)
        console.print(_summary(problems), markup=False)
    sys.exit(1 if problems else 0)


def default_kubeconfig() -> Path:
    """Return the kubeconfig that kubectl would read."""
    listed = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(listed) if listed else Path.home() / ".kube" / "config"
    if not path.exists():
        raise UserError(f"there is no kubeconfig {path}: name one with --kubeconfig FILE")
    return path


async def _facts(path: Path, context: str, prometheus: str) -> ClusterFacts:
    clock = SystemClock()
    client = client_from(path, context=context)
    try:
        facts = await survey(client, now=clock.now)
    finally:
        await client.close()
    if not prometheus:
        return facts
    reader = PrometheusReader(prometheus)
    try:
        age, by_pod = await reader.freshness()
    finally:
        await reader.close()
    return msgspec.structs.replace(
        facts, prometheus=prometheus, metrics_age=age, metrics_by_pod=by_pod
    )


def _print(finding: Finding) -> None:
    mark = _MARKS[finding.level]
    console.print(f"{mark:8}", style=_STYLES[finding.level], end="")
    console.print(f"{finding.check}: {finding.fact}", markup=False)
    if finding.cost:
        console.print(f"          {finding.cost}", markup=False)
    if finding.command:
        console.print(f"          > {finding.command}", markup=False, soft_wrap=True)


def _summary(problems: int) -> str:
    if not problems:
        return "\nnothing stands in the way"
    return f"\n{problems} {'problem' if problems == 1 else 'problems'}; see above"
