"""
The applications behind Endpoints: told to sleep and to wake, and asked what they have to do.

Each server has an API of its own. A call counts once the application itself says that it sleeps or
is awake, where it says so: vLLM at `/is_sleeping`, llama.cpp at `/props`. ComfyUI does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from bidplane.api import labels
from bidplane.api.idling.ladder import QueueKind, QueueProbe, SleepKind, SleepRung
from bidplane.api.reading import Endpoint
from bidplane.core.hosting.translation import host_name
from bidplane.core.idling.predicate import Reading, judge, path_of, read_answer, read_exit
from bidplane.errors import ApiError
from bidplane.http.client.caller import HttpAnswer, HttpCaller, NoAnswer
from bidplane.kube.exec import PodCommandResult

POLL_SECONDS = 0.25  # between two questions whether it sleeps
ASK_AGAIN_SECONDS = 15.0  # between two questions whether it is idle now
_ANSWER_SECONDS = 2.0  # that it is idle, counts; several activators decide in two steps
QUEUE_SECONDS = 5.0  # for the answer about a queue


class SleepProblem(Exception):
    """An application that did not do as it was told; the message says what it answered."""


class Commands(Protocol):
    """Runs commands in the host's pods."""

    async def run(
        self, namespace: str, pod: str, container: str, command: Sequence[str], *, seconds: float
    ) -> PodCommandResult: ...


class BusyCounters(Protocol):
    """Reads the counters of the GPUs that pods of the host hold."""

    async def busy_percents(
        self, namespace: str, pods: Sequence[str]
    ) -> Sequence[float | None]: ...


class AppPod(msgspec.Struct, frozen=True):
    """A pod of an Endpoint, by its names on the host and its address."""

    namespace: str  # on the host
    name: str
    address: str
    port: int


def pods_of(endpoint: Endpoint) -> list[AppPod]:
    """Return the pods of an Endpoint that have an address."""
    namespace = endpoint.annotations.get(labels.PLANE_NAMESPACE, "default")
    backends = endpoint.status.backends if endpoint.status is not None else ()
    return [
        AppPod(endpoint.namespace, host_name(namespace, backend.pod), backend.address, backend.port)
        for backend in backends
    ]


class Applications:
    """Calls the applications of pods."""

    def __init__(
        self, commands: Commands | None = None, counters: BusyCounters | None = None
    ) -> None:
        self._commands, self._counters = commands, counters
        self._http: HttpCaller | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def sleep(self, sleep: SleepRung, pods: Sequence[AppPod]) -> None:
        """Let every pod's application sleep; raises `SleepProblem`."""
        await self._each(_SLEEP[sleep.kind], sleep, pods)

    async def rouse(self, sleep: SleepRung, pods: Sequence[AppPod]) -> None:
        """Wake every pod's application; raises `SleepProblem`."""
        await self._each(_ROUSE[sleep.kind], sleep, pods)

    async def _each(self, act: _Act, sleep: SleepRung, pods: Sequence[AppPod]) -> None:
        if not pods:
            raise SleepProblem("it has no pod to tell")
        try:
            async with asyncio.timeout(sleep.timeout_seconds):
                await asyncio.gather(*(act(self, sleep, pod) for pod in pods))
        except TimeoutError:
            raise SleepProblem(f"it took longer than {sleep.timeout_seconds} s") from None
        except NoAnswer as error:
            raise SleepProblem(f"it did not answer: {error}") from error
        except ApiError as error:
            raise SleepProblem(str(error)) from error

    async def queue(self, probe: QueueProbe, pods: Sequence[AppPod]) -> list[Reading]:
        """Return the work that each pod's application reports."""
        return list(await asyncio.gather(*(self._read_queue(probe, pod) for pod in pods)))

    async def busy_percents(self, pods: Sequence[AppPod]) -> Sequence[float | None]:
        """Return the use of each GPU of the pods; None for one that is not known."""
        if self._counters is None or not pods:
            return ()
        return await self._counters.busy_percents(pods[0].namespace, [pod.name for pod in pods])

    async def _read_queue(self, probe: QueueProbe, pod: AppPod) -> Reading:
        try:
            if probe.kind is QueueKind.COMMAND:
                result = await self._run(pod, probe.container, probe.command, QUEUE_SECONDS)
                return read_exit(result.code)
            answer = await self._call("GET", pod, probe.port, path_of(probe), QUEUE_SECONDS)
        except (NoAnswer, ApiError, TimeoutError, SleepProblem) as error:
            return Reading(None, f"its application did not answer: {error}")
        return read_answer(probe, answer.code, answer.body)

    async def _call(
        self,
        method: str,
        pod: AppPod,
        port: int,
        path: str,
        seconds: float,
        body: bytes | None = None,
    ) -> HttpAnswer:
        if self._http is None:
            self._http = HttpCaller()
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        headers = {"Content-Type": "application/json"} if body is not None else None
        return await self._http.call(
            method,
            f"http://{host}:{port or pod.port}{path}",
            headers=headers,
            body=body,
            seconds=seconds,
        )

    async def _told(
        self, sleep: SleepRung, pod: AppPod, method: str, path: str, body: bytes | None = None
    ) -> HttpAnswer:
        """Call an application's API; raises `SleepProblem` for a refusal."""
        answer = await self._call(method, pod, sleep.port, path, sleep.timeout_seconds, body)
        if answer.code != 200:
            hint = _HINTS.get(sleep.kind, "") if answer.code in (404, 405, 501) else ""
            raise SleepProblem(f"{method} {path} answered {answer.code}{hint}")
        return answer

    async def _run(
        self, pod: AppPod, container: str, command: Sequence[str], seconds: float
    ) -> PodCommandResult:
        if self._commands is None:
            raise SleepProblem("this activator runs no commands in pods")
        return await self._commands.run(
            pod.namespace, pod.name, container, command, seconds=seconds
        )

    async def _until(self, sleep: SleepRung, pod: AppPod, path: str, *, sleeping: bool) -> None:
        """Return once the application says that it sleeps, or is awake."""
        while True:
            answer = await self._told(sleep, pod, "GET", path)
            try:
                state = msgspec.json.decode(answer.body, type=_SleepState)
            except msgspec.MsgspecError:
                raise SleepProblem(f"GET {path} does not tell `is_sleeping`") from None
            if state.is_sleeping is sleeping:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def sleep_vllm(self, sleep: SleepRung, pod: AppPod) -> None:
        await self._told(sleep, pod, "POST", f"/sleep?level={sleep.level}")
        await self._until(sleep, pod, "/is_sleeping", sleeping=True)

    async def rouse_vllm(self, sleep: SleepRung, pod: AppPod) -> None:
        if sleep.level == 1:
            await self._told(sleep, pod, "POST", "/wake_up")
        else:  # the weights are read again before there is room for the cache
            await self._told(sleep, pod, "POST", "/wake_up?tags=weights")
            reload = b'{"method": "reload_weights"}'
            await self._told(sleep, pod, "POST", "/collective_rpc", reload)
            await self._told(sleep, pod, "POST", "/wake_up?tags=kv_cache")
        await self._until(sleep, pod, "/is_sleeping", sleeping=False)

    async def sleep_llama_cpp(self, sleep: SleepRung, pod: AppPod) -> None:
        # Its own timer decides; this question does not set that back.
        await self._until(sleep, pod, "/props", sleeping=True)

    async def rouse_llama_cpp(self, sleep: SleepRung, pod: AppPod) -> None:
        # One token first: a long prompt that meets the moment of falling asleep can be lost.
        body = b'{"prompt": " ", "n_predict": 1}'
        await self._told(sleep, pod, "POST", "/completion", body)
        await self._until(sleep, pod, "/props", sleeping=False)

    async def sleep_comfyui(self, sleep: SleepRung, pod: AppPod) -> None:
        await self._told(sleep, pod, "POST", "/free", b'{"unload_models":true,"free_memory":true}')

    async def rouse_comfyui(self, sleep: SleepRung, pod: AppPod) -> None:
        await self._told(sleep, pod, "GET", "/system_stats")  # the next prompt loads the models

    async def sleep_by_command(self, sleep: SleepRung, pod: AppPod) -> None:
        await self._run_sleep(sleep, pod, sleep.sleep_command)

    async def rouse_by_command(self, sleep: SleepRung, pod: AppPod) -> None:
        await self._run_sleep(sleep, pod, sleep.wake_command)

    async def _run_sleep(self, sleep: SleepRung, pod: AppPod, command: Sequence[str]) -> None:
        result = await self._run(pod, sleep.container, command, sleep.timeout_seconds)
        if result.code:
            output = result.output.strip()[-200:]
            raise SleepProblem(f"{command[0]} ended with exit code {result.code}: {output}")


class IdleQuestion:
    """
    The question whether an application has nothing to do, asked when a window has ended; `answered`
    is called once that is so.
    """

    def __init__(
        self, applications: Applications, *, now: Callable[[], float], answered: Callable[[], None]
    ) -> None:
        self._applications, self._now, self._answered = applications, now, answered
        self._task: asyncio.Task[None] | None = None
        self._ask_at = 0.0
        self._quiet_until = 0.0  # its answer counts
        self.reason = ""  # why it was not idle when it was asked last

    def is_idle(self, endpoint: Endpoint) -> bool:
        """Return True if nothing more is to be asked, or was answered just now; else ask."""
        spec = endpoint.spec.idle
        if spec.queue is None and not spec.gpu_percent:
            return True
        if self._now() < self._quiet_until:
            return True
        if self._task is None and self._now() >= self._ask_at:
            self._task = asyncio.get_running_loop().create_task(self._ask(endpoint))
        return False

    async def _ask(self, endpoint: Endpoint) -> None:
        spec, pods = endpoint.spec.idle, pods_of(endpoint)
        queue = await self._applications.queue(spec.queue, pods) if spec.queue is not None else []
        percents = await self._applications.busy_percents(pods) if spec.gpu_percent else ()
        verdict = judge(spec, queue, percents)
        self._task, self.reason = None, verdict.reason
        if verdict.idle:
            self._quiet_until = self._now() + _ANSWER_SECONDS
        else:
            self._ask_at = self._now() + ASK_AGAIN_SECONDS
        self._answered()

    def close(self) -> None:
        """Ask nothing any more."""
        if self._task is not None:
            self._task.cancel()


class _SleepState(msgspec.Struct, frozen=True):
    is_sleeping: bool


_Act = Callable[[Applications, SleepRung, AppPod], Awaitable[None]]
_SLEEP: dict[SleepKind, _Act] = {
    SleepKind.VLLM: Applications.sleep_vllm,
    SleepKind.LLAMA_CPP: Applications.sleep_llama_cpp,
    SleepKind.COMFYUI: Applications.sleep_comfyui,
    SleepKind.COMMAND: Applications.sleep_by_command,
}
_ROUSE: dict[SleepKind, _Act] = {
    SleepKind.VLLM: Applications.rouse_vllm,
    SleepKind.LLAMA_CPP: Applications.rouse_llama_cpp,
    SleepKind.COMFYUI: Applications.rouse_comfyui,
    SleepKind.COMMAND: Applications.rouse_by_command,
}
_HINTS = {
    SleepKind.VLLM: ": start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1",
}
