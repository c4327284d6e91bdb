"""What the commands share: finding the installation, asking it, printing tables."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import httpx2
import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from bidplane.api import labels
from bidplane.api.kinds import AGENT, Object
from bidplane.errors import ApiError, Unavailable, UserError, api_error
from bidplane.kube.client import Client
from bidplane.machinery.clock import SystemClock
from bidplane.runtime.installation import Installation
from bidplane.wiring.hostclient import host_client

T = TypeVar("T")

console = Console(highlight=False)


def default_data() -> Path:
    """$BIDPLANE_HOME, else the place the system keeps such data in."""
    if home := os.environ.get("BIDPLANE_HOME"):
        return Path(home)
    share = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(share) / "bidplane"


Data = Annotated[
    Path | None,
    Parameter(name="--data", help="The installation's directory; else $BIDPLANE_HOME."),
]


def installation(data: Path | None) -> Installation:
    return Installation(data or default_data())


def with_host(data: Path | None, work: Callable[[Client], Awaitable[T]]) -> T:
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


async def agent_ready(host: Client, name: str) -> Object:
    """The Agent, once it has a plane and a wallet."""
    while True:
        listing = await host.list(AGENT, fields=f"metadata.name={name}")
        for agent in listing.items:
            if _is_ready(agent):
                return agent
        async for event in host.watch(
            AGENT, resource_version=listing.resource_version, fields=f"metadata.name={name}"
        ):
            if event.type != "BOOKMARK" and _is_ready(event.object):
                return event.object


def _is_ready(agent: Object) -> bool:
    has_wallet = labels.WALLET_FINALIZER in (agent["metadata"].get("finalizers") or ())
    return has_wallet and (agent.get("status") or {}).get("phase") == "Ready"


def not_running(data: Path | None) -> UserError:
    return UserError(
        f"the Bidplane in {installation(data).folder} does not answer: start it with `bidplane up`"
    )


@contextmanager
def http(data: Path | None) -> Iterator[httpx2.Client]:
    """The installation's public address, asked as its owner."""
    where = installation(data)
    address = where.address()
    token = where.owner_token(user="owner", now=SystemClock().now())
    with httpx2.Client(
        base_url=address.url,
        verify=ssl.create_default_context(cafile=where.ca_file),
        headers={"Authorization": f"Bearer {token}"},
        timeout=30.0,
        trust_env=False,
    ) as client:
        try:
            yield client
        except httpx2.TransportError as error:
            raise not_running(data) from error


def ask(data: Path | None, method: str, path: str, type: type[T], **options: Any) -> T:
    """One request to the installation, decoded; raises `ApiError` when refused."""
    with http(data) as client:
        response = client.request(method, path, **options)
        if response.status_code >= 400:
            raise refusal(response)
        return msgspec.json.decode(response.content, type=type)


def refusal(response: httpx2.Response) -> ApiError:
    try:
        status = response.json()
        return api_error(response.status_code, status.get("reason", ""), status["message"])
    except (ValueError, KeyError, TypeError):
        return api_error(response.status_code, "", response.text[:500])


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> None:
    """A plain table; columns whose initial is in `right` would be numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right.split() else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def command_name() -> str:
    """How this command was called, so that what we print can be pasted."""
    called = Path(sys.argv[0])
    if shutil.which("bidplane") or called.name != "bidplane":
        return "bidplane"
    try:
        return str(called.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(called)
