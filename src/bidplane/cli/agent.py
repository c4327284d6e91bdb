"""`bidplane agent …`: who may bid."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bidplane.api.agent import DEFAULT_MAX_PRICE, host_namespace, name_problem
from bidplane.api.exchange import Leases, Wallet
from bidplane.api.kinds import AGENT, GPU_LEASE
from bidplane.api.money import parse_credits, parse_price
from bidplane.cli.common import (
    Data,
    agent_ready,
    ask,
    console,
    http,
    print_table,
    refusal,
    with_host,
)
from bidplane.errors import NotFound, UserError
from bidplane.kube.client import Client, Object

app = App(name="agent", help="Agents: who may bid, and how well each is funded.")

_READY_SECONDS = 30.0
_LOOK_SECONDS = 0.1

Output = Annotated[
    Path | None, Parameter(help="Where to write the kubeconfig; else NAME.kubeconfig here.")
]

Certificate = Annotated[
    bool,
    Parameter(
        negative="",
        help="With a client certificate in place of a token. It opens the plane, not the exchange.",
    ),
]


@app.command
def create(
    name: str,
    *,
    priority: int = 1,
    refill: str = "100",
    max_price: str = DEFAULT_MAX_PRICE,
    owner: str | None = None,
    team: str = "",
    output: Output = None,
    data: Data = None,
) -> None:
    """
    Make an agent: a wallet, a plane, and a kubeconfig for it.

    Args:
        name: Lower-case letters, digits and '-'.
        priority: Multiplies the refill.
        refill: Credits granted each hour.
        max_price: Credits per GPU-hour, for pods that name no price.
        owner: Who answers for it; you, if not said.
        team: For reports.

    Examples:
        bidplane agent create trainer --priority 1 --refill 100
        bidplane agent create chat --priority 5 --refill 100 --max-price 4.00
    """
    _check(name, priority, refill, max_price)
    agent = {
        "apiVersion": AGENT.api_version,
        "kind": AGENT.kind,
        "metadata": {"name": name},
        "spec": {
            "owner": owner or getpass.getuser(),
            "team": team,
            "priority": priority,
            "refill": refill,
            "maxPrice": max_price,
        },
    }
    ready = with_host(data, lambda host: _create(host, agent))
    path = write_kubeconfig(name, output, data)
    wallet = ask(data, "GET", f"/exchange/v1/wallets/{name}", Wallet)
    console.print(
        f"agent [bold]{name}[/bold] is ready\n"
        f"  plane       {ready['status']['plane']}\n"
        f"  wallet      {wallet.available} credits, refilled each hour\n"
        f"  kubeconfig  {path}",
        soft_wrap=True,
    )


@app.command(name="list")
def list_(*, data: Data = None) -> None:
    """All agents."""

    async def work(host: Client) -> list[Object]:
        return list((await host.list(AGENT)).items)

    rows = [
        [
            agent["metadata"]["name"],
            (agent.get("status") or {}).get("phase", "Pending"),
            str(agent["spec"].get("priority", 1)),
            agent["spec"].get("refill", "0"),
            agent["spec"]["owner"],
            agent["spec"].get("team", ""),
        ]
        for agent in with_host(data, work)
    ]
    columns = ["name", "phase", "priority", "refill", "owner", "team"]
    print_table(columns, rows, right="priority refill")


@app.command
def show(name: str, *, data: Data = None) -> None:
    """
    One agent: who it is, what it has, what it leases.

    Examples:
        bidplane agent show trainer
    """

    async def work(host: Client) -> Object:
        return await host.get(AGENT, name)

    agent = with_host(data, work)
    spec, status = agent["spec"], agent.get("status") or {}
    wallet = ask(data, "GET", f"/exchange/v1/wallets/{name}", Wallet)
    console.print(
        f"[bold]{name}[/bold] is {status.get('phase', 'Pending')}\n"
        f"  owner     {spec['owner']}{', team ' + spec['team'] if spec.get('team') else ''}\n"
        f"  plane     {status.get('plane', '')}\n"
        f"  refill    {spec.get('refill', '0')} credits an hour × priority"
        f" {spec.get('priority', 1)}; bids up to {spec.get('maxPrice', DEFAULT_MAX_PRICE)}\n"
        f"  wallet    {wallet.available} free, {wallet.held} held, {wallet.accruing} accruing",
        soft_wrap=True,
    )
    leases = [lease for lease in ask(data, "GET", "/exchange/v1/leases", Leases).leases
              if lease.agent == name]  # fmt: skip
    if leases:
        print_table(
            ["lease", "phase", "node", "gpus", "price", "charged", "notes"],
            [
                [v.name, v.phase, v.node, str(len(v.devices)), v.price, v.charged, v.message]
                for v in leases
            ],
            right="gpus price charged",
        )


@app.command
def suspend(name: str, *, data: Data = None) -> None:
    """
    Keep all of an agent and let it spend nothing: its pods are evicted, its leases given back.

    Its plane can be read and written; pods wait. `bidplane agent resume` lets it bid again.
    """
    _set_suspended(name, True, data)
    console.print(f"agent {name} is suspended: it leases nothing and bids for nothing")


@app.command
def resume(name: str, *, data: Data = None) -> None:
    """Let a suspended agent bid again; its pods that waited do so at once."""
    _set_suspended(name, False, data)
    console.print(f"agent {name} bids again")


def _set_suspended(name: str, suspended: bool, data: Path | None) -> None:
    """Returns once it is so: a suspended agent leases nothing any more."""
    space = host_namespace(name)

    async def work(host: Client) -> None:
        await host.patch(AGENT, name, {"spec": {"suspended": suspended}})
        with console.status(f"{name}: pods end, leases are given back …"):
            while suspended and (await host.list(GPU_LEASE, space)).items:
                await asyncio.sleep(_LOOK_SECONDS)

    with_host(data, work)


@app.command
def kubeconfig(
    name: str,
    *,
    hours: float = 24,
    certificate: Certificate = False,
    output: Output = None,
    data: Data = None,
) -> None:
    """
    Write a fresh kubeconfig; the last one goes on working until it ends.

    Args:
        name: The agent.
        hours: How long the credential lasts.
    """
    path = write_kubeconfig(name, output, data, hours, certificate=certificate)
    console.print(f"{path} is good for {hours:g} hours")


@app.command
def delete(name: str, *, data: Data = None) -> None:
    """End an agent: its pods, leases, wallet, credentials and plane."""

    async def work(host: Client) -> None:
        await host.delete(AGENT, name)
        with console.status(f"ending {name}: pods, leases, wallet, plane …"):
            while True:
                try:
                    await host.get(AGENT, name)
                except NotFound:
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    with_host(data, work)
    console.print(f"agent {name} is gone: leases ended, account settled, credentials revoked")


def _check(name: str, priority: int, refill: str, max_price: str) -> None:
    problem = name_problem(name)
    if problem:
        raise UserError(problem)
    if not 1 <= priority <= 1000:
        raise UserError(f"--priority must be from 1 to 1000, not {priority}")
    for option, read, text in (
        ("--refill", parse_credits, refill),
        ("--max-price", parse_price, max_price),
    ):
        try:
            read(text)
        except ValueError as error:
            raise UserError(f"{option}: {error}") from error


async def _create(host: Client, agent: Object) -> Object:
    name = agent["metadata"]["name"]
    await host.create(AGENT, agent)
    try:
        async with asyncio.timeout(_READY_SECONDS):
            return await agent_ready(host, name)
    except TimeoutError:
        raise UserError(
            f"agent {name} was made, but is not ready after {_READY_SECONDS:.0f} s;"
            " see logs/server.log in the data directory"
        ) from None


def write_kubeconfig(
    name: str,
    output: Path | None,
    data: Path | None,
    hours: float = 24,
    *,
    certificate: bool = False,
) -> Path:
    path = output or Path(f"{name}.kubeconfig")
    params = {"seconds": str(int(hours * 3600)), **({"certificate": "true"} if certificate else {})}
    with http(data) as client:
        response = client.post(f"/bidplane/v1/agents/{name}/kubeconfig", params=params)
        if response.status_code >= 400:
            raise refusal(response)
    try:
        path.touch(mode=0o600)
        path.write_bytes(response.content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose with --output") from error
    return path
