"""The memory of simulated GPUs that stays in use for a while after a pod's processes have ended."""

from __future__ import annotations

import math

import msgspec

from bidplane.api.times import parse_rfc3339
from bidplane.core.nodes.simulation import Script, SimulatedRun
from bidplane.kube.client import Object
from bidplane.node.simulatedstatus import began_at, restarts


class Leftover(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one GPU that a pod has left in use."""

    percent: float
    until: float
    text: str  # how much that is


def restarts_after(pod: Object, run: SimulatedRun) -> bool:
    """Return True if the pod's containers start again after a run."""
    policy = pod["spec"].get("restartPolicy", "Always")
    return policy == "Always" or (policy == "OnFailure" and run.code != 0)


def stopped_at(pod: Object, script: Script) -> float:
    """Return when the processes of a deleted pod have obeyed SIGTERM, or are killed."""
    metadata = pod["metadata"]
    ends_at: float = parse_rfc3339(metadata["deletionTimestamp"])
    requested_at = ends_at - float(metadata.get("deletionGracePeriodSeconds", 0))
    return min(ends_at, requested_at + script.shutdown)


def ended_at(pod: Object, script: Script) -> float:
    """Return when the processes of a started pod end; infinite if nothing ends them."""
    run = script.run(restarts(pod))
    end = math.inf if restarts_after(pod, run) else parse_rfc3339(began_at(pod)) + run.ends_after
    if pod["metadata"].get("deletionTimestamp"):
        end = min(end, stopped_at(pod, script))
    return end
