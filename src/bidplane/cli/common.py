"""Helpers of the commands: finding the installation, sending requests, printing tables."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from bidplane.api import labels
from bidplane.api.kinds import AGENT, Object
from bidplane.api.reading import Agent, Invalid, read_agent
from bidplane.errors import Unavailable, UserError
from bidplane.http.client.caller import BlockingCaller, NoAnswer, trust
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import SystemClock
from bidplane.runtime.installation import Installation
from bidplane.wiring.hostclient import host_client

T = TypeVar("T")

# Lines written to a pipe are not wrapped: programs read whole lines.
console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def default_data() -> Path:
    """The data folder: $BIDPLANE_HOME, else the system's place for such data."""
    if home := os.environ.get("BIDPLANE_HOME"):
        return Path(home)
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(share) / "bidplane"


Data = Annotated[
    Path | None,
    Parameter(name="--data", help="The installation's directory; else $BIDPLANE_HOME."),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON, for programs.")]


def installation(data: Path | None) -> Installation:
    return Installation(data or default_data())


def with_host(data: Path | None, work: Callable[[KubeClient], Awaitable[T]]) -> T:
    """Run `work` with a client for the host plane."""

    async def run() -> T:
        client = host_client(installation(data), user="owner", clock=SystemClock())
        try:
            return await work(client)
        except Unavailable as error:
            raise not_running(data) from error
        finally:
            await client.close()

    return asyncio.run(run())


async def agent_ready(host: KubeClient, name: str) -> Agent:
    """The Agent, once it has a plane and a wallet."""
    while True:
        listing = await host.list(AGENT, fields=f"metadata.name={name}")
        for obj in listing.items:
            if (agent := _if_ready(obj)) is not None:
                return agent
        async for event in host.watch(
            AGENT, resource_version=listing.resource_version, fields=f"metadata.name={name}"
        ):
            if event.type != "BOOKMARK" and (agent := _if_ready(event.object)) is not None:
                return agent


def _if_ready(obj: Object) -> Agent | None:
    """Return the agent if it has a plane and a wallet."""
    agent = read_agent(obj)
    if isinstance(agent, Invalid) or agent.status.phase != "Ready":
        return None
    return agent if labels.WALLET_FINALIZER in agent.metadata.finalizers else None


def not_running(data: Path | None) -> UserError:
    return UserError(
        f"the Bidplane in {installation(data).folder} does not answer: start it with `bidplane up`"
    )


@contextmanager
def http(data: Path | None) -> Iterator[BlockingCaller]:
    """An HTTP client for the installation's public address, with its owner's token."""
    target = installation(data)
    address = target.address()
    token = target.owner_token(user="owner", now=SystemClock().now())
    with BlockingCaller(address.url, trust=trust(ca_file=target.ca_file), token=token) as client:
        try:
            yield client
        except NoAnswer as error:
            raise not_running(data) from error


def ask(
    data: Path | None,
    method: str,
    path: str,
    type: type[T],
    *,
    params: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> T:
    """
    Send one request to the installation and decode the answer; raises `ApiError` when refused.
    """
    with http(data) as client:
        answer = client.call(method, path, params=params, body=body).accepted()
        return msgspec.json.decode(answer.body, type=type)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    print(text)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> None:
    """Print a plain table; `right` names the right-aligned columns. In a pipe no cell is cut."""
    if not console.is_terminal:
        print(_plain_table(columns, rows, right.split()))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right.split() else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _plain_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]
) -> str:
    lines = [columns, *rows]
    widths = [
        max(len(line[column_number]) for line in lines) for column_number in range(len(columns))
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )


def command_name() -> str:
    """The name under which this command was called, so that printed commands can be pasted."""
    called = Path(sys.argv[0])
    if shutil.which("bidplane") or called.name != "bidplane":
        return "bidplane"
    try:
        return str(called.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(called)
