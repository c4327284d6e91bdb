"""`bidplane run`: one command on leased GPUs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from bidplane.client import AsyncClient
from bidplane.client.asking import Link
from bidplane.client.leasing import fresh_name
from bidplane.client.running import PodRun, run_local
from bidplane.client.work import IMAGE, Outcome, pod
from bidplane.errors import UserError

_console = Console(stderr=True, highlight=False)

Kubeconfig = Annotated[
    Path | None,
    Parameter(help="The agent's; else $BIDPLANE_KUBECONFIG, else $KUBECONFIG."),
]


def run(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    max_price: str,
    gpus: int = 1,
    local: Annotated[bool, Parameter(negative="")] = False,
    link: Link = "domain",
    pool: str = "",
    image: str = IMAGE,
    name: str = "",
    env: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    annotation: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    checkpoint_command: str = "",
    timeout: float | None = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """
    Lease GPUs, run a command on them, pass on what it prints, give them back.

    The command runs as a pod in the agent's plane; with --local, here, with the devices in its
    environment. The exit code is the command's. On notice the checkpoint command is run (with
    --local and none, the command gets SIGUSR1); a pod that was evicted bids again.

    Args:
        command: After --.
        max_price: Credits per GPU-hour.
        gpus: How many, in one link domain.
        local: Run it here instead of on the leased node.
        link: With --local: one link domain, by nvlink, at x16; or any, scattered.
        pool: The pool to buy from; else the exchange chooses.
        image: Of the pod.
        name: Of the pod; else one is made up.
        env: NAME=VALUE for the command; may be given more than once.
        annotation: NAME=VALUE for the pod; may be given more than once.
        checkpoint_command: Run in the pod, or beside the command, when notice is given.
        timeout: With --local: seconds to wait for the GPUs.

    Examples:
        bidplane run --gpus 1 --max-price 2 -- python train.py
        bidplane run --local --gpus 4 --max-price 3 --timeout 600 -- torchrun train.py
    """
    if not command:
        raise UserError("say what to run after --: bidplane run --max-price 2 -- python train.py")
    if local and (image != IMAGE or annotation or name):
        raise UserError("--image, --annotation and --name are a pod's: leave out --local")
    if not local and (timeout is not None or link != "domain"):
        raise UserError("--timeout and --link need --local; a pod waits until it is deleted")
    surroundings, notes = _pairs("--env", env), _pairs("--annotation", annotation)

    async def work() -> Outcome:
        async with AsyncClient(kubeconfig=kubeconfig) as client:
            if local:
                return await run_local(
                    client,
                    command,
                    gpus=gpus,
                    max_price=max_price,
                    link=link,
                    pool=pool,
                    timeout=timeout,
                    checkpoint_command=checkpoint_command,
                    env=surroundings,
                    say=_say,
                )
            wanted = pod(
                name or fresh_name("run"),
                command,
                gpus=gpus,
                max_price=max_price,
                image=image,
                env=surroundings,
                pool=pool,
                checkpoint_command=checkpoint_command,
                annotations=notes,
            )
            return await PodRun(client, wanted, say=_say, out=_print).run()

    ended = asyncio.run(_unless_told_to_end(work()))
    if ended.message:
        _say(ended.message)
    sys.exit(ended.code)


async def _unless_told_to_end(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Whoever ends us, by SIGTERM or by closing the terminal, ends what we pay for."""
    task, told = asyncio.ensure_future(work), list[int]()

    def end(number: int) -> None:
        told.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not told:
            raise
        return Outcome(code=128 + told[0], message="told to end; the GPUs are given back")


def _say(words: str) -> None:
    _console.print(f"bidplane: {words}", style="dim", markup=False, soft_wrap=True)


def _print(chunk: bytes) -> None:
    os.write(sys.stdout.fileno(), chunk)


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(f"{option} {text!r}: write NAME=VALUE")
        pairs[name] = value
    return pairs
