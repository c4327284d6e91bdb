"""`bidplane agent …`: who may bid."""

from __future__ import annotations

import asyncio
import getpass
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from bidplane.api.agent import (
    HIGHEST_PRIORITY,
    AgentSpec,
    Strategy,
    host_namespace,
    hourly_grant,
    name_problem,
)
from bidplane.api.http.exchange import Leases, Wallet
from bidplane.api.http.planes import PlaneUsage
from bidplane.api.kinds import AGENT, GPU_LEASE
from bidplane.api.manifests import manifest
from bidplane.api.money import parse_price
from bidplane.api.reading import Agent, Invalid, read_agent
from bidplane.cli.account.kubeconfigs import (
    OWNERS_MOST_HOURS,
    Kubeconfig,
    lifetime,
    renewed,
    save,
)
from bidplane.cli.common import (
    Data,
    Json,
    agent_ready,
    ask,
    console,
    http,
    print_json,
    print_table,
    with_host,
)
from bidplane.errors import ApiError, NotFound, UserError
from bidplane.kube.client import KubeClient, Object

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
        help="Use a client certificate, not a token. It is valid for the plane, not the exchange.",
    ),
]


@app.command
def create(
    name: str,
    *,
    priority: int = 1,
    refill: str = "",
    max_price: str = "",
    strategy: Strategy = Strategy.MANUAL,
    owner: str | None = None,
    team: str = "",
    output: Output = None,
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Make an agent: a wallet, a plane, and a kubeconfig for it.

    Priority: what a GPU-hour is worth to its work beside other agents', 1 to 10.
    Refill: each hour, its share by priority of the list price of all GPUs.
    Price: its pods offer priority × list price, and pay what the next would have.
    With 16 GPUs at 5.00, priority 3 beside a 1 gets 60.00 and offers up to 15.00.

    For example:
        bidplane agent create trainer --priority 4 --strategy steady
        bidplane agent create chat --priority 5 --refill 100 --max-price 4.00

    Args:
        name: Lower-case letters, digits and '-'.
        priority: From 1 to 10; multiplies --refill, and the list price.
        refill: Credits granted each hour, times the priority; else its share.
        max_price: The offer of pods that name no price, in credits per GPU-hour.
        strategy: How those bid: `steady` offers no more than its wallet can pay for all of them.
        owner: Who answers for it; else your user name.
        team: The team's name, for reports.
    """
    _check(name, priority, refill, max_price)
    spec = AgentSpec(
        owner=owner or getpass.getuser(),
        team=team,
        priority=priority,
        refill=refill,
        max_price=max_price,
        strategy=strategy,
    )
    ready = with_host(data, lambda host: _create(host, name, spec))
    written = write_kubeconfig(name, output, data)
    wallet = ask(data, "GET", f"/exchange/v1/wallets/{name}", Wallet)
    if json:
        print_json({"name": name, "plane": ready.status.plane, "wallet": wallet, **written.as_json})
        return
    console.print(
        f"agent [bold]{name}[/bold] is ready\n"
        f"  plane       {ready.status.plane}\n"
        f"  wallet      {wallet.available} credits, {_refill_text(wallet)}\n"
        f"  kubeconfig  {written}\n"
        f"              renew it with: bidplane agent renew {written.path}",
        soft_wrap=True,
    )


@app.command(name="list")
def list_(*, json: Json = False, data: Data = None) -> None:
    """
    List all agents.

    For example:
        bidplane agent list
        bidplane agent list --json | jq -r '.[].metadata.name'
    """

    async def work(host: KubeClient) -> list[Object]:
        return list((await host.list(AGENT)).items)

    agents = with_host(data, work)
    if json:
        print_json(agents)
        return
    rows = [
        [
            agent.name,
            agent.status.phase,
            str(agent.spec.priority),
            agent.spec.refill or "default",
            agent.spec.owner,
            agent.spec.team,
        ]
        if isinstance(agent, Agent)
        else [agent.name, agent.problem, "", "", "", ""]
        for agent in map(read_agent, agents)
    ]
    columns = ["name", "phase", "priority", "refill", "owner", "team"]
    print_table(columns, rows, right="priority refill")


@app.command
def show(name: str, *, json: Json = False, data: Data = None) -> None:
    """
    Show one agent: its owner, plane, wallet and leases.

    For example:
        bidplane agent show trainer
    """

    async def work(host: KubeClient) -> Object:
        return await host.get(AGENT, name)

    obj = with_host(data, work)
    agent = read_agent(obj)
    wallet = ask(data, "GET", f"/exchange/v1/wallets/{name}", Wallet)
    every = ask(data, "GET", "/exchange/v1/leases", Leases).leases
    leases = [lease for lease in every if lease.agent == name]
    try:
        plane = ask(data, "GET", f"/bidplane/v1/planes/{name}/usage", PlaneUsage)
        usage = _usage_text(plane)
    except ApiError as error:  # not made yet, or its file is damaged
        plane, usage = PlaneUsage(), str(error)
    if json:
        print_json({"agent": obj, "wallet": wallet, "leases": leases, "plane": plane})
        return
    if isinstance(agent, Invalid):
        raise UserError(f"the Agent {agent} cannot be read: see it with --json")
    spec, status = agent.spec, agent.status
    console.print(
        f"[bold]{name}[/bold] is {status.phase}\n"
        f"  owner     {spec.owner}{', team ' + spec.team if spec.team else ''}\n"
        f"  plane     {status.plane}\n"
        f"  priority  {spec.priority}; bids without a price offer"
        f" {spec.max_price or 'priority × list price'}, strategy {spec.strategy}\n"
        f"  refill    {_refill_text(wallet)}\n"
        f"  wallet    {wallet.available} free, {wallet.held} held, {wallet.accruing} accruing\n"
        f"  holds     {usage}" + (f"\n  problem   {status.message}" if status.message else ""),
        soft_wrap=True,
    )
    if leases:
        print_table(
            ["lease", "phase", "node", "gpus", "price", "charged", "notes"],
            [
                [v.name, v.phase, v.node, str(len(v.devices)), v.price, v.charged, v.message]
                for v in leases
            ],
            right="gpus price charged",
        )


def _refill_text(wallet: Wallet) -> str:
    """The refill of a wallet, in words: how much, and whether it is the default."""
    origin = " by default, its share by priority" if wallet.default_refill else ""
    return f"refilled with {wallet.refill} each hour{origin}, up to {wallet.carry_over}"


def _usage_text(plane: PlaneUsage) -> str:
    """The contents of an agent's plane, and the most it may hold, in a line."""
    if plane.limits is None:
        return "no limits"
    usage, limits = plane.usage, plane.limits
    return (
        f"{usage.objects} of {limits.objects} objects,"
        f" {_size(usage.bytes)} of {_size(limits.bytes)} of objects,"
        f" {_size(usage.disk)} of {_size(limits.disk)} on disk,"
        f" {usage.pods} of {limits.pods} pods,"
        f" {usage.definitions} of {limits.definitions} definitions"
    )


def _size(count: int) -> str:
    """Write a number of bytes as KiB, MiB or GiB: 268435456 → `256 MiB`."""
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if count >= 1 << power:
            return f"{count / (1 << power):.4g} {unit}"
    return f"{-(-count // 1024)} KiB"


@app.command
def suspend(name: str, *, json: Json = False, data: Data = None) -> None:
    """
    Stop an agent's spending and keep the rest: pods are evicted, leases are given back.

    Its plane can be read and written; pods wait. `bidplane agent resume` lets it bid again.

    For example:
        bidplane agent suspend trainer
    """
    _set_suspended(name, True, data)
    if json:
        print_json({"name": name, "suspended": True})
        return
    console.print(f"agent {name} is suspended: it leases nothing and bids for nothing")


@app.command
def resume(name: str, *, json: Json = False, data: Data = None) -> None:
    """
    Let a suspended agent bid again; its waiting pods bid at once.

    For example:
        bidplane agent resume trainer
    """
    _set_suspended(name, False, data)
    if json:
        print_json({"name": name, "suspended": False})
        return
    console.print(f"agent {name} bids again")


def _set_suspended(name: str, suspended: bool, data: Path | None) -> None:
    """Returns once it is so: a suspended agent leases nothing any more."""
    space = host_namespace(name)

    async def work(host: KubeClient) -> None:
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
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Write a new kubeconfig, as the owner; older ones stay valid until they expire.

    For example:
        bidplane agent kubeconfig trainer --hours 72

    Args:
        name: The agent.
        hours: How long the credential lasts.
    """
    written = write_kubeconfig(name, output, data, hours, certificate=certificate)
    if json:
        print_json({"name": name, **written.as_json})
        return
    console.print(f"wrote {written}")


@app.command
def rotate(
    name: str,
    *,
    hours: float = 24,
    certificate: Certificate = False,
    output: Output = None,
    json: Json = False,
    data: Data = None,
) -> None:
    """
    Revoke every credential of an agent's plane, and write a fresh kubeconfig.

    Tokens and certificates that were made before stop working at once, those of its service
    accounts too: pods that use the API get a new token when their node renews it.

    For example:
        bidplane agent rotate trainer

    Args:
        name: The agent.
        hours: How long the new credential lasts.
    """
    written = write_kubeconfig(name, output, data, hours, certificate=certificate, action="rotate")
    if json:
        print_json({"name": name, "revoked": True, **written.as_json})
        return
    console.print(f"revoked every earlier credential of {name}; wrote {written}")


@app.command
def renew(
    kubeconfig: Annotated[Path, Parameter(help="The agent's kubeconfig, which is rewritten.")],
    /,
    *,
    hours: Annotated[float, Parameter(help="How long it lasts from now; at most 24.")] = 24,
    json: Json = False,
) -> None:
    """
    Renew an agent's own kubeconfig while it is valid; needs only that file.

    For example:
        bidplane agent renew trainer.kubeconfig
    """
    written = renewed(kubeconfig, hours)
    if json:
        print_json(written.as_json)
        return
    console.print(f"wrote {written}")


@app.command
def delete(name: str, *, json: Json = False, data: Data = None) -> None:
    """
    End an agent: its pods, leases, wallet, credentials and plane.

    For example:
        bidplane agent delete trainer
    """

    async def work(host: KubeClient) -> None:
        await host.delete(AGENT, name)
        with console.status(f"ending {name}: pods, leases, wallet, plane …"):
            while True:
                try:
                    await host.get(AGENT, name)
                except NotFound:
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    with_host(data, work)
    if json:
        print_json({"name": name, "deleted": True})
        return
    console.print(f"agent {name} is gone: leases ended, account settled, credentials revoked")


def _check(name: str, priority: int, refill: str, max_price: str) -> None:
    problem = name_problem(name)
    if problem:
        raise UserError(problem)
    if not 1 <= priority <= HIGHEST_PRIORITY:
        raise UserError(f"--priority must be from 1 to {HIGHEST_PRIORITY}, not {priority}")
    try:
        hourly_grant(refill, priority)
    except ValueError as error:
        raise UserError(f"--refill: {error}") from error
    try:
        if max_price:
            parse_price(max_price)
    except ValueError as error:
        raise UserError(f"--max-price: {error}") from error


async def _create(host: KubeClient, name: str, spec: AgentSpec) -> Agent:
    await host.create(AGENT, manifest(AGENT, name, spec))
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
    action: str = "kubeconfig",
) -> Kubeconfig:
    path = output or Path(f"{name}.kubeconfig")
    params = lifetime(hours, most=OWNERS_MOST_HOURS)
    if certificate:
        params["certificate"] = "true"
    with http(data) as client:
        answer = client.call("POST", f"/bidplane/v1/agents/{name}/{action}", params=params)
    return save(path, answer.accepted())
