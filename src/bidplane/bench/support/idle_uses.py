"""
The uses of services, for `bidplane bench idle`: intervals in which a client's requests need a GPU.

ServeGen tells, for each client and ten minutes, the rate and the burstiness of its requests; the
arrivals are drawn inside these bins, from a seed. genai tells for each pod when its GPU was busy.
Uses less than `LEAST_SECONDS` apart count as one: no policy here lets go so soon.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

LEAST_SECONDS = 30.0
SERVICE_SECONDS = 5.0  # of a request
_BIN_SECONDS = 600.0
_BUSY_REQUESTS = 600.0  # of a bin: with so many it is busy throughout


class ServiceUses(msgspec.Struct, frozen=True):
    """A service with its uses, in order, and the end of the time that is looked at."""

    name: str
    uses: list[tuple[float, float]]
    end: float

    @property
    def busy_seconds(self) -> float:
        return sum(end - begin for begin, end in self.uses)

    @property
    def gaps(self) -> list[float]:
        """The seconds between each two uses."""
        return [
            later[0] - earlier[1]
            for earlier, later in zip(self.uses[:-1], self.uses[1:], strict=True)
        ]

    @property
    def rest(self) -> float:
        """The seconds after the last use."""
        return max(0.0, self.end - self.uses[-1][1])


def _merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    uses: list[tuple[float, float]] = []
    for begin, end in intervals:
        if uses and begin - uses[-1][1] < LEAST_SECONDS:
            uses[-1] = uses[-1][0], max(uses[-1][1], end)
        else:
            uses.append((begin, end))
    return uses


def read_servegen(folder: Path, *, seed: int, every: int = 1) -> list[ServiceUses]:
    """Return ServeGen's clients that sent a request, or each n-th of them."""
    clients = []
    paths = sorted(folder.glob("*/*/chunk-*-trace.csv"))[::every]
    for number, path in enumerate(paths):
        rows = [line.split(",") for line in path.read_text().splitlines() if line]
        dice = np.random.default_rng([seed, number])
        uses = _merged(_drawn(rows, dice))
        end = max((float(row[0]) for row in rows), default=0.0) + _BIN_SECONDS
        clients.append(ServiceUses(str(path.relative_to(folder)), uses, end))
    return clients


def _drawn(rows: list[list[str]], dice: np.random.Generator) -> Iterable[tuple[float, float]]:
    """Yield the intervals of drawn requests."""
    for start_text, rate_text, burstiness, law, shape, *_ in rows:
        start, rate = float(start_text), float(rate_text)
        count = rate * _BIN_SECONDS
        if count <= 0:
            continue
        if count > _BUSY_REQUESTS:
            yield start, start + _BIN_SECONDS
            continue
        variation = min(10.0, max(0.1, float(burstiness) or 1.0))
        draws = int(count + 6 * math.sqrt(count) * variation + 10)
        if law == "Weibull" and shape:
            power = float(shape)
            gaps = dice.weibull(power, draws) / (rate * math.gamma(1 + 1 / power))
        else:
            power = 1 / variation**2
            gaps = dice.gamma(power, 1 / (rate * power), draws)
        times = np.cumsum(gaps) - dice.random() * gaps[0]
        for time in times[times < _BIN_SECONDS].tolist():
            yield start + time, start + time + SERVICE_SECONDS


def read_genai(path: Path) -> list[ServiceUses]:
    """Return the pods of genai whose GPU was busy."""
    samples: dict[str, list[tuple[float, float]]] = {}
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            sample = float(row["timestamp_anon"]), float(row["value"])
            samples.setdefault(row["container_ip"], []).append(sample)
    clients = []
    for name, values in sorted(samples.items()):
        times = sorted(values)
        step = float(np.median(np.diff([time for time, _ in times]))) if len(times) > 1 else 60.0
        uses = _merged((time, time + step) for time, duty in times if duty > 0)
        clients.append(ServiceUses(name, uses, times[-1][0] + step))
    return clients


def generate(count: int, *, seed: int, days: int = 7) -> list[ServiceUses]:
    """Return clients drawn from a seed: sessions of requests, by day more than by night."""
    clients = []
    for number in range(count):
        dice = np.random.default_rng([seed, number])
        end, time = days * 86400.0, 0.0
        between, inside = 10 ** dice.uniform(3, 5), 10 ** dice.uniform(1, 3)
        intervals = []
        while time < end:
            by_day = 1 + 0.8 * math.sin(2 * math.pi * time / 86400)
            time += float(dice.exponential(between)) / max(by_day, 0.05)
            for _ in range(int(dice.geometric(0.1))):
                time += float(dice.exponential(inside))
                intervals.append((time, time + SERVICE_SECONDS))
        uses = _merged(interval for interval in intervals if interval[1] < end)
        clients.append(ServiceUses(f"drawn-{number}", uses, end))
    return clients
