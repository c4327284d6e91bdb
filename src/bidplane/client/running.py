"""
One command on leased GPUs, from bid to exit code.

As a pod: the plane's scheduler bids for it, its output is passed on, and after an eviction its
successor is followed. As a child of this program (`run_local`): this program holds the lease, and
the devices are in the child's environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence

from bidplane.api import labels
from bidplane.api.kinds import POD, POD_TEMPLATE, Object
from bidplane.api.objects import annotations_of, is_deleted, name_of, phase_of, uid_of
from bidplane.api.times import parse_rfc3339
from bidplane.client import work
from bidplane.client.aio import AsyncClient
from bidplane.client.asking import Link, Price
from bidplane.client.leasing import LeaseProgress, Notice
from bidplane.client.work import WorkOutcome
from bidplane.errors import ApiError, Gone, Unavailable, UserError
from bidplane.machinery.clock import SystemClock

_RETRY_SECONDS = 0.5
Say = Callable[[str], None]


class PodRun:
    """
    Runs a command in a pod: `say` gets messages about its progress, `out` the command's output.
    """

    def __init__(
        self, client: AsyncClient, pod: Object, *, say: Say, out: Callable[[bytes], None]
    ) -> None:
        self._client = client
        self._kube = client.kube
        self._pod = pod
        self._name = name_of(pod)
        self._namespace = client.namespace
        self._say, self._out = say, out
        self._last_message = ""
        self._uid = ""  # of the pod that runs now
        self._logs: asyncio.Task[None] | None = None

    async def run(self) -> WorkOutcome:
        """Wait until the command has ended; the pod is removed in every case."""
        await self._kube.create(POD, self._pod, self._namespace)
        try:
            return await self._wait_ended()
        finally:
            await asyncio.shield(self._remove())

    async def _wait_ended(self) -> WorkOutcome:
        """Follow the pod, and its successors, until the command has ended."""
        fields = f"metadata.name={self._name}"
        while True:
            with contextlib.suppress(Unavailable, Gone):
                listing = await self._kube.list(POD, self._namespace, fields=fields)
                for pod in listing.items:
                    if (ended := await self._handle_pod(pod)) is not None:
                        return ended
                async for event in self._kube.watch(
                    POD, self._namespace, resource_version=listing.resource_version, fields=fields
                ):
                    if event.type == "DELETED":
                        self._report("evicted: the pod bids again")
                    elif event.type != "BOOKMARK":
                        ended = await self._handle_pod(event.object)
                        if ended is not None:
                            return ended
            await asyncio.sleep(_RETRY_SECONDS)

    async def _handle_pod(self, pod: Object) -> WorkOutcome | None:
        """Report the pod's state; return its outcome once it has ended."""
        uid, phase = uid_of(pod), phase_of(pod) or "Pending"
        ended = None if is_deleted(pod) else work.outcome(pod)
        if phase == "Pending":
            reason, message = work.pending_reason(pod)
            if reason and reason != "Bidding":
                self._report(message if reason == "Won" else f"waiting: {message}")
        elif uid != self._uid:
            self._uid = uid
            self._report(f"running on {pod['spec'].get('nodeName')}")
            self._logs = asyncio.create_task(self._follow_logs())
        notice = annotations_of(pod).get(labels.NOTICE)
        if notice and ended is None:
            self._report("notice: the GPUs are reclaimed; the pod bids again")
        if ended is not None and self._logs is not None:
            with contextlib.suppress(TimeoutError, ApiError):
                async with asyncio.timeout(10):
                    await asyncio.shield(self._logs)
        return ended

    def _report(self, message: str) -> None:
        """Pass on a message, unless it repeats the last one."""
        if message != self._last_message:
            self._last_message = message
            self._say(message)

    async def _follow_logs(self) -> None:
        """Pass on the pod's output."""
        for _ in range(20):  # a kubelet may see the pod a moment after the API does
            with contextlib.suppress(ApiError):
                async for chunk in self._client.logs(self._name):
                    self._out(chunk)
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _remove(self) -> None:
        """Delete the pod, and its template if it is being evicted."""
        if self._logs is not None:
            self._logs.cancel()
        with contextlib.suppress(ApiError):
            # The template of an evicted pod first: else the pod would be created again.
            for template in (await self._kube.list(POD_TEMPLATE, self._namespace)).items:
                if annotations_of(template).get(labels.POD_NAME) == self._name:
                    await self._kube.delete(POD_TEMPLATE, name_of(template), self._namespace)
        with contextlib.suppress(ApiError):
            await self._kube.delete(POD, self._name, self._namespace)


async def run_local(
    client: AsyncClient,
    command: Sequence[str],
    *,
    gpus: int,
    max_price: Price,
    link: Link = "domain",
    pool: str = "",
    share: str = "",
    timeout: float | None = None,
    checkpoint_command: str = "",
    env: Mapping[str, str] | None = None,
    say: Say,
) -> WorkOutcome:
    """
    Run the command as our child. On notice it gets SIGUSR1, or `checkpoint_command` is run beside
    it; at the end of the notice it gets SIGTERM.
    """
    notices: asyncio.Queue[Notice] = asyncio.Queue()

    def report_progress(progress: LeaseProgress) -> None:
        say(progress.message if progress.reason == "Won" else f"waiting: {progress.message}")

    async with client.lease(
        gpus=gpus,
        max_price=max_price,
        link=link,
        pool=pool,
        share=share,
        timeout=timeout,
        on_progress=report_progress,
        on_notice=notices.put_nowait,
    ) as lease:
        say(f"leased {', '.join(d.name for d in lease.devices)} on {lease.node} at {lease.price}")
        environment = {**os.environ, **lease.env, **(env or {})}
        try:
            child = await asyncio.create_subprocess_exec(*command, env=environment)
        except OSError as error:
            raise UserError(f"cannot run {command[0]!r}: {error.strerror}") from error
        watch = asyncio.create_task(
            _on_notice(child, notices, checkpoint_command, environment, say)
        )
        try:
            code = await child.wait()
        except BaseException:
            await _terminate(child)
            raise
        finally:
            watch.cancel()
        if lease.notice is not None and code < 0:
            message = "ended by its reclaim notice: run it again to continue from its checkpoint"
            return WorkOutcome(code=128 - code, reason=lease.notice.reason, message=message)
        return WorkOutcome(code=code if code >= 0 else 128 - code)


async def _on_notice(
    child: asyncio.subprocess.Process,
    notices: asyncio.Queue[Notice],
    checkpoint_command: str,
    environment: Mapping[str, str],
    say: Say,
) -> None:
    """On notice, save a checkpoint; at the notice's end, terminate the child."""
    notice = await notices.get()
    say(f"notice ({notice.reason}): the GPUs are gone by {notice.reclaim_at}")
    if checkpoint_command:
        checkpoint = await asyncio.create_subprocess_exec(
            *shlex.split(checkpoint_command), env={**environment, "PID": str(child.pid)}
        )
        code = await checkpoint.wait()
        say("checkpoint taken" if code == 0 else f"the checkpoint command ended with {code}")
    else:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGUSR1)
    seconds_left = parse_rfc3339(notice.reclaim_at) - SystemClock().now()
    await asyncio.sleep(max(0.0, seconds_left - 1.0))
    await _terminate(child)


async def _terminate(child: asyncio.subprocess.Process) -> None:
    """Send SIGTERM, and SIGKILL if the child does not end."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            async with asyncio.timeout(5):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
