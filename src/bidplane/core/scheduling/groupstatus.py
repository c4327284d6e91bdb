"""
What a PodGroup's status says of its pods, in the words of whoever defined the kind.

Their own controllers are not here to write it, and tools wait for these phases.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bidplane.api.kinds import Object
from bidplane.core.scheduling.groups import COSCHEDULING, KAI, Source, group_named
from bidplane.core.scheduling.operations import TellGroup
from bidplane.core.scheduling.seen import Snapshot, is_bound, phase_of


def told_of_groups(snapshot: Snapshot) -> Iterator[TellGroup]:
    """The PodGroups whose status is not true."""
    members: dict[str, list[Object]] = {}
    found: dict[str, tuple[Source, Object]] = {}
    for pod in snapshot.pods if snapshot.groups else ():
        named = group_named(pod, snapshot.groups)
        if named is not None and named[2] is not None:
            uid = named[2]["metadata"]["uid"]
            found[uid] = (named[0], named[2])
            members.setdefault(uid, []).append(pod)
    for uid, (source, group) in found.items():
        status = _status(source, group, members[uid])
        known = group.get("status") or {}
        if any((known.get(key) or 0) != (value or 0) for key, value in status.items()):
            yield TellGroup(source.kind, group, status)


def _status(source: Source, group: Object, pods: Sequence[Object]) -> dict[str, Any]:
    phases = [phase_of(pod) for pod in pods]
    counts: dict[str, Any] = {
        "running": phases.count("Running"),
        "succeeded": phases.count("Succeeded"),
        "failed": phases.count("Failed"),
    }
    if source is KAI:
        return {**counts, "pending": sum(phase in ("", "Pending") for phase in phases)}
    least = (group.get("spec") or {}).get("minMember") or 1
    bound = sum(is_bound(pod) for pod in pods)
    if source is COSCHEDULING:
        return {**counts, "phase": _coscheduling(counts, least, bound)}
    return {**counts, "phase": _volcano(counts, least, len(pods))}


def _coscheduling(counts: dict[str, Any], least: int, bound: int) -> str:
    if counts["succeeded"] >= least:
        return "Finished"
    if counts["failed"] and counts["failed"] + counts["running"] + counts["succeeded"] >= least:
        return "Failed"
    if counts["running"] + counts["succeeded"] >= least:
        return "Running"
    return "Scheduling" if bound >= least else "Pending"


def _volcano(counts: dict[str, Any], least: int, pods: int) -> str:
    if pods and counts["succeeded"] + counts["failed"] == pods:
        return "Completed"
    if counts["running"] + counts["succeeded"] >= least:
        return "Running"
    # Its pods exist before it is decided on: nobody has to be let in first.
    return "Unknown" if counts["running"] else "Inqueue"
