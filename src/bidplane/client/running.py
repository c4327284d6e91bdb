"""
One command on leased GPUs, from bid to exit code.

As a pod: the plane's scheduler bids for it, what it prints is passed on, and after an
eviction the pod that takes its place is followed. Here (`run_local`): the lease is held by
this program and the command is its child, with the devices in its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bidplane.api import labels
from bidplane.api.kinds import POD, POD_TEMPLATE, Object
from bidplane.client import work
from bidplane.client.aio import AsyncClient
from bidplane.client.asking import Link, Price
from bidplane.client.leasing import Notice, Progress
from bidplane.client.work import Outcome
from bidplane.errors import ApiError, Gone, Unavailable, UserError
from bidplane.machinery.clock import SystemClock, parse_rfc3339

_RETRY_SECONDS = 0.5
Say = Callable[[str], None]


class PodRun:
    """`say` is told what happens; `out` is given what the command prints."""

    def __init__(
        self, client: AsyncClient, pod: dict[str, Any], *, say: Say, out: Callable[[bytes], None]
    ) -> None:
        self._client = client
        self._kube = client.kube
        self._pod = pod
        self._name: str = pod["metadata"]["name"]
        self._space = client.namespace
        self._say, self._out = say, out
        self._said = ""
        self._uid = ""  # of the pod that runs now
        self._logs: asyncio.Task[None] | None = None

    async def run(self) -> Outcome:
        """Until the command has ended; the pod is taken away, whatever happens."""
        await self._kube.create(POD, self._pod, self._space)
        try:
            return await self._until_ended()
        finally:
            await asyncio.shield(self._remove())

    async def _until_ended(self) -> Outcome:
        fields = f"metadata.name={self._name}"
        while True:
            with contextlib.suppress(Unavailable, Gone):
                listing = await self._kube.list(POD, self._space, fields=fields)
                for pod in listing.items:
                    if (ended := await self._look(pod)) is not None:
                        return ended
                async for event in self._kube.watch(
                    POD, self._space, resource_version=listing.resource_version, fields=fields
                ):
                    if event.type == "DELETED":
                        self._tell("evicted: the pod bids again")
                    elif event.type != "BOOKMARK":
                        ended = await self._look(event.object)
                        if ended is not None:
                            return ended
            await asyncio.sleep(_RETRY_SECONDS)

    async def _look(self, pod: Object) -> Outcome | None:
        uid, phase = pod["metadata"]["uid"], (pod.get("status") or {}).get("phase", "Pending")
        going = bool(pod["metadata"].get("deletionTimestamp"))
        ended = None if going else work.outcome(pod)
        if phase == "Pending":
            reason, message = work.pending_words(pod)
            if reason and reason != "Bidding":
                self._tell(message if reason == "Won" else f"waiting: {message}")
        elif uid != self._uid:
            self._uid = uid
            self._tell(f"running on {pod['spec'].get('nodeName')}")
            self._logs = asyncio.create_task(self._follow_logs())
        notice = (pod["metadata"].get("annotations") or {}).get(labels.NOTICE)
        if notice and ended is None:
            self._tell("notice: the GPUs are reclaimed; the pod bids again")
        if ended is not None and self._logs is not None:
            with contextlib.suppress(TimeoutError, ApiError):
                await asyncio.wait_for(asyncio.shield(self._logs), 10)
        return ended

    def _tell(self, words: str) -> None:
        if words != self._said:
            self._said = words
            self._say(words)

    async def _follow_logs(self) -> None:
        for _ in range(20):  # a kubelet may know the pod a moment after the API does
            with contextlib.suppress(ApiError):
                async for chunk in self._client.logs(self._name):
                    self._out(chunk)
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _remove(self) -> None:
        if self._logs is not None:
            self._logs.cancel()
        with contextlib.suppress(ApiError):
            # Its likeness first, if it is being evicted: else it would come back.
            for kept in (await self._kube.list(POD_TEMPLATE, self._space)).items:
                notes = kept["metadata"].get("annotations") or {}
                if notes.get(labels.POD_NAME) == self._name:
                    await self._kube.delete(POD_TEMPLATE, kept["metadata"]["name"], self._space)
        with contextlib.suppress(ApiError):
            await self._kube.delete(POD, self._name, self._space)


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
) -> Outcome:
    """
    The command as our child. On notice it gets SIGUSR1, or `checkpoint_command` is run beside
    it; at the end of the notice it gets SIGTERM.
    """
    notices: asyncio.Queue[Notice] = asyncio.Queue()

    def progress(told: Progress) -> None:
        say(told.message if told.reason == "Won" else f"waiting: {told.message}")

    async with client.lease(
        gpus=gpus,
        max_price=max_price,
        link=link,
        pool=pool,
        share=share,
        timeout=timeout,
        on_progress=progress,
        on_notice=notices.put_nowait,
    ) as held:
        say(f"leased {', '.join(d.name for d in held.devices)} on {held.node} at {held.price}")
        surroundings = {**os.environ, **held.env, **(env or {})}
        try:
            child = await asyncio.create_subprocess_exec(*command, env=surroundings)
        except OSError as error:
            raise UserError(f"cannot run {command[0]!r}: {error.strerror}") from error
        watch = asyncio.create_task(
            _on_notice(child, notices, checkpoint_command, surroundings, say)
        )
        try:
            code = await child.wait()
        except BaseException:
            await _end(child)
            raise
        finally:
            watch.cancel()
        if held.notice is not None and code < 0:
            words = "ended by its notice: run it again, it goes on from its checkpoint"
            return Outcome(code=128 - code, reason=held.notice.reason, message=words)
        return Outcome(code=code if code >= 0 else 128 - code)


async def _on_notice(
    child: asyncio.subprocess.Process,
    notices: asyncio.Queue[Notice],
    checkpoint_command: str,
    surroundings: Mapping[str, str],
    say: Say,
) -> None:
    notice = await notices.get()
    say(f"notice ({notice.reason}): the GPUs are gone by {notice.reclaim_at}")
    if checkpoint_command:
        saving = await asyncio.create_subprocess_exec(
            *shlex.split(checkpoint_command), env={**surroundings, "PID": str(child.pid)}
        )
        code = await saving.wait()
        say("checkpoint taken" if code == 0 else f"the checkpoint command ended with {code}")
    else:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGUSR1)
    left = parse_rfc3339(notice.reclaim_at) - SystemClock().now()
    await asyncio.sleep(max(0.0, left - 1.0))
    await _end(child)


async def _end(child: asyncio.subprocess.Process) -> None:
    """SIGTERM, and SIGKILL for what does not obey."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            await asyncio.wait_for(child.wait(), 5)
        except TimeoutError:
            child.kill()
            await child.wait()
