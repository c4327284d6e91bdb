"""Who a process is, and who descends from it, by what the kernel shows in /proc."""

import os


def start_time(pid: int) -> str:
    """When a process began, in ticks since boot: with its pid, a name nothing else has."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def descendants(pid: int) -> list[int]:
    """All that descend from a process, the nearest first."""
    found: list[int] = []
    nearest: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # any of them may have forked
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                nearest += [int(child) for child in file.read().split()]
    except OSError:
        pass
    for child in nearest:
        found += [child, *descendants(child)]
    return found
