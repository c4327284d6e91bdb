"""
Training jobs, one row each: Philly, Shockwave and Gavel as evaluations use them; Helios.

Times are seconds, or dates as Helios has them. Jobs without a GPU are left out. Where the
columns are `dur_KIND`, a job takes so long on GPUs of that kind, and needs one of them.
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
    found: list[Job] = []
    names: set[str] = set()
    for where, row in rows(path, ["job_id", "submit_time"]):
        job = _job(row, where)
        if job is not None:
            if job.name in names:
                raise UserError(f"{where}: there was a job {job.name} before")
            names.add(job.name)
            found.append(job)
    if not found:
        raise UserError(f"{path} has no job with a GPU in it")
    first = min(job.arrives for job in found)
    shift = first if first > _LONG_AGO else 0  # dates: count from the first job
    jobs = [_later(job, -shift) for job in found]
    jobs.sort(key=lambda job: job.arrives)
    named = {kind for job in jobs for kind in job.speeds}
    kinds = [kind for kind in _GAVEL if kind in named]
    nodes = [(4, kind) for kind in kinds for _ in range(_GAVEL[kind])]
    what = f"{path.name}: {len(jobs)} jobs"
    return Trace(jobs, what, tuple(size for size, _ in nodes), tuple(kind for _, kind in nodes))


_LONG_AGO = 500_000_000  # later times are dates: nobody's trace has run for 15 years


def _later(job: Job, seconds: int) -> Job:
    return msgspec.structs.replace(job, arrives=job.arrives + seconds) if seconds else job


def _job(row: Mapping[str, str], where: str) -> Job | None:
    counts = row.get("num_gpus", row.get("gpu_num"))
    if counts is None:
        raise UserError(f"{where}: there is no column num_gpus or gpu_num")
    gpus = number(counts, where, "the number of GPUs")
    if gpus != int(gpus):
        raise UserError(f"{where}: a job needs whole GPUs, not {counts}")
    if gpus == 0 and "gpu_num" in row:
        return None  # Helios has jobs of CPUs alone
    if gpus < 1:
        raise UserError(f"{where}: a job needs a GPU")
    durations = _durations(row, where)
    seconds = min(durations.values())
    speeds = {kind: seconds / taken for kind, taken in durations.items() if kind}
    return Job(
        name=row["job_id"],
        arrives=_time(row["submit_time"], where),
        gpus=int(gpus),
        seconds=max(1, int(seconds)),
        tenant=row.get("tenant") or row.get("vc") or row.get("user") or "",
        speeds=speeds,
    )


def _durations(row: Mapping[str, str], where: str) -> dict[str, float]:
    if "duration" in row:
        return {"": number(row["duration"], where, "the duration")}
    found = {
        name.removeprefix(_KIND): number(text, where, f"the duration {name}", least=0.001)
        for name, text in row.items()
        if name.startswith(_KIND) and text  # nothing there: it cannot run on that kind
    }
    if not found:
        raise UserError(f"{where}: it does not say how long the job takes: there is no duration")
    return found


def _time(text: str, where: str) -> int:
    if "-" not in text[1:] or "e" in text:
        return int(number(text, where, "the time"))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{where}: the time {text!r} is neither seconds nor a date") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
