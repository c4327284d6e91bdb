"""
The runtime behind a simulated node's server: logs only, since no process runs.

A simulated pod's log is a function of the pod and the time, one line a second, so a restart of the
node loses none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock
from bidplane.node.api import ExecSession, LogOptions
from bidplane.node.simulated import SimulatedNodes
from bidplane.node.simulatedstatus import began_at, devices_of

Line = tuple[float, bytes]


class SimulatedRuntime:
    """The `PodRuntime` of simulated nodes."""

    def __init__(self, nodes: SimulatedNodes, *, clock: Clock) -> None:
        self._nodes, self._clock = nodes, clock

    def pods(self) -> list[Object]:
        return [pod for pod in self._nodes.pods.items() if self._nodes.has(pod)]

    def find(self, namespace: str, name: str) -> Object:
        pod = self._nodes.pods.get(namespace, name)
        if pod is None or not self._nodes.has(pod):
            raise NotFound(f'pods "{name}" not found on this node')
        return pod

    async def logs(self, pod: Object, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        self._check(pod, container)
        if options.previous:
            name = pod["metadata"]["name"]
            raise _bad(f'previous terminated container "{container}" in pod "{name}" not found')
        return _limited(self._lines(pod, container, options), options)

    async def exec(
        self, pod: Object, container: str, argv: Sequence[str], *, stdin: bool, tty: bool
    ) -> ExecSession:
        raise _nothing_runs(pod)

    async def attach(self, pod: Object, container: str, *, stdin: bool) -> ExecSession:
        raise _nothing_runs(pod)

    async def connect(
        self, pod: Object, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raise _nothing_runs(pod)

    def _check(self, pod: Object, container: str) -> None:
        """Raise `ApiError` if the container does not exist or has not started."""
        name = pod["metadata"]["name"]
        if container not in [spec["name"] for spec in pod["spec"]["containers"]]:
            raise _bad(f"container {container} is not valid for pod {name}")
        if (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            raise _bad(f'container "{container}" in pod "{name}" is waiting to start')

    async def _lines(self, pod: Object, container: str, options: LogOptions) -> AsyncIterator[Line]:
        """Yield the lines that the options select, and new ones while following."""
        printed = self._log_lines(pod, container)
        lines = [line for line in printed if options.since is None or line[0] >= options.since]
        if options.tail_lines is not None:
            lines = lines[len(lines) - min(options.tail_lines, len(lines)) :]
        for line in lines:
            yield line
        key = pod["metadata"]["namespace"], pod["metadata"]["name"]
        while options.follow:
            await self._clock.sleep(1.0)
            current = self._nodes.pods.get(*key)
            if current is None or current["metadata"]["uid"] != pod["metadata"]["uid"]:
                return
            current_lines = self._log_lines(current, container)
            restarted = current_lines[:1] != printed[:1]
            for line in current_lines if restarted else current_lines[len(printed) :]:
                yield line
            printed = current_lines
            if current["status"]["phase"] != "Running":
                return

    def _log_lines(self, pod: Object, container: str) -> list[Line]:
        """All lines that the container has written until now, with their times."""
        began = parse_rfc3339(began_at(pod))
        devices = devices_of(pod)
        ended = _ended_at(pod)
        until = ended if ended is not None else self._clock.now()
        lines = [(began, f"simulated on {', '.join(devices) or 'no GPU'}")]
        lines += [
            (began + second, f"second {second}") for second in range(1, int(until - began) + 1)
        ]
        if ended is not None:
            lines.append((ended, "ended"))
        return [
            (written_at, f"{rfc3339(written_at)} {container}: {text}\n".encode())
            for written_at, text in lines
        ]


async def _limited(lines: AsyncIterator[Line], options: LogOptions) -> AsyncIterator[bytes]:
    """The lines as bytes, with timestamps if asked for, cut at `limit_bytes`."""
    bytes_left = options.limit_bytes
    async for written_at, text in lines:
        line = f"{rfc3339(written_at)} ".encode() + text if options.timestamps else text
        if bytes_left is not None:
            line = line[:bytes_left]
            bytes_left -= len(line)
        yield line
        if bytes_left == 0:
            return


def _ended_at(pod: Object) -> float | None:
    """The time when the pod's container ended, or None."""
    for container in pod["status"].get("containerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated")
        if terminated:
            return parse_rfc3339(terminated["finishedAt"])
    return None


def _nothing_runs(pod: Object) -> ApiError:
    name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
    return _bad(f'pod "{name}" is simulated: no process runs on {node}; only its log can be read')


def _bad(message: str) -> ApiError:
    return ApiError(message, code=400, reason="BadRequest")
