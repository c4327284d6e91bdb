"""
Recordings of clusters, as `bidplane shadow --save` writes them: one line of JSON.

A pod is a job, from its creation (or the window's begin) until its end (or the window's). Pods that
were never scheduled are left out: how long they would have run is unknown. A service is a
tenant, and so is all batch work of a namespace: a tenant bids as one agent.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from bidplane.core.shadow.model import FORMAT, ClusterRecording, ShadowPod
from bidplane.errors import UserError
from bidplane.sim.traces.lines import open_text
from bidplane.sim.traces.trace import Trace
from bidplane.sim.workload import Job

_LARGEST_NODE = 8  # GPUs, where the nodes are unknown


class RecordedJob(NamedTuple):
    """A job, and the pod that it was."""

    job: Job
    pod: ShadowPod
    waited: int  # seconds, as it happened


def is_recording(first_line: str) -> bool:
    return first_line.startswith(f'{{"format":"{FORMAT}"')


def read_recording(path: Path) -> ClusterRecording:
    """Read a recording; raises `UserError` if it is none."""
    with open_text(path) as lines:
        try:
            return msgspec.json.decode(lines.read(), type=ClusterRecording)
        except (msgspec.MsgspecError, UnicodeDecodeError, EOFError) as error:
            raise UserError(f"{path} is no recording of `bidplane shadow`: {error}") from error


def read(path: Path) -> Trace:
    """Read the recording as jobs and nodes."""
    recording = read_recording(path)
    jobs = [recorded.job for recorded in recorded_jobs(recording)]
    if not jobs:
        raise UserError(f"{path}: no pod was scheduled in it")
    description = f"{path.name}: {len(jobs)} pods of {recording.source}"
    return Trace(jobs, description, nodes_for(recording, jobs))


def recorded_jobs(recording: ClusterRecording) -> list[RecordedJob]:
    """Return the jobs of a recording in the order of arrival; time begins with the window."""
    jobs = []
    counts: dict[str, int] = {}
    for pod in recording.pods:
        if pod.scheduled is None or pod.scheduled >= recording.end:
            continue
        created = max(pod.created, recording.begin)
        scheduled = max(pod.scheduled, created)
        ended = min(recording.end if pod.ended is None else pod.ended, recording.end)
        if ended <= scheduled:
            continue
        name = f"{pod.namespace}/{pod.name}"
        counts[name] = counts.get(name, 0) + 1
        job = Job(
            name=name if counts[name] == 1 else f"{name}#{counts[name]}",
            arrives=int(created - recording.begin),
            gpus=pod.gpus,
            seconds=max(1, int(ended - scheduled)),
            tenant=f"{pod.namespace}/{pod.owner}" if pod.is_service else pod.namespace,
        )
        jobs.append(RecordedJob(job, pod, int(scheduled - created)))
    return sorted(jobs, key=lambda recorded: (recorded.job.arrives, recorded.job.name))


def nodes_for(recording: ClusterRecording, jobs: list[Job]) -> tuple[int, ...]:
    """
    The GPUs of each node. What pods held at once was there, even if no node is known to have
    offered it: nodes are added until they suffice.
    """
    sizes = [node.gpus for node in recording.nodes if node.gpus > 0]
    missing = max(_most_held(recording), max(job.gpus for job in jobs)) - sum(sizes)
    while missing > 0:
        sizes.append(min(_LARGEST_NODE, missing))
        missing -= _LARGEST_NODE
    return tuple(sizes)


def _most_held(recording: ClusterRecording) -> int:
    """The most GPUs that pods held at one time."""
    changes: list[tuple[float, int]] = []
    for pod in recording.pods:
        if pod.scheduled is not None:
            ended = recording.end if pod.ended is None else pod.ended
            changes += [(max(pod.scheduled, recording.begin), pod.gpus), (ended, -pod.gpus)]
    most = gpus = 0
    for _, change in sorted(changes):  # of one moment, ends come first
        gpus += change
        most = max(most, gpus)
    return most
