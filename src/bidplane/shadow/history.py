"""
A recording of past weeks, from a Prometheus with kube-state-metrics and DCGM's series.

It is asked for a day at a time. A day that is too much for it is halved, down to an hour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from bidplane.core.shadow import queries
from bidplane.core.shadow.model import ClusterRecording, DeviceUse, Gap, NodeGpus
from bidplane.core.shadow.series import PodHistory, holder_name, pod_name
from bidplane.core.shadow.stretches import MeasuredDevice, StretchRecorder
from bidplane.errors import UserError
from bidplane.telemetry.dcgm import Point
from bidplane.telemetry.prometheus import MetricHistory, QueryRefused

_CHUNK = 86_400  # seconds
_SMALLEST = 3600
_METRICS = (queries.ENGINE, queries.UTILISATION)
_NO_USE = Gap(
    source=f"{queries.ENGINE}, {queries.UTILISATION}",
    cost="whether GPUs that are held do anything is unknown: no GPU counts as idle",
)
_NO_NODES = Gap(
    source=queries.ALLOCATABLE,
    cost="the fleet is taken to be the GPUs that DCGM saw, or the most that pods held at once",
)
Progress = Callable[[float], None]  # called with the time up to which all is read


class HistorySource(Protocol):
    """A Prometheus, as `telemetry.prometheus.PrometheusReader` reads it."""

    async def at(self, query: str, moment: float) -> list[Point]: ...

    async def over(
        self, query: str, *, begin: float, end: float, step: int
    ) -> list[MetricHistory]: ...


async def read_history(
    source: HistorySource,
    name: str,
    *,
    begin: float,
    end: float,
    step: int,
    resource: str,
    below: float,
    progress: Progress = lambda moment: None,
) -> ClusterRecording:
    """Read the recording of a window; raises `UserError` if no pod with a GPU is in it."""
    # On the grid of steps, so that a window read again later gives the same.
    begin, end = begin - begin % step, end - end % step
    if end <= begin:
        raise UserError(f"--since must be at least a step of {step} s")
    reader = _HistoryReader(source, step=step, resource=resource, below=below)
    moment = begin
    while moment < end:
        until = min(moment + _CHUNK, end)
        await _in_parts(reader.read, int(moment), int(until), step)
        moment = until
        progress(moment)
    return reader.recording(name, begin, end)


class UseReader:
    """Reads what devices did, as DCGM saw it."""

    def __init__(self, source: HistorySource, *, step: int, below: float) -> None:
        self.recorder = StretchRecorder(step=step, below=below)
        self.has_points = False
        self.devices_by_host: dict[str, set[str]] = {}
        self._source, self._step = source, step

    def gaps(self) -> list[Gap]:
        return [] if self.has_points else [_NO_USE]

    async def read(self, begin: int, end: int) -> dict[MeasuredDevice, list[float]]:
        """Read the steps after `begin` up to `end`; return those of each device, by their ends."""
        busiest: dict[MeasuredDevice, dict[float, float]] = {}
        for metric in _METRICS:
            query = queries.busiest(metric, self._step)
            first = begin + self._step
            if first > end:
                continue
            for series in await self._source.over(query, begin=first, end=end, step=self._step):
                self._note(series, queries.PERCENT[metric], busiest)
        for device, steps in busiest.items():
            for moment, percent in sorted(steps.items()):
                self.recorder.add(device, moment, percent)
        return {device: sorted(steps) for device, steps in busiest.items()}

    def _note(
        self,
        series: MetricHistory,
        unit: float,
        busiest: dict[MeasuredDevice, dict[float, float]],
    ) -> None:
        labels = series.labels
        self.has_points = True
        uuid, instance = labels.get("UUID", ""), labels.get("GPU_I_ID", "")
        self.devices_by_host.setdefault(labels.get("Hostname", ""), set()).add(uuid)
        namespace, pod = holder_name(labels)
        if not pod or not uuid:
            return
        device = MeasuredDevice(namespace, pod, f"{uuid}/{instance}" if instance else uuid)
        steps = busiest.setdefault(device, {})
        for moment, value in series.values:
            if value == value:  # NaN is no value
                # Of two series of one device, the busier counts.
                steps[moment] = max(steps.get(moment, 0.0), value * unit)


class _HistoryReader:
    """The state of reading a history."""

    def __init__(self, source: HistorySource, *, step: int, resource: str, below: float) -> None:
        self._source, self._resource, self._step = source, resource, step
        self._pods = PodHistory()
        self._use = UseReader(source, step=step, below=below)
        self._nodes: dict[str, int] = {}
        self._parts: set[tuple[str, str]] = set()  # pods with MIG instances
        self._claiming: set[tuple[str, str]] = set()  # pods with devices that asked for no integers

    async def read(self, begin: int, end: int) -> None:
        """Read one window."""
        seconds, resource, pods = end - begin, self._resource, self._pods
        # All that may be refused comes before anything is noted.
        requested = await self._source.at(queries.pods_with_gpus(resource, seconds), end)
        sightings = await self._source.at(queries.last_seen(resource, seconds), end)
        times = {
            metric: await self._source.at(queries.time_of(metric, resource, seconds), end)
            for metric in queries.TIMES
        }
        owners = await self._source.at(queries.owners(resource, seconds), end)
        offered = await self._source.at(queries.offered(resource, seconds), end)
        steps_by_device = await self._use.read(begin, end)
        for point in requested:
            pods.requested(point.labels, point.value)
        for point in sightings:
            pods.seen(point.labels, point.value)
        self._note_times(times)
        for point in owners:
            pods.owned(point.labels)
        for point in offered:
            node = point.labels.get("node", "")
            self._nodes[node] = max(self._nodes.get(node, 0), int(point.value))
        await self._read_unrequested(steps_by_device, seconds, end)

    def _note_times(self, times: dict[str, list[Point]]) -> None:
        for metric, points in times.items():
            for point in points:
                self._pods.timed(metric, point.labels, point.value)

    async def _read_unrequested(
        self, steps_by_device: dict[MeasuredDevice, list[float]], seconds: int, end: int
    ) -> None:
        """Note pods that asked for no integers, as those with ResourceClaims."""
        with_integers = self._pods.names() - self._claiming
        unrequested: dict[tuple[str, str], dict[str, list[float]]] = {}
        for device, steps in steps_by_device.items():
            pod = (device.namespace, device.pod)
            if pod in with_integers or not steps:
                continue
            if "/" in device.device:
                self._parts.add(pod)
                continue
            unrequested.setdefault(pod, {})[device.device] = steps
        await self._read_named([name for _, name in unrequested], unrequested, seconds, end)
        for (namespace, name), devices in unrequested.items():
            self._claiming.add((namespace, name))
            self._pods.held(
                namespace,
                name,
                devices=len(devices),
                begin=min(steps[0] for steps in devices.values()) - self._step,
                end=max(steps[-1] for steps in devices.values()),
            )

    async def _read_named(
        self,
        names: list[str],
        unrequested: dict[tuple[str, str], dict[str, list[float]]],
        seconds: int,
        end: int,
    ) -> None:
        """Note the times and owners of pods that are known by name only."""
        for pattern in queries.named(names):
            for metric in queries.TIMES:
                points = await self._source.at(queries.time_of_named(metric, pattern, seconds), end)
                for point in points:
                    if pod_name(point.labels) in unrequested:
                        self._pods.timed(metric, point.labels, point.value)
            for point in await self._source.at(queries.owners_of_named(pattern, seconds), end):
                if pod_name(point.labels) in unrequested:
                    self._pods.owned(point.labels)

    def recording(self, name: str, begin: float, end: float) -> ClusterRecording:
        pods = [pod for pod in self._pods.pods(end=end) if pod.ended is None or pod.ended > begin]
        if not pods:
            raise UserError(self._nothing_there(name))
        gaps = [*self._pods.gaps(), *self._use.gaps()]
        nodes = [NodeGpus(node, gpus) for node, gpus in sorted(self._nodes.items()) if gpus]
        if not nodes:
            gaps.append(_NO_NODES)
            nodes = [
                NodeGpus(host, len(uuids))
                for host, uuids in sorted(self._use.devices_by_host.items())
            ]
        if self._parts:
            gaps.append(
                Gap(
                    source=f"{len(self._parts)} pods with MIG instances",
                    cost="they are left out: only whole GPUs are counted",
                )
            )
        names = {(pod.namespace, pod.name) for pod in pods}
        uses: list[DeviceUse] = [
            use for use in self._use.recorder.uses() if (use.namespace, use.pod) in names
        ]
        return ClusterRecording(
            source=name,
            begin=begin,
            end=end,
            step=self._step,
            nodes=nodes,
            pods=pods,
            uses=uses,
            gaps=gaps,
            waits_known=all(map(self._pods.has_series, (queries.CREATED, queries.SCHEDULED))),
        )

    def _nothing_there(self, name: str) -> str:
        series = queries.series_resource(self._resource)
        if self._parts:
            return f"{name} knows only pods with MIG instances ({len(self._parts)}) in that time"
        return (
            f"{name} knows no pod with GPUs in that time: it has no points of"
            f' {queries.REQUESTS}{{resource="{series}"}} (kube-state-metrics), and no DCGM series'
            " that names a pod. Is it the Prometheus of that cluster? See --resource and --since"
        )


async def _in_parts(
    read: Callable[[int, int], Awaitable[None]], begin: int, end: int, step: int
) -> None:
    """Read a window, in halves if the whole is too much for one query."""
    try:
        await read(begin, end)
    except QueryRefused:
        middle = (begin + end) // 2
        middle -= middle % step
        if end - begin <= _SMALLEST or middle <= begin:
            raise
        await _in_parts(read, begin, middle, step)
        await _in_parts(read, middle, end, step)
