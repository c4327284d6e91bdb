"""
Work for the simulator: from a trace file, or drawn from a seed.

Times are whole seconds. A trace says who asked for how many GPUs, when, and for how long;
what the work was worth nobody wrote down, so values are drawn, from a seed as well.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from bidplane.errors import UserError

_COLUMNS = ("job_id", "submit_time", "num_gpus", "duration")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arrives: int
    gpus: int
    seconds: int  # on its GPUs, if nothing interrupts it
    tenant: str = ""
    priority: int = 0  # larger is more important; what a queue with classes would be told
    value: float = 1.0  # if it never waits; falls to nothing as waiting uses up its patience
    patience: float = math.inf  # seconds
    urgent: bool = False

    @property
    def work(self) -> int:
        return self.gpus * self.seconds

    def worth_after(self, waited: float) -> float:
        if math.isinf(self.patience):
            return self.value
        return self.value * max(0.0, 1.0 - waited / self.patience)


def read_trace(path: Path) -> list[Job]:
    """A CSV with job_id, submit_time, num_gpus, duration and, if known, tenant."""
    try:
        with path.open(newline="") as lines:
            rows = csv.DictReader(lines)
            missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise UserError(f"{path} is no job trace: it has no column {', '.join(missing)}")
            jobs = [_job(row, f"{path}, line {rows.line_num}") for row in rows]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if not jobs:
        raise UserError(f"{path} has no job in it")
    return sorted(jobs, key=lambda job: job.arrives)


def _job(row: dict[str, str], where: str) -> Job:
    try:
        job = Job(
            name=row["job_id"],
            arrives=int(float(row["submit_time"])),
            gpus=int(row["num_gpus"]),
            seconds=max(1, int(float(row["duration"]))),
            tenant=row.get("tenant") or "",
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} cannot be read: {error}") from error
    if job.gpus < 1 or job.arrives < 0:
        raise UserError(f"{where}: a job needs a GPU and a time from 0 on")
    return job


def generate(count: int, *, gpus: int, load: float, seed: int) -> list[Job]:
    """
    A cluster's week in small: most jobs are short and on one GPU, most of the work is
    long and on several. `load` is how much is asked for of `gpus` while jobs arrive.
    """
    dice = random.Random(seed)
    sizes = [size for size in (1, 2, 4, 8, 16) if size <= gpus]
    weights = [80, 5, 6, 7, 2][: len(sizes)]
    shapes = []
    for _ in range(count):
        size = dice.choices(sizes, weights)[0]
        seconds = min(200_000, max(10, int(dice.lognormvariate(6.2 + 0.4 * math.log2(size), 1.9))))
        shapes.append((size, seconds))
    span = sum(size * seconds for size, seconds in shapes) / (gpus * load)
    arrivals = sorted(int(dice.uniform(0, span)) for _ in range(count))
    return [
        Job(
            name=f"j{number:05d}",
            arrives=arrives,
            gpus=size,
            seconds=seconds,
            tenant=f"t{dice.randrange(8)}",
        )
        for number, (arrives, (size, seconds)) in enumerate(zip(arrivals, shapes, strict=True))
    ]


def with_values(jobs: Iterable[Job], *, seed: int) -> list[Job]:
    """
    Give each job a worth. It grows with its work, less than in proportion, and differs
    between equals; one in ten is urgent: worth more, and soon worth nothing.
    """
    dice = random.Random(seed)
    valued = []
    for job in jobs:
        value = dice.lognormvariate(0.0, 1.0) * math.sqrt(job.work)
        urgent = dice.random() < 0.1
        least, stretch = (300.0, 0.5) if urgent else (7200.0, 5.0)
        valued.append(
            msgspec.structs.replace(
                job,
                value=value * (5.0 if urgent else 1.0),
                patience=max(least, stretch * job.seconds),
                urgent=urgent,
                priority=1 if urgent else 0,
            )
        )
    return valued


def check(jobs: Sequence[Job], nodes: Sequence[int]) -> None:
    """Raises `UserError` for a job that these nodes could never run."""
    total = sum(nodes)
    for job in jobs:
        if job.gpus > total:
            raise UserError(f"{job.name} asks for {job.gpus} GPUs; the nodes have {total}")
