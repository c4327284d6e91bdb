"""
Work for the simulator: jobs drawn from a seed; `traces` reads them from files.

Times are whole seconds. A trace records who asked for how many GPUs, when, and for how long, but
not the value of the work: so values are drawn, from a seed as well.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import msgspec

from bidplane.errors import UserError


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the simulator."""

    name: str
    arrives: int
    gpus: int
    seconds: int  # on its GPUs, if nothing interrupts it; of kinds that differ, on the fastest
    tenant: str = ""
    priority: int = 0  # larger is more important; what a queue with classes would be told
    value: float = 1.0  # if it never waits; falls to nothing as waiting uses up its patience
    patience: float = math.inf  # seconds
    urgent: bool = False
    requests: float = 0.0  # that come while it should run: a service's, which cannot wait for it
    speeds: dict[str, float] = {}  # by kind of GPU, of its fastest; none: they are all alike

    @property
    def work(self) -> int:
        return self.gpus * self.seconds

    def speed_on(self, kind: str) -> float:
        return self.speeds.get(kind, 0.0) if self.speeds else 1.0

    def in_time_after(self, waited: float) -> float:
        """The share of the job's urgent requests that are served in time after that wait."""
        if not self.requests:
            return float(waited <= self.patience)
        # Requests that waited longer than their patience are late.
        return 1.0 - min(1.0, max(0.0, waited - self.patience) / self.seconds)

    def worth_after(self, waited: float) -> float:
        """The job's value after that wait."""
        if self.requests:
            return self.value * self.in_time_after(waited)
        if math.isinf(self.patience):
            return self.value
        return self.value * max(0.0, 1.0 - waited / self.patience)


def generate(count: int, *, gpus: int, load: float, seed: int) -> list[Job]:
    """
    Draw a cluster's typical week: most jobs are short and on one GPU, most of the work is long and
    on several. `load` is the work asked for, relative to `gpus`, while jobs arrive.
    """
    generator = random.Random(seed)
    sizes = [size for size in (1, 2, 4, 8, 16) if size <= gpus]
    weights = [80, 5, 6, 7, 2][: len(sizes)]
    shapes = []
    for _ in range(count):
        size = generator.choices(sizes, weights)[0]
        seconds = min(
            200_000, max(10, int(generator.lognormvariate(6.2 + 0.4 * math.log2(size), 1.9)))
        )
        shapes.append((size, seconds))
    span = sum(size * seconds for size, seconds in shapes) / (gpus * load)
    arrivals = sorted(int(generator.uniform(0, span)) for _ in range(count))
    return [
        Job(
            name=f"j{number:05d}",
            arrives=arrives,
            gpus=size,
            seconds=seconds,
            tenant=f"t{generator.randrange(8)}",
        )
        for number, (arrives, (size, seconds)) in enumerate(zip(arrivals, shapes, strict=True))
    ]


def with_values(jobs: Iterable[Job], *, seed: int) -> list[Job]:
    """
    Give each job a value. It grows with its work, less than in proportion, and varies between
    equal jobs; one in ten is urgent: worth more, and soon worth nothing. Jobs already urgent stay
    so.
    """
    generator = random.Random(seed)
    valued = []
    for job in jobs:
        value = generator.lognormvariate(0.0, 1.0) * math.sqrt(job.work)
        urgent = generator.random() < 0.1 or job.urgent
        if job.urgent:  # its patience is already known
            valued.append(msgspec.structs.replace(job, value=5.0 * value))
            continue
        minimum, stretch = (300.0, 0.5) if urgent else (7200.0, 5.0)
        valued.append(
            msgspec.structs.replace(
                job,
                value=value * (5.0 if urgent else 1.0),
                patience=max(minimum, stretch * job.seconds),
                urgent=urgent,
                priority=1 if urgent else 0,
            )
        )
    return valued


def check(jobs: Sequence[Job], nodes: Sequence[int], kinds: Sequence[str] = ()) -> None:
    """Raise `UserError` for a job that these nodes could never run."""
    total = sum(nodes)
    by_kind: dict[str, int] = {}
    for kind, size in zip(kinds, nodes, strict=False):
        by_kind[kind] = by_kind.get(kind, 0) + size
    for job in jobs:
        most = max((by_kind.get(k, 0) for k in job.speeds), default=0) if job.speeds else total
        if job.gpus > most:
            capacity = f"the nodes have {most}" + (
                f" of {', '.join(job.speeds)}" if job.speeds else ""
            )
            raise UserError(f"{job.name} asks for {job.gpus} GPUs; {capacity}: see --nodes")
