"""All pods of one node, run as processes: for the agent, and for the kubelet's server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import structlog

from bidplane.core.pods.life import ContainerRun
from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import EventType, KubeClient, Object
from bidplane.machinery.clock import Clock
from bidplane.machinery.events import Recorder
from bidplane.machinery.informer import Informer
from bidplane.node.api import ExecSession, LogOptions
from bidplane.node.inventory.partitions import Partitions
from bidplane.node.process.container.container import Unit
from bidplane.node.process.container.sessions import Attached, Executed
from bidplane.node.process.container.shims import Launcher
from bidplane.node.process.gpumemory import GpuMemory
from bidplane.node.process.logs import reader
from bidplane.node.process.network.addresses import PodNetwork
from bidplane.node.process.records import Attempt, pod_folders, remove_leftovers
from bidplane.node.process.sandbox.users import Users
from bidplane.node.process.settings import ProcessSettings
from bidplane.node.process.supplies import Supplies, TokenClient
from bidplane.node.process.usage import declared
from bidplane.node.process.usage.summary import UsageMeter
from bidplane.node.process.worker import PodWorker
from bidplane.telemetry.model import Counters

_TIDY_SECONDS = 30.0

log = structlog.get_logger(__name__)


class ProcessRuntime:
    """A `node.api.PodRuntime`. `run()` runs until cancelled; the pods' processes continue."""

    def __init__(
        self,
        client: KubeClient,
        pods: Informer,
        settings: ProcessSettings,
        *,
        tokens: TokenClient | None,
        partitions: Partitions | None = None,
        memory: GpuMemory | None = None,
        clock: Clock,
    ) -> None:
        self.settings = settings
        self._memory = memory
        self.present: Mapping[tuple[str, str, str], str] = {}  # the node's devices
        self._client = client
        self._informer = pods
        self._clock = clock
        self._partitions = partitions
        self._supplies = Supplies(
            client, tokens, settings.volumes, partitions=partitions, clock=clock
        )
        self._recorder = Recorder("kubelet", clock=clock)
        self._launcher = Launcher()
        self._users = Users(settings.pods)
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.meter = UsageMeter(settings, self._workers.values, clock=clock)
        pods.on_change(self._changed)

    def __repr__(self) -> str:
        return f"<ProcessRuntime {self.settings.node} {len(self._workers)} pods>"

    async def run(self) -> None:
        """Adopt the pods that run, then follow the API."""
        self.settings.pods.mkdir(parents=True, exist_ok=True)
        for folder in (self.settings.state, self.settings.pods):
            folder.chmod(0o711)
        remove_leftovers(self.settings.pods)
        self._launcher.prepare()
        try:
            await self._informer.synced.wait()
            pods_by_uid = {pod["metadata"]["uid"]: pod for pod in self._informer.items()}
            for pod_folder in pod_folders(self.settings.pods):
                if pod_folder.uid not in pods_by_uid:
                    # Deleted while the node was down: it ends now.
                    self._adopt(pod_folder.pod()).mark_absent()
            for pod in pods_by_uid.values():
                self._adopt(pod)
            while True:
                if self._partitions is not None:
                    await self._partitions.keep_only(self._workers.keys())
                await self._clock.sleep(_TIDY_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._launcher.close()

    def devices_are(self, present: Mapping[tuple[str, str, str], str]) -> None:
        """Set the node's devices; wake the workers, which report lost ones."""
        if present != self.present:
            self.present = present
            for worker in self._workers.values():
                worker.wake()

    def _changed(self, event: EventType, pod: Object) -> None:
        if not self._informer.synced.is_set():
            return  # `run` will see it
        uid = pod["metadata"]["uid"]
        worker = self._workers.get(uid)
        if event == "DELETED":
            if worker is not None:
                worker.mark_absent()
        elif worker is not None:
            worker.update(pod)
        else:
            self._adopt(pod)

    def _adopt(self, pod: Object) -> PodWorker:
        uid = pod["metadata"]["uid"]
        if uid in self._workers:
            return self._workers[uid]
        worker = PodWorker(
            pod,
            client=self._client,
            settings=self.settings,
            supplies=self._supplies,
            present=lambda: self.present,
            recorder=self._recorder,
            launcher=self._launcher,
            users=self._users,
            clock=self._clock,
            memory=self._memory,
            siblings=self._workers.values,
        )
        self._workers[uid] = worker
        task = asyncio.create_task(worker.run())
        self._tasks[uid] = task
        task.add_done_callback(lambda done: self._worker_ended(uid, done))
        return worker

    def _worker_ended(self, uid: str, task: asyncio.Task[None]) -> None:
        self._workers.pop(uid, None)
        self._tasks.pop(uid, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("a pod's worker ended", uid=uid, exc_info=task.exception())

    def run_of(self, uid: str, container: str) -> ContainerRun | None:
        """Return the newest run of a pod's container."""
        worker = self._workers.get(uid)
        return worker.units[container].run if worker is not None else None

    # For the kubelet's server.

    def declared(self, slices: Sequence[Object]) -> list[Counters]:
        """Return the counters of declared devices, which no driver measures."""
        return declared.counters(slices, self._workers.values(), at=self._clock.now())

    def pods(self) -> list[Object]:
        return [worker.pod for worker in self._workers.values()]

    def find(self, namespace: str, name: str) -> Object:
        for worker in self._workers.values():
            metadata = worker.pod["metadata"]
            if (metadata["namespace"], metadata["name"]) == (namespace, name):
                return worker.pod
        raise NotFound(f'pods "{name}" not found on node {self.settings.node}')

    def _unit(self, pod: Object, container: str) -> Unit:
        worker = self._workers.get(pod["metadata"]["uid"])
        if worker is None:
            raise NotFound(f'pods "{pod["metadata"]["name"]}" not found')
        unit = worker.units.get(container)
        if unit is None:
            name = pod["metadata"]["name"]
            raise _bad_request(f"container {container} is not valid for pod {name}")
        return unit

    async def logs(self, pod: Object, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        unit = self._unit(pod, container)
        attempt = self._attempt(pod, unit, previous=options.previous)

        def running() -> bool:
            run = unit.run
            return unit.attempt is attempt and run is not None and run.running

        return reader.read(attempt.folder, options, running=running, clock=self._clock)

    def _attempt(self, pod: Object, unit: Unit, *, previous: bool) -> Attempt:
        name = pod["metadata"]["name"]
        worker = self._workers[pod["metadata"]["uid"]]
        if unit.attempt is None:
            raise _bad_request(f'container "{unit.name}" in pod "{name}" is waiting to start')
        if not previous:
            return unit.attempt
        attempts = worker.folder.attempts(unit.name)
        if len(attempts) < 2:
            raise _bad_request(
                f'previous terminated container "{unit.name}" in pod "{name}" not found'
            )
        return attempts[-2]

    async def exec(
        self, pod: Object, container: str, argv: Sequence[str], *, stdin: bool, tty: bool
    ) -> ExecSession:
        unit = self._running(pod, container)
        await unit.wait_joinable()
        try:
            return await Executed.start(
                unit.command(argv, stdin=stdin, tty=tty), stdin=stdin, tty=tty
            )
        except OSError as error:
            raise ApiError(f"cannot run {argv[0]!r}: {error}", code=500) from error

    async def attach(self, pod: Object, container: str, *, stdin: bool) -> ExecSession:
        unit = self._running(pod, container)
        assert unit.attempt is not None
        takes = bool(unit.spec.get("stdin") or unit.spec.get("tty"))
        if stdin and not takes:
            raise _bad_request(
                f"container {container} does not take stdin: set stdin: true in its spec"
            )
        attempt = unit.attempt
        code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def running() -> bool:
            run = unit.run
            if unit.attempt is attempt and run is not None and run.running:
                return True
            if not code.done():
                code.set_result(attempt.run().exit_code)
            return False

        output = reader.follow_output(attempt.folder, running=running, clock=self._clock)
        return Attached(attempt.folder / "control" if takes else None, output, code)

    def _running(self, pod: Object, container: str) -> Unit:
        unit = self._unit(pod, container)
        if unit.run is None or not unit.run.running or unit.run.started is None:
            raise _bad_request(f"container {container} is not running")
        return unit

    async def connect(
        self, pod: Object, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        worker = self._workers.get(pod["metadata"]["uid"])
        address = ((worker.pod if worker else pod).get("status") or {}).get("podIP")
        if worker is None or not address:
            raise _bad_request(f"pod {pod['metadata']['name']} has no address")
        network = self.settings.network
        uid = pod["metadata"]["uid"]
        if pod["spec"].get("hostNetwork"):
            place = PodNetwork(self.settings.host_ip)
            return await asyncio.open_connection(place.address, port)
        try:
            return await network.connect(network.find(uid, address), port)
        except OSError as error:
            raise ApiError(
                f"nothing answers on port {port} of pod {pod['metadata']['name']}: {error}",
                code=500,
            ) from error


def _bad_request(message: str) -> ApiError:
    return ApiError(message, code=400, reason="BadRequest")
