"""All that runs on this node, measured: for `/stats/summary` and `/metrics/resource`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bidplane.machinery.clock import Clock, parse_rfc3339
from bidplane.node.process import usage
from bidplane.node.process.settings import Settings, memory_bytes
from bidplane.node.process.unit import Unit
from bidplane.node.process.worker import Worker
from bidplane.node.stats import ContainerUse, NodeUse, PodUse


class Meter:
    def __init__(
        self, settings: Settings, workers: Callable[[], Iterable[Worker]], *, clock: Clock
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._clock = clock

    async def read(self, *, disks: bool) -> NodeUse:
        """`disks` takes longer: folders are walked."""
        now = self._clock.now()
        pods = [await self._pod(worker, disks=disks) for worker in list(self._workers())]
        disk = usage.file_system(self._settings.state, at=now) if disks else None
        return NodeUse(
            name=self._settings.node,
            booted=usage.booted(),
            memory=memory_bytes(),
            sample=usage.of_machine(at=now),
            disk=disk,
            pods=[pod for pod in pods if pod is not None],
        )

    async def _pod(self, worker: Worker, *, disks: bool) -> PodUse | None:
        """None when nothing of it runs, as a kubelet leaves out what has ended."""
        if disks:
            await worker.storage.measure()
        containers, processes = [], 0
        network: tuple[int, int] | None = None
        for unit in worker.units.values():
            found = self._container(unit, worker if disks else None)
            if found is not None:
                one, pids = found
                containers.append(one)
                processes += len(pids)
                if self._settings.network.kind == "namespace" and pids:
                    network = usage.network(pids[0])
        if not containers:
            return None
        metadata = worker.pod["metadata"]
        started = (worker.pod.get("status") or {}).get("startTime")
        return PodUse(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            started=parse_rfc3339(started) if started else self._clock.now(),
            containers=containers,
            processes=processes,
            volumes=worker.storage.volumes if disks else {},
            network=None if worker.pod["spec"].get("hostNetwork") else network,
        )

    def _container(
        self, unit: Unit, worker: Worker | None
    ) -> tuple[ContainerUse, list[int]] | None:
        state = unit.attempt.state() if unit.attempt is not None else None
        if state is None or unit.run is None or not unit.run.running or not state.alive():
            return None
        now = self._clock.now()
        pids = usage.tree(state.pid)
        sample = usage.of_container(unit.cgroups, pids, at=now)
        logs = worker.storage.logs.get(unit.name) if worker is not None else None
        return ContainerUse(name=unit.name, started=state.started, sample=sample, logs=logs), pids
