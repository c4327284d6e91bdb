"""
Inference requests, which cannot wait, as jobs for the GPUs that serve them.

Nobody bids for a single request: a service holds as many GPUs as its present requests need, and
asks for more when more come. So each minute's (or bin's) requests are counted as GPU-seconds, and
the GPUs needed for them become jobs: the n-th GPU is one job for as long as at least n are needed.
A job carries its share of the requests; those that wait for it longer than a request may are late.
All are urgent.

The throughput of a GPU is assumed, the same for every policy: see the constants.
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
    """Read Azure LLM: TIMESTAMP, ContextTokens, GeneratedTokens."""
    arrivals = []
    for location, row in rows(path, ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]):
        try:
            time = datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise UserError(f"{location}: {row['TIMESTAMP']!r} is not a time") from None
        prompt = number(row["ContextTokens"], location, "ContextTokens")
        output = number(row["GeneratedTokens"], location, "GeneratedTokens")
        arrivals.append((time, _gpu_seconds(prompt, output)))
    return _trace_of_requests(path, arrivals)


class _Mooncake(msgspec.Struct):
    timestamp: float  # milliseconds
    input_length: float
    output_length: float


def read_mooncake(path: Path) -> Trace:
    """Read Mooncake: a JSON object per line."""
    arrivals = []
    for location, line in numbered(path):
        try:
            request = msgspec.json.decode(line, type=_Mooncake)
        except msgspec.MsgspecError as error:
            raise UserError(f"{location} cannot be read: {error}") from None
        if min(request.timestamp, request.input_length, request.output_length) < 0:
            raise UserError(f"{location}: a time and tokens must be 0 or more")
        arrivals.append(
            (request.timestamp / 1000, _gpu_seconds(request.input_length, request.output_length))
        )
    return _trace_of_requests(path, arrivals)


def _gpu_seconds(prompt: float, output: float) -> float:
    """The GPU-seconds of a request with so many tokens."""
    return prompt / PROMPT_TOKENS + output / OUTPUT_TOKENS


def _trace_of_requests(path: Path, arrivals: list[tuple[float, float]]) -> Trace:
    """The trace of requests, given as (time, GPU-seconds)."""
    if not arrivals:
        raise UserError(f"{path} has no request in it")
    first = min(time for time, _ in arrivals)
    work: dict[int, float] = {}
    counts: dict[int, float] = {}
    for time, seconds in arrivals:
        window = int(time - first) // WINDOW
        work[window] = work.get(window, 0.0) + seconds
        counts[window] = counts.get(window, 0.0) + 1
    name = path.name.partition(".")[0]
    jobs = replicas(name, work, counts, window=WINDOW, location=str(path))
    return Trace(jobs, f"{path.name}: {len(arrivals)} requests as {len(jobs)} urgent jobs")


def is_servegen(path: Path) -> bool:
    """Return True for a folder of chunks, or one chunk: six columns without a header."""
    if path.is_dir():
        return any(path.glob(_CHUNK))
    return path.match(_CHUNK)


def read_servegen(path: Path) -> Trace:
    """
    Read ServeGen: for each client, in bins of ten minutes: start, requests per second, burstiness.
    """
    files = sorted(path.glob(_CHUNK)) if path.is_dir() else [path]
    rates: dict[int, float] = {}
    for file in files:
        for location, line in numbered(file):
            values = line.split(",")
            if len(values) != 6:
                raise UserError(f"{location}: it has {len(values)} values; ServeGen's lines have 6")
            start = number(values[0], location, "the start of a bin")
            rate = number(values[1], location, "the rate")
            bin = int(start) // _BIN
            rates[bin] = rates.get(bin, 0.0) + rate
    if not any(rates.values()):
        raise UserError(f"{path} has no request in it")
    counts = {bin: rate * _BIN for bin, rate in rates.items()}
    work = {bin: count / REQUESTS for bin, count in counts.items()}
    jobs = replicas(path.name, work, counts, window=_BIN, location=str(path))
    total = sum(counts.values())
    return Trace(
        jobs,
        f"{path.name}: {total:,.0f} requests of {len(files)} clients as {len(jobs)} urgent jobs",
    )


def read_duty(path: Path) -> Trace:
    """
    Read Alibaba's genai: for each pod, about every minute, the percentage of time its GPU was
    busy. All pods count as one service, whose GPUs are the sum of their busy time.
    """
    samples: list[tuple[float, float]] = []
    for location, row in rows(path, ["value", "timestamp_anon", "container_ip"]):
        time = number(row["timestamp_anon"], location, "the time")
        duty = number(row["value"], location, "the duty cycle")
        if duty > 100:
            raise UserError(f"{location}: a duty cycle of {duty:g} is more than 100 percent")
        samples.append((time, duty))
    if not samples:
        raise UserError(f"{path} has no sample in it")
    first = min(time for time, _ in samples)
    times = sorted({time for time, _ in samples})
    gaps = sorted(after - before for before, after in itertools.pairwise(times))
    step = max(1, round(gaps[len(gaps) // 2])) if gaps else WINDOW
    work: dict[int, float] = {}
    for time, duty in samples:
        window = int(time - first) // step
        work[window] = work.get(window, 0.0) + step * duty / 100
    name = path.name.partition(".")[0]
    # The trace has no request counts: each busy second counts as one.
    jobs = replicas(name, work, work, window=step, location=str(path))
    if not jobs:
        raise UserError(f"{path}: no GPU is ever busy in it")
    return Trace(jobs, f"{path.name}: {len(samples)} samples as {len(jobs)} urgent jobs")


def replicas(
    name: str,
    work: Mapping[int, float],
    counts: Mapping[int, float],
    *,
    window: int,
    location: str,
) -> list[Job]:
    """
    One job per GPU that the requests need. `work` in GPU-seconds and `counts` of requests, both by
    window.
    """
    needed = {
        number_of_window: math.ceil(seconds / window - 1e-9)
        for number_of_window, seconds in work.items()
        if seconds > 0
    }
    most = max(needed.values(), default=0)
    if most > _MOST_GPUS:
        raise UserError(f"{location}: its requests would need {most} GPUs at once")
    jobs: list[Job] = []
    for level in range(1, most + 1):
        windows = sorted(
            number_of_window for number_of_window, gpus in needed.items() if gpus >= level
        )
        for number_, (first, last) in enumerate(_stretches(windows)):
            windows_of_job = range(first, last + 1)
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
                    requests=sum(
                        counts[number_of_window] / needed[number_of_window]
                        for number_of_window in windows_of_job
                    ),
                )
            )
    return sorted(jobs, key=lambda job: (job.arrives, job.name))


def _stretches(windows: Iterable[int]) -> Iterable[tuple[int, int]]:
    """The first and last window of each stretch without a gap."""
    first = last = None
    for window in windows:
        if first is None or last is None:
            first = window
        elif window != last + 1:
            yield first, last
            first = window
        last = window
    if first is not None and last is not None:
        yield first, last
