"""
The system's users that pods run as: one each, never one for two.

Who has which is in the pods' own records, so that a new agent knows; a user is free again when
nothing of its pod is left. Only pods of one node are told apart: of two nodes on one machine,
each with a folder of its own, neither knows the other's.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bidplane.core.pods.environment import ConfigError
from bidplane.node.process.records import known_pods

FIRST = 200_000
COUNT = 100_000


def first_free(uid: str, taken: Collection[int], *, first: int, count: int) -> int:
    """The user that follows from a pod's uid, or the next that nobody has."""
    wished = int(uid.replace("-", "")[-8:], 16)
    for step in range(count):
        user = first + (wished + step) % count
        if user not in taken:
            return user
    raise ConfigError(f"all {count} users for pods are taken, from {first} on")


class Users:
    def __init__(self, pods: Path) -> None:
        self._pods = pods
        self._known: dict[str, int] | None = None  # by the pod's uid, once anybody asked

    def __repr__(self) -> str:
        return f"<Users {len(self._known or ())} taken>"

    @property
    def _held(self) -> dict[str, int]:
        if self._known is None:
            records = {folder.uid: folder.record() for folder in known_pods(self._pods)}
            self._known = {
                uid: record.uid for uid, record in records.items() if record.uid is not None
            }
        return self._known

    def take(self, uid: str) -> int:
        """The pod's user; the same one however often it is asked for."""
        if uid not in self._held:
            self._held[uid] = first_free(uid, set(self._held.values()), first=FIRST, count=COUNT)
        return self._held[uid]

    def release(self, uid: str) -> None:
        """Nothing of the pod is left."""
        self._held.pop(uid, None)
