"""
What simulated pods can be asked for: what they printed. Nothing runs that could be entered.

What a simulated pod "printed" is a function of the pod and the time, one line a second,
so a restart of the node loses none of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from bidplane.errors import ApiError, NotFound
from bidplane.kube.client import Object
from bidplane.machinery.clock import Clock, parse_rfc3339, rfc3339
from bidplane.node.api import ExecSession, LogOptions
from bidplane.node.simulated import SimulatedNodes
from bidplane.node.simulatedstatus import began_at, devices_of

Line = tuple[float, bytes]


class SimulatedRuntime:
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
        name = pod["metadata"]["name"]
        if container not in [known["name"] for known in pod["spec"]["containers"]]:
            raise _bad(f"container {container} is not valid for pod {name}")
        if (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            raise _bad(f'container "{container}" in pod "{name}" is waiting to start')

    async def _lines(self, pod: Object, container: str, options: LogOptions) -> AsyncIterator[Line]:
        printed = self._printed(pod, container)
        wanted = [line for line in printed if options.since is None or line[0] >= options.since]
        if options.tail_lines is not None:
            wanted = wanted[len(wanted) - min(options.tail_lines, len(wanted)) :]
        for line in wanted:
            yield line
        key = pod["metadata"]["namespace"], pod["metadata"]["name"]
        while options.follow:
            await self._clock.sleep(1.0)
            current = self._nodes.pods.get(*key)
            if current is None or current["metadata"]["uid"] != pod["metadata"]["uid"]:
                return
            now = self._printed(current, container)
            restarted = now[:1] != printed[:1]
            for line in now if restarted else now[len(printed) :]:
                yield line
            printed = now
            if current["status"]["phase"] != "Running":
                return

    def _printed(self, pod: Object, container: str) -> list[Line]:
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
        return [(at, f"{rfc3339(at)} {container}: {said}\n".encode()) for at, said in lines]


async def _limited(lines: AsyncIterator[Line], options: LogOptions) -> AsyncIterator[bytes]:
    left = options.limit_bytes
    async for at, text in lines:
        line = f"{rfc3339(at)} ".encode() + text if options.timestamps else text
        if left is not None:
            line = line[:left]
            left -= len(line)
        yield line
        if left == 0:
            return


def _ended_at(pod: Object) -> float | None:
    for container in pod["status"].get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return parse_rfc3339(ended["finishedAt"])
    return None


def _nothing_runs(pod: Object) -> ApiError:
    name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
    return _bad(
        f'pod "{name}" is simulated: nothing runs on {node} that could be entered; only its log'
        " can be read"
    )


def _bad(message: str) -> ApiError:
    return ApiError(message, code=400, reason="BadRequest")
