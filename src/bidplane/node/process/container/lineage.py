"""The identity of a process and its descendants, from /proc."""

import os


def start_time(pid: int) -> str:
    """Return the start of a process in ticks since boot; with its pid it is unique."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, the nearest first."""
    descendant_pids: list[int] = []
    nearest: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # any of them may have forked
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                nearest += [int(child) for child in file.read().split()]
    except OSError:
        pass
    for child in nearest:
        descendant_pids += [child, *descendants(child)]
    return descendant_pids
