"""
Measures resource usage: from a container's cgroups if it has some, else per process from /proc.

A process also counts the usage of children that it waited for, so the live processes account
for all usage: their own, and that of children that have ended.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bidplane.node.process.container.lineage import descendants
from bidplane.node.process.settings import memory_bytes
from bidplane.node.stats import Disk, Sample

_TICKS = os.sysconf("SC_CLK_TCK")
_BLOCK = 512  # of st_blocks, whatever the file system's own


def container_sample(procs: Sequence[str], pids: Sequence[int], *, at: float) -> Sample:
    """Return a container's usage: from its cgroups, and otherwise from its processes."""
    cpu: float | None = None
    memory: dict[str, int] = {}
    for folder in {Path(path).parent for path in procs}:
        cpu = cpu if cpu is not None else _group_cpu(folder)
        memory = memory or _group_memory(folder)
    if cpu is not None and memory:
        return Sample(at=at, cpu_seconds=cpu, **memory)
    counted = process_sample(pids, at=at)
    if cpu is not None:
        counted = msgspec.structs.replace(counted, cpu_seconds=cpu)
    return msgspec.structs.replace(counted, **memory)


def _group_cpu(folder: Path) -> float | None:
    """Return CPU seconds, with cgroup v2 only: our processes join no v1 cpuacct group."""
    microseconds = _read_counters(folder / "cpu.stat").get("usage_usec")
    return None if microseconds is None else microseconds / 1e6


def _group_memory(folder: Path) -> dict[str, int]:
    counted = _read_counters(folder / "memory.stat")
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


def process_sample(pids: Iterable[int], *, at: float) -> Sample:
    """Return the usage of live processes, and of ended children that they waited for."""
    cpu = memory = faults = major = 0
    for pid in pids:
        with suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            cpu += sum(int(fields[index]) for index in (11, 12, 13, 14))
            faults += int(fields[7]) + int(fields[8])
            major += int(fields[9]) + int(fields[10])
            memory += _memory_bytes(pid)
    return Sample(
        at=at,
        cpu_seconds=cpu / _TICKS,
        usage=memory,
        working_set=memory,
        rss=memory,
        faults=faults,
        major_faults=major,
    )


def _memory_bytes(pid: int) -> int:
    """Return a process's memory; shared memory is divided among its users if readable."""
    with suppress(OSError):
        shared = _read_counters(Path(f"/proc/{pid}/smaps_rollup")).get("Pss:")
        if shared is not None:
            return shared * 1024
    return _read_counters(Path(f"/proc/{pid}/status")).get("VmRSS:", 0) * 1024


def tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    return [pid, *descendants(pid)]


def machine_sample(*, at: float) -> Sample:
    with open("/proc/stat", "rb") as file:
        # user nice system idle iowait irq softirq steal
        times = [int(word) for word in file.readline().split()[1:9]]
    busy = sum(times) - times[3] - times[4]
    memory_info = _read_counters(Path("/proc/meminfo"))
    used = memory_bytes() - memory_info.get("MemFree:", 0) * 1024
    return Sample(
        at=at,
        cpu_seconds=busy / _TICKS,
        usage=used,
        working_set=max(used - memory_info.get("Inactive(file):", 0) * 1024, 0),
        rss=memory_info.get("AnonPages:", 0) * 1024,
    )


def booted() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def network(pid: int) -> tuple[int, int] | None:
    """Return the bytes received and sent on a pod's own interface."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
            name, _, counted = line.partition(":")
            if name.strip() == "eth0":
                fields = counted.split()
                return int(fields[0]), int(fields[8])
    return None


def _read_counters(path: Path) -> dict[str, int]:
    """Return the numbers in a file of `name number` lines, by name."""
    numbers = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            fields = line.split()
            if len(fields) > 1 and fields[1].isdecimal():
                numbers[fields[0]] = int(fields[1])
    return numbers


# Disks.


def file_system(path: Path, *, at: float, used: int = -1, inodes_used: int = -1) -> Disk:
    """Return the file system of a path; `used` and `inodes_used` replace its own usage."""
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


async def folder_usage(path: Path) -> tuple[int, int]:
    """Return the bytes on disk and the number of files below a folder, read in a thread."""
    return await asyncio.to_thread(_folder_usage, path)


def _folder_usage(path: Path) -> tuple[int, int]:
    try:
        top = os.lstat(path)
    except OSError:
        return 0, 0
    size, inodes = top.st_blocks * _BLOCK, {top.st_ino}
    folders = [os.fspath(path)]
    while folders:
        try:
            size += _scan(folders.pop(), top.st_dev, inodes, folders)
        except (FileNotFoundError, NotADirectoryError):
            continue  # its owner removed or replaced it
        except OSError:
            # Too deep for a path, or closed to us: it may hold any amount, and a limit that it
            # could hide from would be none.
            state = os.statvfs(path)
            return state.f_blocks * state.f_frsize, len(inodes)
    return size, len(inodes)


def _scan(folder: str, device: int, inodes: set[int], folders: list[str]) -> int:
    """Return the bytes of a folder's entries that were not counted; add its folders to the list."""
    size = 0
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    if info.st_dev != device or info.st_ino in inodes:
                        continue  # mounted here, or a second name of a file
                    inodes.add(info.st_ino)
                    size += info.st_blocks * _BLOCK
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{folder}/{entry.name}")
    finally:
        os.close(descriptor)
    return size
