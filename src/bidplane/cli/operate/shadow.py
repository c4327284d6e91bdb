"""`bidplane shadow`: what a cluster's GPUs did, and what the market would have done."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from bidplane.cli.common import Json, print_json
from bidplane.cli.gate.audit import duration
from bidplane.cli.operate.doctor import default_kubeconfig
from bidplane.core.shadow.model import ClusterRecording
from bidplane.errors import UserError
from bidplane.kube.kubeconfig import client_from
from bidplane.machinery.clock import SystemClock
from bidplane.shadow import text
from bidplane.shadow.cluster import watch_cluster
from bidplane.shadow.history import read_history
from bidplane.shadow.market import MODELS, ValueModel, compare_models
from bidplane.shadow.page import page
from bidplane.shadow.report import ListPrice, report_of
from bidplane.sim.traces.recorded import read_recording
from bidplane.telemetry.prometheus import PrometheusReader

_SAY_SECONDS = 2.0
_QUERY_SECONDS = 120.0  # of a day of a large cluster
_LONGEST_STEP = 3600
_NAMES = ", ".join(model.name for model in MODELS)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)  # cyclopts reads no structs
class ShadowSource:
    """The source of a recording."""

    kubeconfig: Annotated[
        Path | None, Parameter(help="The cluster's kubeconfig; else kubectl's own.")
    ] = None
    context: Annotated[str, Parameter(help="The kubeconfig's context; else its current one.")] = ""
    for_: Annotated[str, Parameter(name="--for", help="How long to watch, as 30m or 8h.")] = "10m"
    prometheus: Annotated[
        str, Parameter(help="The address of a Prometheus with DCGM's series.")
    ] = ""
    prometheus_token_file: Annotated[
        Path | None, Parameter(help="A file with the bearer token for it.")
    ] = None
    prometheus_ca_file: Annotated[
        Path | None, Parameter(help="A file with the authority that signed its certificate.")
    ] = None
    since: Annotated[
        str, Parameter(help="Read the past from Prometheus instead of watching, as 14d.")
    ] = ""
    trace: Annotated[
        Path | None, Parameter(help="A file of --save: report on it again, without a cluster.")
    ] = None
    step: Annotated[str, Parameter(help="The length of one measurement of a GPU.")] = ""
    idle_below: Annotated[
        float, Parameter(help="A GPU is idle while it is never busier than this, in percent.")
    ] = 1.0
    resource: Annotated[
        str, Parameter(help="The resource by which pods ask a device plugin for GPUs.")
    ] = "nvidia.com/gpu"


_DEFAULT = ShadowSource()


def shadow(
    *,
    source: ShadowSource = _DEFAULT,
    price: Annotated[float | None, Parameter(help="The list price of a GPU-hour.")] = None,
    currency: Annotated[str, Parameter(help="The currency of --price.")] = "USD",
    model: Annotated[
        tuple[str, ...],
        Parameter(help=f"Repeat for each: {_NAMES}, or none; else all.", negative=()),
    ] = (),
    save: Annotated[Path | None, Parameter(help="Save the recording, for `bidplane sim`.")] = None,
    html: Annotated[Path | None, Parameter(help="Also write the report as one HTML page.")] = None,
    json: Json = False,
) -> None:
    """
    Look at a cluster without changing anything: idle GPU-hours by owner, waiting by job size, and
    what the market would have done with the same pods.

    Only get, list and watch are used, on pods, nodes, ResourceClaims and ResourceSlices. With
    --since, only a Prometheus with kube-state-metrics and DCGM's series is read. What is missing
    is named, with what it costs.

    For example:
        bidplane shadow --kubeconfig viewer.kubeconfig --for 8h --save day.json
        bidplane shadow --prometheus http://127.0.0.1:9090 --since 14d --price 2.5
        bidplane sim compare --trace day.json --policy fifo --policy exchange
    """
    models = _models(model)
    if price is not None and not 0 <= price < 1e9:
        raise UserError("--price must be zero or more")
    recording = _recording(source)
    if save is not None:
        _write(save, msgspec.json.encode(recording))
    named_price = None if price is None else ListPrice(price, currency)
    report = report_of(recording, [], price=named_price)
    if not json:  # the simulator may take minutes
        _print(text.facts_of(report))
    comparisons = compare_models(recording, models, progress=_Teller()) if models else []
    report = msgspec.structs.replace(report, models=comparisons)
    if html is not None:
        _write(html, page(report).encode())
    if json:
        print_json(report)
    else:
        _print(text.results_of(report))


def _models(names: tuple[str, ...]) -> list[ValueModel]:
    """The value models of these names."""
    known_models = {model.name: model for model in MODELS}
    if names == ("none",):
        return []
    for name in names:
        if name not in known_models:
            raise UserError(f"there is no value model {name!r}: choose {_NAMES}, or none")
    return [known_models[name] for name in names] or list(MODELS)


def _recording(source: ShadowSource) -> ClusterRecording:
    if not 0 <= source.idle_below <= 100:
        raise UserError("--idle-below is a share of time in percent, from 0 to 100")
    if source.trace is not None:
        return read_recording(source.trace)
    if source.since:
        if not source.prometheus:
            raise UserError("--since reads a Prometheus: name it with --prometheus URL")
        return asyncio.run(_past(source))
    return asyncio.run(_present(source))


async def _past(source: ShadowSource) -> ClusterRecording:
    reader, now = _prometheus(source), SystemClock().now()
    since = duration("--since", source.since)
    teller = _Teller()

    def progress(moment: float) -> None:
        teller("reading, hours", int(moment - now + since) // 3600, since // 3600)

    try:
        return await read_history(
            reader,
            f"Prometheus {source.prometheus}",
            begin=now - since,
            end=now,
            step=_step(source, "5m"),
            resource=source.resource,
            below=source.idle_below,
            progress=progress,
        )
    finally:
        await reader.close()


async def _present(source: ShadowSource) -> ClusterRecording:
    seconds = duration("--for", source.for_)
    client = client_from(source.kubeconfig or default_kubeconfig(), context=source.context)
    reader = _prometheus(source) if source.prometheus else None
    print(f"watching {client.url} for {source.for_} …", file=sys.stderr, flush=True)
    try:
        return await watch_cluster(
            client,
            f"cluster {client.url}",
            clock=SystemClock(),
            seconds=seconds,
            step=_step(source, "1m"),
            resource=source.resource,
            below=source.idle_below,
            prometheus=reader,
        )
    finally:
        await client.close()
        if reader is not None:
            await reader.close()


def _prometheus(source: ShadowSource) -> PrometheusReader:
    token, ca_file = "", source.prometheus_ca_file
    try:
        if source.prometheus_token_file is not None:
            token = source.prometheus_token_file.read_text().strip()
        return PrometheusReader(
            source.prometheus,
            token=token,
            ca_file=None if ca_file is None else str(ca_file),
            seconds=_QUERY_SECONDS,
        )
    except OSError as error:
        file = error.filename or ca_file
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error


def _step(source: ShadowSource, default: str) -> int:
    step = duration("--step", source.step or default)
    if step > _LONGEST_STEP:
        raise UserError("--step must be at most 1h: within one step a pause is not seen")
    return step


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


class _Teller:
    """Prints progress on standard error, every two seconds."""

    def __init__(self) -> None:
        self._reported_at = time.monotonic()

    def __call__(self, label: str, done: int, total: int) -> None:
        if time.monotonic() - self._reported_at >= _SAY_SECONDS:
            self._reported_at = time.monotonic()
            print(f"{label}: {done} of {total}", file=sys.stderr, flush=True)
