"""Resource usage of all pods on this node, for `/stats/summary` and `/metrics/resource`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bidplane.api.times import parse_rfc3339
from bidplane.machinery.clock import Clock
from bidplane.node.process.container.container import Unit
from bidplane.node.process.settings import ProcessSettings, memory_bytes
from bidplane.node.process.usage import counters
from bidplane.node.process.worker import PodWorker
from bidplane.node.stats import ContainerUse, NodeUse, PodUse


class UsageMeter:
    def __init__(
        self, settings: ProcessSettings, workers: Callable[[], Iterable[PodWorker]], *, clock: Clock
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._clock = clock

    async def read(self, *, disks: bool) -> NodeUse:
        """Return the usage of the node and its pods; `disks` takes longer, as it walks folders."""
        now = self._clock.now()
        pods = [await self._pod(worker, disks=disks) for worker in list(self._workers())]
        disk = counters.file_system(self._settings.state, at=now) if disks else None
        return NodeUse(
            name=self._settings.node,
            booted=counters.booted(),
            memory=memory_bytes(),
            sample=counters.machine_sample(at=now),
            disk=disk,
            pods=[pod for pod in pods if pod is not None],
        )

    async def _pod(self, worker: PodWorker, *, disks: bool) -> PodUse | None:
        """Return a pod's usage; None if none of it runs, as a kubelet leaves out ended pods."""
        if disks:
            await worker.storage.measure()
        containers, processes = [], 0
        network: tuple[int, int] | None = None
        for unit in worker.units.values():
            measured = self._container(unit, worker if disks else None)
            if measured is not None:
                usage, pids = measured
                containers.append(usage)
                processes += len(pids)
                if self._settings.network.kind == "namespace" and pids:
                    network = counters.network(pids[0])
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
        self, unit: Unit, worker: PodWorker | None
    ) -> tuple[ContainerUse, list[int]] | None:
        state = unit.attempt.state() if unit.attempt is not None else None
        if state is None or unit.run is None or not unit.run.running or not state.alive():
            return None
        now = self._clock.now()
        pids = counters.tree(state.pid)
        sample = counters.container_sample(unit.cgroups, pids, at=now)
        logs = worker.storage.logs.get(unit.name) if worker is not None else None
        return ContainerUse(name=unit.name, started=state.started, sample=sample, logs=logs), pids
