"""
Measures what runs: from its cgroups where it has some, else from /proc, process by process.

What a process used is counted by whoever waited for it, so the processes that live have all
of it: their own time, and that of those they outlived.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bidplane.node.process.lineage import descendants
from bidplane.node.process.settings import memory_bytes
from bidplane.node.stats import Disk, Sample

_TICKS = os.sysconf("SC_CLK_TCK")
_BLOCK = 512  # of st_blocks, whatever the file system's own


def of_container(procs: Sequence[str], pids: Sequence[int], *, at: float) -> Sample:
    """What its groups count, and of its processes what they do not."""
    cpu: float | None = None
    memory: dict[str, int] = {}
    for folder in {Path(path).parent for path in procs}:
        cpu = cpu if cpu is not None else _group_cpu(folder)
        memory = memory or _group_memory(folder)
    if cpu is not None and memory:
        return Sample(at=at, cpu_seconds=cpu, **memory)
    counted = of_processes(pids, at=at)
    if cpu is not None:
        counted = msgspec.structs.replace(counted, cpu_seconds=cpu)
    return msgspec.structs.replace(counted, **memory)


def _group_cpu(folder: Path) -> float | None:
    """Of v2 only: v1 counts in a tree of its own, which no process of ours joins for that."""
    microseconds = _words(folder / "cpu.stat").get("usage_usec")
    return None if microseconds is None else microseconds / 1e6


def _group_memory(folder: Path) -> dict[str, int]:
    counted = _words(folder / "memory.stat")
    # v1 counts a group alone, and with the groups below it; v2 always with these.
    prefix = "total_" if "total_rss" in counted else ""
    for name in ("memory.current", "memory.usage_in_bytes"):
        with suppress(OSError, ValueError):
            used = int((folder / name).read_text())
            return {
                "usage": used,
                "working_set": max(used - counted.get(f"{prefix}inactive_file", 0), 0),
                "rss": counted.get("anon", counted.get("total_rss", 0)),
                "faults": counted.get(f"{prefix}pgfault", 0),
                "major_faults": counted.get(f"{prefix}pgmajfault", 0),
            }
    return {}


def of_processes(pids: Iterable[int], *, at: float) -> Sample:
    """Of processes that live, and of those they waited for."""
    cpu = memory = faults = major = 0
    for pid in pids:
        with suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            cpu += sum(int(fields[index]) for index in (11, 12, 13, 14))
            faults += int(fields[7]) + int(fields[8])
            major += int(fields[9]) + int(fields[10])
            memory += _held(pid)
    return Sample(
        at=at,
        cpu_seconds=cpu / _TICKS,
        usage=memory,
        working_set=memory,
        rss=memory,
        faults=faults,
        major_faults=major,
    )


def _held(pid: int) -> int:
    """Its memory; what it shares with others is divided among them, where we may know."""
    with suppress(OSError):
        shared = _words(Path(f"/proc/{pid}/smaps_rollup")).get("Pss:")
        if shared is not None:
            return shared * 1024
    return _words(Path(f"/proc/{pid}/status")).get("VmRSS:", 0) * 1024


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    return [pid, *descendants(pid)]


def of_machine(*, at: float) -> Sample:
    with open("/proc/stat", "rb") as file:
        # user nice system idle iowait irq softirq steal
        times = [int(word) for word in file.readline().split()[1:9]]
    busy = sum(times) - times[3] - times[4]
    known = _words(Path("/proc/meminfo"))
    used = memory_bytes() - known.get("MemFree:", 0) * 1024
    return Sample(
        at=at,
        cpu_seconds=busy / _TICKS,
        usage=used,
        working_set=max(used - known.get("Inactive(file):", 0) * 1024, 0),
        rss=known.get("AnonPages:", 0) * 1024,
    )


def booted() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def network(pid: int) -> tuple[int, int] | None:
    """Bytes received and sent on a pod's own interface."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
            name, _, counted = line.partition(":")
            if name.strip() == "eth0":
                words = counted.split()
                return int(words[0]), int(words[8])
    return None


def _words(path: Path) -> dict[str, int]:
    """A file of names and numbers."""
    found = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) > 1 and words[1].isdecimal():
                found[words[0]] = int(words[1])
    return found


# Disks.


def file_system(path: Path, *, at: float, used: int = -1, inodes_used: int = -1) -> Disk:
    """The file system a path is on; of which so much is used by somebody in particular."""
    state = os.statvfs(path)
    return Disk(
        at=at,
        capacity=state.f_blocks * state.f_frsize,
        available=state.f_bavail * state.f_frsize,
        used=(state.f_blocks - state.f_bfree) * state.f_frsize if used < 0 else used,
        inodes=state.f_files,
        inodes_free=state.f_ffree,
        inodes_used=state.f_files - state.f_ffree if inodes_used < 0 else inodes_used,
    )


async def below(path: Path) -> tuple[int, int]:
    """What a folder holds, in bytes on the disk and in files; beside everything else."""
    return await asyncio.to_thread(_below, path)


def _below(path: Path) -> tuple[int, int]:
    try:
        top = os.lstat(path)
    except OSError:
        return 0, 0
    size, seen = top.st_blocks * _BLOCK, {top.st_ino}
    folders = [os.fspath(path)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if found.st_dev != top.st_dev or found.st_ino in seen:
                        continue  # mounted here, or a second name of a file
                    seen.add(found.st_ino)
                    size += found.st_blocks * _BLOCK
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
    return size, len(seen)
