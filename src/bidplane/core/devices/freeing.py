"""
Verified release: when the memory of a pod's devices counts as free, after the pod has ended. Pure.

A driver frees memory some time after a process has gone, and a process that was left behind never
does. So an ended pod keeps its devices, and with them its lease, until their counters show no more
memory in use than before it started. After `LONGEST_SECONDS` it ends all the same: then the
devices are tainted, and nobody gets them before their memory is seen free.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

LONGEST_SECONDS = 60.0  # that a pod is kept for its devices' memory
LOOK_SECONDS = 1.0  # between two looks at it
TAINT = "bidplane.dev/memory-in-use"
IN_USE, NOT_FREED, FREED = "MemoryInUse", "MemoryNotFreed", "MemoryFreed"  # reasons of Events
# What an idle GPU may show above what it showed before: a driver's own use varies.
_SLACK_BYTES = 512 << 20
_GIB = 1 << 30


class MemoryInUse(msgspec.Struct, frozen=True):
    """The memory of a device that should be free."""

    uuid: str
    used: int  # bytes
    allowed: int  # bytes that count as free

    def __str__(self) -> str:
        return f"{self.used / _GIB:.1f} GiB"

    @property
    def taint(self) -> str:
        """The value of its taint."""
        return f"{self.used / _GIB:.1f}GiB"


def allowed_bytes(before: int) -> int:
    """Return how much memory of a free device may be in use; `before`: before its pod started."""
    return before + _SLACK_BYTES


def in_use(used: Mapping[str, int], allowed: Mapping[str, int]) -> list[MemoryInUse]:
    """Return the devices of `allowed`, by UUID, that use more; those not measured are left out."""
    return [
        MemoryInUse(uuid, used[uuid], most)
        for uuid, most in sorted(allowed.items())
        if used.get(uuid, 0) > most
    ]


def waiting_message(occupied: Mapping[str, MemoryInUse]) -> str:
    """Return what an Event says of a pod that is kept; `occupied`: by device."""
    return (
        f"its processes have ended, and {_listed(occupied)}: its lease ends once that is free, at"
        f" the latest in {LONGEST_SECONDS:.0f} s"
    )


def given_up_message(occupied: Mapping[str, MemoryInUse]) -> str:
    """Return what an Event says of devices that are not free after the longest wait."""
    return (
        f"{LONGEST_SECONDS:.0f} s after their pod has ended {_listed(occupied)}: not for sale until"
        " that is free; `nvidia-smi` lists the processes that hold it"
    )


def _listed(occupied: Mapping[str, MemoryInUse]) -> str:
    listed = ", ".join(f"{device} ({memory})" for device, memory in sorted(occupied.items()))
    return f"{listed} still {'has' if len(occupied) == 1 else 'have'} memory in use"
