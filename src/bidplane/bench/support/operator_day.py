"""
The load of an operator's day: services with the bins of ten minutes in which they are used.

Here are also the arms that know nothing of the pilot's rules: the fixed window, the oracle that
knows the future, and "the same ten minutes on 3 of 3 days". They share no code with what they are
compared with.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from bidplane.errors import UserError
from bidplane.sim.traces import openb

BIN = 600  # seconds
BINS_OF_A_DAY = 144
HISTORY_DAYS = 3  # that are not scored
COLD_SECONDS = 60
SLOT = 120  # seconds: use that begins late in its bin begins at a multiple of it
_CHUNK = "chunk-*-trace.csv"
# Credits per GPU-hour, for the models of openb's fleet.
LIST_PRICES = {"P100": 0.6, "T4": 0.5, "V100M16": 1.2, "V100M32": 1.6, "A10": 1.0, "G2": 1.0}
_OTHER_PRICE = 2.0


class UsedService(msgspec.Struct, frozen=True, kw_only=True):
    """A service with its use; it has one GPU while it is awake."""

    name: str
    bins: frozenset[int]
    days: int
    model: str = "T4"
    late: Mapping[int, int] = {}  # by the bin in which use begins: seconds into it, if not at once

    @property
    def price(self) -> float:
        return LIST_PRICES.get(self.model, _OTHER_PRICE)


class ArmResult(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a way to run the services, over the scored days."""

    idle_hours: float  # GPU-hours that were held and not used
    idle_cost: float  # the same, at list prices
    misses: int  # beginnings of use that waited for a cold start

    def __add__(self, other: ArmResult) -> ArmResult:
        return ArmResult(
            idle_hours=self.idle_hours + other.idle_hours,
            idle_cost=self.idle_cost + other.idle_cost,
            misses=self.misses + other.misses,
        )


NOTHING = ArmResult(idle_hours=0.0, idle_cost=0.0, misses=0)


def read_services(data: Path) -> list[UsedService]:
    """Return ServeGen's clients of whole weeks, on GPUs drawn evenly from openb's fleet."""
    bins: dict[str, tuple[int, set[int]]] = {}
    for path in sorted((data / "servegen").glob(f"*/*/{_CHUNK}")):
        used, last = set(), 0
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            parts = line.split(",")
            try:
                start, rate = int(float(parts[0])), float(parts[1])
            except (ValueError, IndexError):
                raise UserError(f"{path}:{number} is no line of ServeGen: {line!r}") from None
            last = start // BIN
            if rate > 0:
                used.add(last)
        bins["/".join(path.parts[-3:])] = (last + 1, used)
    whole = {name: used for name, (count, used) in bins.items() if count >= 14 * BINS_OF_A_DAY}
    folder = data / "openb"
    models = ["T4"]
    if openb.is_openb(folder):
        models = [n.model for n in openb.read_nodes(folder) if n.gpus for _ in range(n.gpus)]
    step = max(1, len(models) // max(1, len(whole)))
    return [
        UsedService(name=name, bins=frozenset(used), days=14, model=models[i * step % len(models)])
        for i, (name, used) in enumerate(sorted(whole.items()))
        if used
    ]


def draw_services(count: int, days: int, seed: int) -> list[UsedService]:
    """Return drawn services: daily jobs, hourly ones, sessions, and use without any rhythm."""
    dice = random.Random(seed)
    return [
        UsedService(
            name=f"drawn-{i}",
            bins=frozenset(_drawn_bins(dice, days, i % 4)),
            days=days,
            model=dice.choice(sorted(LIST_PRICES)),
        )
        for i in range(count)
    ]


def _drawn_bins(dice: random.Random, days: int, shape: int) -> Iterable[int]:
    begin, length = dice.randrange(BINS_OF_A_DAY), dice.randrange(1, 12)
    for day in range(days):
        first = day * BINS_OF_A_DAY
        if shape == 0 and dice.random() < 0.9:
            yield from range(first + begin, first + begin + length)
        elif shape == 1:
            yield from (first + hour * 6 + begin % 6 for hour in range(24) if dice.random() < 0.9)
        elif shape == 2:
            for _ in range(dice.randrange(1, 5)):
                start = first + dice.randrange(BINS_OF_A_DAY)
                yield from (start + i for i in range(dice.randrange(1, 30)) if dice.random() < 0.7)
        elif shape == 3:
            yield from (first + dice.randrange(BINS_OF_A_DAY) for _ in range(dice.randrange(4)))


def drawn_late(services: Iterable[UsedService], seed: int) -> list[UsedService]:
    """
    Return the services with use that begins at any moment of its first bin. Their traces have
    windows of ten minutes, and do not tell.
    """
    dice = random.Random(seed)
    return [
        msgspec.structs.replace(
            service,
            late={
                bin: dice.randrange(0, BIN, SLOT)
                for bin in sorted(service.bins)
                if bin - 1 not in service.bins
            },
        )
        for service in services
    ]


def gaps(service: UsedService) -> list[int]:
    """Return the pauses between use on the scored days, in seconds; the first follows history."""
    scored = HISTORY_DAYS * BINS_OF_A_DAY
    end = service.days * BINS_OF_A_DAY
    used = sorted(b for b in service.bins if b < end)
    pauses: list[int] = []
    for before, after in itertools.pairwise(used):
        if after >= scored and after - before > 1:
            # Of a pause that began before, the part that is scored.
            bins = after - max(before, scored - 1) - 1
            pauses.append(bins * BIN + service.late.get(after, 0))
    return pauses


def fixed_window(services: Sequence[UsedService], window: int) -> ArmResult:
    """Return what services cost that sleep after so many seconds without use."""
    total = NOTHING
    for service in services:
        pauses = gaps(service)
        misses = sum(pause > window for pause in pauses)
        # A cold start holds its GPU, too.
        hours = (sum(min(pause, window) for pause in pauses) + misses * COLD_SECONDS) / 3600
        total += ArmResult(idle_hours=hours, idle_cost=hours * service.price, misses=misses)
    return total


def oracle(services: Sequence[UsedService]) -> ArmResult:
    """Return the cost of sleep in each pause that is longer than a cold start, which ends in it."""
    total = NOTHING
    for service in services:
        hours = sum(min(pause, COLD_SECONDS) for pause in gaps(service)) / 3600
        total += ArmResult(idle_hours=hours, idle_cost=hours * service.price, misses=0)
    return total


def three_of_three(services: Sequence[UsedService], window: int) -> tuple[int, int, float]:
    """
    Return the cold starts without pre-warming, how many are avoided where use began in the same ten
    minutes of the three days before, and the warm hours for that; an unused one lasts two bins.
    """
    cold = avoided = 0
    hours = 0.0
    for service in services:
        keep = window // BIN
        end = service.days * BINS_OF_A_DAY

        def begins(b: int, service: UsedService = service, keep: int = keep) -> bool:
            return b in service.bins and not any(b - i in service.bins for i in range(1, keep + 1))

        for b in range(HISTORY_DAYS * BINS_OF_A_DAY, end):
            warmed = [
                start
                for start in (b, b - 1)
                if all(begins(start - day * BINS_OF_A_DAY) for day in (1, 2, 3))
                and not any(start - i in service.bins for i in range(1, keep + 1))
            ]
            if begins(b):
                cold += 1
                avoided += bool(warmed)
                hours += (b - min(warmed)) * BIN / 3600 if warmed else 0.0
            elif b in warmed and b + 1 not in service.bins:
                hours += 2 * BIN / 3600
    return cold, avoided, hours
