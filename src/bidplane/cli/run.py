"""`bidplane run`: one command on leased GPUs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from bidplane.client import AsyncClient
from bidplane.client.asking import Link
from bidplane.client.leasing import unique_name
from bidplane.client.running import PodRun, run_local
from bidplane.client.work import IMAGE, WorkOutcome, pod
from bidplane.errors import UserError

_console = Console(stderr=True, highlight=False)

Kubeconfig = Annotated[
    Path | None,
    Parameter(help="The agent's kubeconfig; else $BIDPLANE_KUBECONFIG or $KUBECONFIG."),
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
    Lease GPUs, run a command on them, print its output, give them back.

    The command runs as a pod in the agent's plane; with --local, on this machine, with the devices
    in its environment. The exit code is the command's. On notice the checkpoint command is run
    (with --local and none, the command gets SIGUSR1); an evicted pod bids again.

    For example:
        bidplane run --gpus 1 --max-price 2 -- python train.py
        bidplane run --local --gpus 4 --max-price 3 --timeout 600 -- torchrun train.py

    Args:
        command: The command and its arguments, after --.
        max_price: The most to pay, in credits per GPU-hour.
        gpus: The number of GPUs, in one machine; with --local, as --link says.
        local: Run it on this machine instead of on the leased node.
        link: With --local: in one link domain, there by nvlink or at x16, or anywhere (any).
        pool: The pool to buy from; else the exchange chooses.
        image: The pod's image.
        name: The pod's name; else a new one.
        env: NAME=VALUE for the command; may be given more than once.
        annotation: NAME=VALUE for the pod; may be given more than once.
        checkpoint_command: Run in the pod, or beside the command, when notice is given.
        timeout: With --local: seconds to wait for the GPUs.
    """
    if not command:
        raise UserError(
            "no command: write it after --, as in bidplane run --max-price 2 -- python train.py"
        )
    if local and (image != IMAGE or annotation or name):
        raise UserError("--image, --annotation and --name apply to pods: leave out --local")
    if not local and (timeout is not None or link != "domain"):
        raise UserError("--timeout and --link need --local; a pod waits until it is deleted")
    environment, pod_annotations = _pairs("--env", env), _pairs("--annotation", annotation)

    async def work() -> WorkOutcome:
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
                    env=environment,
                    say=_say,
                )
            manifest = pod(
                name or unique_name("run"),
                command,
                gpus=gpus,
                max_price=max_price,
                image=image,
                env=environment,
                pool=pool,
                checkpoint_command=checkpoint_command,
                annotations=pod_annotations,
            )
            return await PodRun(client, manifest, say=_say, out=_print).run()

    outcome = asyncio.run(_cancel_on_signal(work()))
    if outcome.message:
        _say(outcome.message)
    sys.exit(outcome.code)


async def _cancel_on_signal(work: Coroutine[object, object, WorkOutcome]) -> WorkOutcome:
    """Run `work`; SIGTERM or a closed terminal cancels it, so that the GPUs are given back."""
    task, signals = asyncio.ensure_future(work), list[int]()

    def cancel(number: int) -> None:
        signals.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, cancel, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not signals:
            raise
        return WorkOutcome(
            code=128 + signals[0], message="ended by a signal; the GPUs are given back"
        )


def _say(message: str) -> None:
    _console.print(f"bidplane: {message}", style="dim", markup=False, soft_wrap=True)


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
