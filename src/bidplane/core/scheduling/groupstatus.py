"""
The status of PodGroups, in the terms of the project that defined each kind.

Those projects' controllers do not run here, and tools wait for these phases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bidplane.api.kinds import Object
from bidplane.api.objects import phase_of
from bidplane.core.scheduling.groups import COSCHEDULING, KAI, PodGroupKind, group_named
from bidplane.core.scheduling.observed import PlaneSnapshot, is_bound
from bidplane.core.scheduling.operations import TellGroup


def update_groups(snapshot: PlaneSnapshot) -> Iterator[TellGroup]:
    """Yield the new status of each PodGroup whose status is out of date."""
    members: dict[str, list[Object]] = {}
    groups: dict[str, tuple[PodGroupKind, Object]] = {}
    for pod in snapshot.pods if snapshot.groups else ():
        reference = group_named(pod, snapshot.groups)
        if reference is not None and reference[2] is not None:
            uid = reference[2]["metadata"]["uid"]
            groups[uid] = (reference[0], reference[2])
            members.setdefault(uid, []).append(pod)
    for uid, (source, group) in groups.items():
        status = _status(source, group, members[uid])
        current = group.get("status") or {}
        if any((current.get(key) or 0) != (value or 0) for key, value in status.items()):
            yield TellGroup(source.kind, group, status)


def _status(source: PodGroupKind, group: Object, pods: Sequence[Object]) -> dict[str, int | str]:
    """Return the status of a PodGroup with these pods."""
    phases = [phase_of(pod) for pod in pods]
    counts: dict[str, int] = {
        "running": phases.count("Running"),
        "succeeded": phases.count("Succeeded"),
        "failed": phases.count("Failed"),
    }
    if source is KAI:
        return {**counts, "pending": sum(phase in ("", "Pending") for phase in phases)}
    least = (group.get("spec") or {}).get("minMember") or 1
    bound = sum(is_bound(pod) for pod in pods)
    if source is COSCHEDULING:
        return {**counts, "phase": _coscheduling_phase(counts, least, bound)}
    return {**counts, "phase": _volcano_phase(counts, least, len(pods))}


def _coscheduling_phase(counts: dict[str, int], least: int, bound: int) -> str:
    """Return the phase as coscheduling's controller sets it."""
    if counts["succeeded"] >= least:
        return "Finished"
    if counts["failed"] and counts["failed"] + counts["running"] + counts["succeeded"] >= least:
        return "Failed"
    if counts["running"] + counts["succeeded"] >= least:
        return "Running"
    return "Scheduling" if bound >= least else "Pending"


def _volcano_phase(counts: dict[str, int], least: int, pods: int) -> str:
    """Return the phase as Volcano's controller sets it."""
    if pods and counts["succeeded"] + counts["failed"] == pods:
        return "Completed"
    if counts["running"] + counts["succeeded"] >= least:
        return "Running"
    # Its pods exist already, so there is no earlier phase.
    return "Unknown" if counts["running"] else "Inqueue"
