"""
Training jobs, one row each: Philly, Shockwave and Gavel as evaluations use them; Helios.

Times are seconds, or dates as in Helios. Jobs without a GPU are left out. Columns `dur_KIND` hold a
job's duration on GPUs of that kind; it needs GPUs of one of these kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bidplane.errors import UserError
from bidplane.sim.traces.lines import number, rows
from bidplane.sim.traces.trace import Trace
from bidplane.sim.workload import Job

_KIND = "dur_"
# Gavel's evaluation: 8 V100, 16 P100 and 24 K80, four to a machine.
_GAVEL = {"v100": 2, "p100": 4, "k80": 6}


def read(path: Path) -> Trace:
    """Read the jobs, and for Gavel's the nodes of its evaluation."""
    unshifted: list[Job] = []
    names: set[str] = set()
    for location, row in rows(path, ["job_id", "submit_time"]):
        job = _job(row, location)
        if job is not None:
            if job.name in names:
                raise UserError(f"{location}: a second job is called {job.name}")
            names.add(job.name)
            unshifted.append(job)
    if not unshifted:
        raise UserError(f"{path} has no job with a GPU in it")
    first = min(job.arrives for job in unshifted)
    shift = first if first > _LONG_AGO else 0  # dates: count from the first job
    jobs = [_later(job, -shift) for job in unshifted]
    jobs.sort(key=lambda job: job.arrives)
    kinds_in_jobs = {kind for job in jobs for kind in job.speeds}
    kinds = [kind for kind in _GAVEL if kind in kinds_in_jobs]
    nodes = [(4, kind) for kind in kinds for _ in range(_GAVEL[kind])]
    description = f"{path.name}: {len(jobs)} jobs"
    return Trace(
        jobs, description, tuple(size for size, _ in nodes), tuple(kind for _, kind in nodes)
    )


_LONG_AGO = 500_000_000  # larger times are dates: no trace covers 15 years


def _later(job: Job, seconds: int) -> Job:
    """The job, moved in time."""
    return msgspec.structs.replace(job, arrives=job.arrives + seconds) if seconds else job


def _job(row: Mapping[str, str], location: str) -> Job | None:
    """The job of a row; None for a job without GPUs."""
    counts = row.get("num_gpus", row.get("gpu_num"))
    if counts is None:
        raise UserError(f"{location}: there is no column num_gpus or gpu_num")
    gpus = number(counts, location, "the number of GPUs")
    if gpus != int(gpus):
        raise UserError(f"{location}: a job needs whole GPUs, not {counts}")
    if gpus == 0 and "gpu_num" in row:
        return None  # Helios has jobs of CPUs alone
    if gpus < 1:
        raise UserError(f"{location}: a job needs a GPU")
    durations = _durations(row, location)
    seconds = min(durations.values())
    speeds = {kind: seconds / duration for kind, duration in durations.items() if kind}
    return Job(
        name=row["job_id"],
        arrives=_time(row["submit_time"], location),
        gpus=int(gpus),
        seconds=max(1, int(seconds)),
        tenant=row.get("tenant") or row.get("vc") or row.get("user") or "",
        speeds=speeds,
    )


def _durations(row: Mapping[str, str], location: str) -> dict[str, float]:
    """The job's duration by kind of GPU; by "" if all are alike."""
    if "duration" in row:
        return {"": number(row["duration"], location, "the duration")}
    by_kind = {
        name.removeprefix(_KIND): number(text, location, f"the duration {name}", least=0.001)
        for name, text in row.items()
        if name.startswith(_KIND) and text  # an empty field: it cannot run on that kind
    }
    if not by_kind:
        raise UserError(f"{location}: the job has no duration")
    return by_kind


def _time(text: str, location: str) -> int:
    """The time in seconds."""
    if "-" not in text[1:] or "e" in text:
        return int(number(text, location, "the time"))
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{location}: the time {text!r} is neither seconds nor a date") from None
    return int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp())
