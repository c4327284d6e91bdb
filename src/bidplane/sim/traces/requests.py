"""
Inference: requests that cannot wait, as the GPUs a service needs to answer them.

Nobody bids for a single request: a service holds as many GPUs as its requests of the
moment need, and asks for more when more come. So each minute's (or bin's) requests are
counted as GPU-seconds, and the GPUs that takes become jobs: the n-th GPU is one for as long
as at least n are needed. A job carries the requests that fall to it; those that come
while it waits for longer than a request may are late. All are urgent.

What a GPU can do is assumed, the same for every policy: see the constants.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bidplane.errors import UserError
from bidplane.sim.traces.lines import number, numbered, rows
from bidplane.sim.traces.trace import Trace
from bidplane.sim.workload import Job

WINDOW = 60  # seconds, for which requests are counted together
PATIENCE = 10.0  # seconds a request may wait for its GPU
PROMPT_TOKENS = 8_000  # a second, that one GPU reads
OUTPUT_TOKENS = 1_000  # a second, that one GPU writes, for all it serves at once
REQUESTS = 4.0  # a second, that one GPU answers where tokens are not known
_BIN = 600  # seconds, of ServeGen
_MOST_GPUS = 100_000
_CHUNK = "chunk-*-trace.csv"


def read_azure(path: Path) -> Trace:
    """Azure LLM: TIMESTAMP, ContextTokens, GeneratedTokens."""
    found = []
    for where, row in rows(path, ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]):
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise UserError(f"{where}: {row['TIMESTAMP']!r} is not a time") from None
        prompt = number(row["ContextTokens"], where, "ContextTokens")
        output = number(row["GeneratedTokens"], where, "GeneratedTokens")
        found.append((at, _tokens(prompt, output)))
    return _of_requests(path, found)


class _Mooncake(msgspec.Struct):
    timestamp: float  # milliseconds
    input_length: float
    output_length: float


def read_mooncake(path: Path) -> Trace:
    """Mooncake: a JSON object per line."""
    found = []
    for where, line in numbered(path):
        try:
            request = msgspec.json.decode(line, type=_Mooncake)
        except msgspec.MsgspecError as error:
            raise UserError(f"{where} cannot be read: {error}") from None
        if min(request.timestamp, request.input_length, request.output_length) < 0:
            raise UserError(f"{where}: a time and tokens must be 0 or more")
        found.append(
            (request.timestamp / 1000, _tokens(request.input_length, request.output_length))
        )
    return _of_requests(path, found)


def _tokens(prompt: float, output: float) -> float:
    """GPU-seconds of a request."""
    return prompt / PROMPT_TOKENS + output / OUTPUT_TOKENS


def _of_requests(path: Path, found: list[tuple[float, float]]) -> Trace:
    if not found:
        raise UserError(f"{path} has no request in it")
    first = min(at for at, _ in found)
    work: dict[int, float] = {}
    counts: dict[int, float] = {}
    for at, seconds in found:
        window = int(at - first) // WINDOW
        work[window] = work.get(window, 0.0) + seconds
        counts[window] = counts.get(window, 0.0) + 1
    name = path.name.partition(".")[0]
    jobs = replicas(name, work, counts, window=WINDOW, where=str(path))
    return Trace(jobs, f"{path.name}: {len(found)} requests as {len(jobs)} urgent jobs")


def is_servegen(path: Path) -> bool:
    """A folder of chunks, or one of them: six columns without a header."""
    if path.is_dir():
        return any(path.glob(_CHUNK))
    return path.match(_CHUNK)


def read_servegen(path: Path) -> Trace:
    """ServeGen: of each client, in bins of ten minutes: start, requests a second, how bursty."""
    files = sorted(path.glob(_CHUNK)) if path.is_dir() else [path]
    rates: dict[int, float] = {}
    for file in files:
        for where, line in numbered(file):
            values = line.split(",")
            if len(values) != 6:
                raise UserError(f"{where}: it has {len(values)} values; ServeGen's lines have 6")
            start = number(values[0], where, "the start of a bin")
            rate = number(values[1], where, "the rate")
            bin = int(start) // _BIN
            rates[bin] = rates.get(bin, 0.0) + rate
    if not any(rates.values()):
        raise UserError(f"{path} has no request in it")
    counts = {bin: rate * _BIN for bin, rate in rates.items()}
    work = {bin: count / REQUESTS for bin, count in counts.items()}
    jobs = replicas(path.name, work, counts, window=_BIN, where=str(path))
    total = sum(counts.values())
    return Trace(
        jobs,
        f"{path.name}: {total:,.0f} requests of {len(files)} clients as {len(jobs)} urgent jobs",
    )


def read_duty(path: Path) -> Trace:
    """
    Alibaba's genai: of each pod, at about each minute, the percent of time its GPU was busy.
    All pods are one service: what they do together is what GPUs it needs.
    """
    samples: list[tuple[float, float]] = []
    for where, row in rows(path, ["value", "timestamp_anon", "container_ip"]):
        at = number(row["timestamp_anon"], where, "the time")
        duty = number(row["value"], where, "the duty cycle")
        if duty > 100:
            raise UserError(f"{where}: a duty cycle of {duty:g} is more than 100 percent")
        samples.append((at, duty))
    if not samples:
        raise UserError(f"{path} has no sample in it")
    first = min(at for at, _ in samples)
    times = sorted({at for at, _ in samples})
    gaps = sorted(after - before for before, after in itertools.pairwise(times))
    step = max(1, round(gaps[len(gaps) // 2])) if gaps else WINDOW
    work: dict[int, float] = {}
    for at, duty in samples:
        window = int(at - first) // step
        work[window] = work.get(window, 0.0) + step * duty / 100
    name = path.name.partition(".")[0]
    # How many requests a busy second was, nobody wrote down: each counts as one.
    jobs = replicas(name, work, work, window=step, where=str(path))
    if not jobs:
        raise UserError(f"{path}: no GPU is ever busy in it")
    return Trace(jobs, f"{path.name}: {len(samples)} samples as {len(jobs)} urgent jobs")


def replicas(
    name: str,
    work: Mapping[int, float],
    counts: Mapping[int, float],
    *,
    window: int,
    where: str,
) -> list[Job]:
    """By window, `work` in GPU-seconds and `counts` of requests; a job per GPU that it takes."""
    needed = {at: math.ceil(seconds / window - 1e-9) for at, seconds in work.items() if seconds > 0}
    most = max(needed.values(), default=0)
    if most > _MOST_GPUS:
        raise UserError(f"{where}: its requests would need {most} GPUs at once")
    jobs: list[Job] = []
    for level in range(1, most + 1):
        windows = sorted(at for at, gpus in needed.items() if gpus >= level)
        for number_, (first, last) in enumerate(_runs(windows)):
            inside = range(first, last + 1)
            jobs.append(
                Job(
                    name=f"{name}-{level}-{number_}",
                    arrives=first * window,
                    gpus=1,
                    seconds=(last + 1 - first) * window,
                    tenant=name,
                    priority=1,
                    patience=PATIENCE,
                    urgent=True,
                    requests=sum(counts[at] / needed[at] for at in inside),
                )
            )
    return sorted(jobs, key=lambda job: (job.arrives, job.name))


def _runs(windows: Iterable[int]) -> Iterable[tuple[int, int]]:
    """First and last of each stretch without a gap."""
    first = last = None
    for at in windows:
        if first is None or last is None:
            first = at
        elif at != last + 1:
            yield first, last
            first = at
        last = at
    if first is not None and last is not None:
        yield first, last
