"""
The system's users that pods run as: one per pod, never shared.

A pod's user is in its record, so a restarted agent knows it; it is free again when the pod is
removed. Users are unique within one node: two nodes on one machine, each with its own folder,
may use the same ones.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bidplane.core.pods.environment import ConfigError
from bidplane.node.process.records import pod_folders

FIRST = 200_000
COUNT = 100_000


def first_free(uid: str, assigned: Collection[int], *, first: int, count: int) -> int:
    """Return the user that a pod's uid maps to, or the next free one."""
    wished = int(uid.replace("-", "")[-8:], 16)
    for step in range(count):
        user = first + (wished + step) % count
        if user not in assigned:
            return user
    raise ConfigError(f"all {count} users for pods are taken, from {first} on")


class Users:
    def __init__(self, pods: Path) -> None:
        self._pods = pods
        self._by_pod: dict[str, int] | None = None  # by the pod's uid; read on first use

    def __repr__(self) -> str:
        return f"<Users {len(self._by_pod or ())} taken>"

    @property
    def _assigned(self) -> dict[str, int]:
        if self._by_pod is None:
            records = {folder.uid: folder.record() for folder in pod_folders(self._pods)}
            self._by_pod = {
                uid: record.uid for uid, record in records.items() if record.uid is not None
            }
        return self._by_pod

    def take(self, uid: str) -> int:
        """Return the pod's user; assign one at the first call."""
        if uid not in self._assigned:
            self._assigned[uid] = first_free(
                uid, set(self._assigned.values()), first=FIRST, count=COUNT
            )
        return self._assigned[uid]

    def release(self, uid: str) -> None:
        """Free the user of a removed pod."""
        self._assigned.pop(uid, None)
