"""
Resource limits of containers: cgroups if they can be written, else rlimits.

Groups are made under the agent's own, so whatever holds the agent holds its pods: in v2
one tree, in v1 one per controller. Memory, processes and CPU time are limited; of the
rest Kubernetes only schedules.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from bidplane.kube.client import Object
from bidplane.node.process.container.lineage import descendants
from bidplane.wire.quantity import parse as parse_quantity

_PERIOD_US = 100_000
_CONTROLLERS = ("memory", "pids", "cpu")
_AGENTS = "bidplane-agent"


class ResourceLimits(msgspec.Struct, frozen=True):
    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None

    def asks(self, controller: str) -> bool:
        limits = {"memory": self.memory, "pids": self.pids, "cpu": self.cpus}
        return bool(limits[controller])


def limits_of(container: Object, *, pids: int) -> ResourceLimits:
    declared = (container.get("resources") or {}).get("limits") or {}
    return ResourceLimits(
        memory=int(parse_quantity(declared["memory"])) if "memory" in declared else None,
        cpus=float(parse_quantity(declared["cpu"])) if "cpu" in declared else None,
        pids=pids,
    )


class Group(msgspec.Struct, frozen=True):
    """The cgroups of a container; empty if no cgroup can be written."""

    procs: tuple[str, ...] = ()
    oom_file: str = ""
    enforced: frozenset[str] = frozenset()


class Cgroups:
    """The cgroup controllers in which this process can make groups."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._unified: Path | None = None
        self._trees: dict[str, Path] = {}
        self._find()

    def __repr__(self) -> str:
        return f"<Cgroups {' '.join(self.controllers) or 'none'}>"

    @property
    def controllers(self) -> list[str]:
        """The controllers that can set limits."""
        return sorted(self._trees)

    def _find(self) -> None:
        for hierarchy, controllers, path in _memberships():
            if hierarchy == "0":
                self._find_unified(path)
                continue
            for controller in controllers:
                tree = Path("/sys/fs/cgroup") / controller
                if controller in _CONTROLLERS and (tree / "cgroup.procs").exists():
                    self._try(controller, tree / path.lstrip("/"))

    def _find_unified(self, path: str) -> None:
        root = Path("/sys/fs/cgroup")
        if not (root / "cgroup.controllers").exists():
            return
        own = root / path.lstrip("/")
        if own.name == _AGENTS:
            own = own.parent  # we have stepped aside before
        base = own / self.name
        try:
            offered = (own / "cgroup.controllers").read_text().split()
            usable = [controller for controller in _CONTROLLERS if controller in offered]
            base.mkdir(exist_ok=True)
            enabled = " ".join(f"+{controller}" for controller in usable)
            _divide(own, enabled)
            (base / "cgroup.subtree_control").write_text(enabled)
        except OSError:
            with suppress(OSError):
                base.rmdir()
            return
        self._unified = base
        self._trees = dict.fromkeys(usable, base)

    def _try(self, controller: str, own: Path) -> None:
        base = own / self.name
        with suppress(OSError):
            base.mkdir(exist_ok=True)
            if os.access(base / "cgroup.procs", os.W_OK):
                self._trees.setdefault(controller, base)

    def make(self, name: str, limits: ResourceLimits) -> Group:
        """Return a new group for one container, with its limits."""
        procs: dict[str, None] = {}
        oom, enforced = "", set()
        for controller, base in self._trees.items():
            if self._unified is None and not limits.asks(controller):
                continue  # to join a group takes milliseconds, and v1 has one for each
            folder = base / name
            try:
                folder.mkdir(exist_ok=True)
                if self._limit(controller, folder, limits):
                    enforced.add(controller)
            except OSError:
                continue
            procs[str(folder / "cgroup.procs")] = None
            if controller == "memory":
                v2 = folder / "memory.events"
                oom = str(v2 if v2.exists() else folder / "memory.oom_control")
        return Group(tuple(procs), oom, frozenset(enforced))

    def _limit(self, controller: str, folder: Path, limits: ResourceLimits) -> bool:
        unified = self._unified is not None
        match controller:
            case "memory" if limits.memory:
                name = "memory.max" if unified else "memory.limit_in_bytes"
                (folder / name).write_text(str(limits.memory))
                if unified:
                    with suppress(OSError):
                        (folder / "memory.oom.group").write_text("1")
                return True
            case "pids" if limits.pids:
                (folder / "pids.max").write_text(str(limits.pids))
                return True
            case "cpu" if limits.cpus:
                quota = str(max(int(limits.cpus * _PERIOD_US), 1000))
                if unified:
                    (folder / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
                else:
                    (folder / "cpu.cfs_quota_us").write_text(quota)
                return True
        return False

    def remove(self, name: str) -> None:
        """Remove one container's groups, except those that still have a process."""
        for base in set(self._trees.values()):
            with suppress(OSError):
                (base / name).rmdir()

    def close(self) -> None:
        for base in set(self._trees.values()):
            with suppress(OSError):
                base.rmdir()


def _divide(own: Path, enabled: str) -> None:
    """
    Let a group's children have limits; raises `OSError` if not permitted.

    A v2 group has either processes or limits for its children (only the root has both), and
    the agent is in it: in a service's or a user's own group it goes into a child of that.
    """
    try:
        (own / "cgroup.subtree_control").write_text(enabled)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        ours = {os.getpid(), *descendants(os.getpid())}
        inside = {int(pid) for pid in (own / "cgroup.procs").read_text().split()}
        if not inside <= ours:
            raise  # others live here: a login, say
        aside = own / _AGENTS
        aside.mkdir(exist_ok=True)
        for pid in inside:
            with suppress(ProcessLookupError):
                (aside / "cgroup.procs").write_text(str(pid))
        (own / "cgroup.subtree_control").write_text(enabled)


def _memberships() -> Iterator[tuple[str, list[str], str]]:
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            hierarchy, controllers, path = line.split(":", 2)
            yield hierarchy, controllers.split(","), path


def rlimits(
    limits: ResourceLimits, enforced: frozenset[str], *, own_user: bool
) -> list[tuple[int, int]]:
    """
    Return the limits that cgroups do not enforce, as resource limits of the process.

    RLIMIT_NPROC counts per user; for pods that share our user, see `Confined.processes`.
    """
    resource_limits = []
    if limits.memory and "memory" not in enforced:
        # Not RLIMIT_AS: CUDA reserves address space by the terabyte and never touches it.
        resource_limits.append((resource.RLIMIT_DATA, limits.memory))
    if limits.pids and "pids" not in enforced and own_user:
        resource_limits.append((resource.RLIMIT_NPROC, limits.pids))
    return resource_limits
