"""`bidplane proposals …`: intended changes, their verdicts, and people's decisions on them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from cyclopts import App, Parameter

from bidplane.api.gate.action import Effect
from bidplane.api.gate.proposal import ProposalPhase, ProposalStatus
from bidplane.api.kinds import PROPOSAL, Object
from bidplane.api.money import format_credits
from bidplane.api.reading import Invalid, Proposal, read_proposal
from bidplane.cli.common import Data, Json, ask, console, print_json, print_table, with_host
from bidplane.cli.gate.audit import describe, open_audit
from bidplane.client import config
from bidplane.errors import UserError
from bidplane.http.client.caller import BlockingCaller, NoAnswer, trust
from bidplane.kube.client import KubeClient
from bidplane.kube.kubeconfig import client_from

T = TypeVar("T")

app = App(name="proposals", help="Proposals: intended changes, and the decisions on them.")

As = Annotated[
    Path | None,
    Parameter(
        name="--as",
        help="The kubeconfig of the person who decides (`bidplane user create`); else the owner.",
    ),
]


class DecisionAnswer(msgspec.Struct, frozen=True):
    name: str
    by: str


@app.command(name="list")
def list_proposals(
    *,
    waiting: Annotated[
        bool, Parameter(negative="", help="Only those that wait for somebody.")
    ] = False,
    json: Json = False,
    data: Data = None,
    as_: As = None,
) -> None:
    """
    List Proposals, the newest first.

    For example:
        bidplane proposals list --waiting
    """

    async def work(host: KubeClient) -> list[Object]:
        return list((await host.list(PROPOSAL)).items)

    objects = _host(data, as_, work)
    proposals = [p for p in map(read_proposal, objects) if not isinstance(p, Invalid)]
    proposals.sort(key=lambda p: (p.creation_timestamp, p.name), reverse=True)
    if waiting:
        proposals = [p for p in proposals if p.phase is ProposalPhase.WAITING]
    if json:
        print_json([p.json for p in proposals])
        return
    rows = [
        [
            p.name,
            str(p.spec.action),
            p.spec.proposer.name,
            p.phase or "",
            p.status.reason if p.status is not None else "",
            _effect_text(p.status.effect) if p.status is not None else "",
        ]
        for p in proposals
    ]
    print_table(["name", "action", "by", "phase", "reason", "touches"], rows)


@app.command
def show(name: str, *, json: Json = False, data: Data = None, as_: As = None) -> None:
    """
    Show one Proposal: its verdict, its effect, and how to decide on it.

    For example:
        bidplane proposals show pilot-3f2a9c01
    """
    proposal = _find(name, data, as_)
    if json:
        print_json(proposal.json)
        return
    spec, status = proposal.spec, proposal.status
    lines = [
        f"[bold]{spec.action}[/bold], proposed by {spec.proposer.role} {spec.proposer.name}",
        f"  because   {spec.reason or '(no reason given)'}",
        *(f"  evidence  {line}" for line in spec.evidence),
    ]
    if status is None:
        lines.append("  it is not judged yet")
    else:
        lines += _status_lines(name, status)
    for line in lines:
        console.print(line, soft_wrap=True, markup=line == lines[0])


def _status_lines(name: str, status: ProposalStatus) -> list[str]:
    lines = [
        f"  phase     {status.phase}: {status.message}",
        f"  policy    {status.policy or '(none)'}",
        f"  touches   {_effect_text(status.effect)}",
    ]
    if status.applied_at:
        lines.append(f"  applied   {status.applied_at}; measured: {_effect_text(status.measured)}")
    lines += [f"  approved  by {a.role} {a.name} at {a.at}" for a in status.approvals]
    lines += [f"  undo      {undo}: bidplane proposals undo {name}" for undo in status.undo]
    if status.phase is ProposalPhase.WAITING:
        lines += [
            f"  waits     until {status.expires_at} for {status.needs} in all",
            f"  digest    {status.digest}",
            f"  decide    bidplane proposals approve {name} --digest {status.digest[:16]}",
        ]
    return lines


def _effect_text(effect: Effect) -> str:
    parts = [
        f"{count} {noun}"
        for count, noun in (
            (effect.devices, "devices"),
            (effect.pods, "pods"),
            (effect.agents, "agents"),
        )
        if count
    ]
    if effect.spend:
        parts.append(f"{format_credits(effect.spend)} credits/h")
    return ", ".join(parts) or "nothing"


@app.command
def approve(
    name: str,
    *,
    digest: Annotated[
        str, Parameter(help="The digest that `show` prints, or its first 16 digits.")
    ],
    json: Json = False,
    data: Data = None,
    as_: As = None,
) -> None:
    """
    Approve exactly the action that `show` showed. It is judged again, and then applied.

    For example:
        bidplane proposals approve pilot-3f2a9c01 --digest 9b1c0d5e7f3a2468 --as ann.kubeconfig
    """
    proposal = _find(name, data, as_)
    actual = proposal.status.digest if proposal.status is not None else ""
    if len(digest) < 16:
        raise UserError("--digest: give at least 16 digits of it")
    whole = actual if actual.startswith(digest) else digest
    _decided(name, "approve", {"digest": whole}, "approved", json, data, as_)


@app.command
def reject(
    name: str, *, reason: str = "", json: Json = False, data: Data = None, as_: As = None
) -> None:
    """
    Reject a Proposal that waits.

    For example:
        bidplane proposals reject pilot-3f2a9c01 --reason "the box is needed at eight"
    """
    _decided(name, "reject", {"reason": reason}, "rejected", json, data, as_)


@app.command
def undo(name: str, *, json: Json = False, data: Data = None, as_: As = None) -> None:
    """
    Propose what takes an applied Proposal back; that is judged like any change.

    For example:
        bidplane proposals undo pilot-3f2a9c01
    """
    answer = _send(name, "undo", {}, data, as_)
    if json:
        print_json(answer)
        return
    console.print(
        f"{answer.by} proposed {answer.name}: see `bidplane proposals show {answer.name}`"
    )


@app.command
def why(name: str, *, json: Json = False, data: Data = None) -> None:
    """
    Show everything that the audit has about a Proposal: each verdict, decision and outcome.

    For example:
        bidplane proposals why pilot-3f2a9c01
    """
    proposal = _find(name, data, None)
    trail = open_audit("", data)
    try:
        entries = trail.subject(proposal.uid).entries
    finally:
        trail.close()
    if json:
        print_json([describe(entry) for entry in entries])
        return
    if not entries:
        console.print(f"the audit has nothing about {name} yet")
    for entry in entries:
        line = (
            f"{describe(entry)['at']}  {entry.event}  {entry.role} {entry.actor}: {entry.message}"
        )
        console.print(line + (f"  ({entry.policy})" if entry.policy else ""), markup=False)


def _decided(
    name: str,
    verb: str,
    params: dict[str, str],
    past: str,
    json: bool,
    data: Path | None,
    kubeconfig: Path | None,
) -> None:
    answer = _send(name, verb, params, data, kubeconfig)
    if json:
        print_json(answer)
        return
    console.print(f"{answer.by} {past} {name}")


def _send(
    name: str, verb: str, params: dict[str, str], data: Path | None, kubeconfig: Path | None
) -> DecisionAnswer:
    path = f"/bidplane/v1/proposals/{name}/{verb}"
    if kubeconfig is None:
        return ask(data, "POST", path, DecisionAnswer, params=params)
    credential = config.find(kubeconfig=kubeconfig, environment={})
    trusted = trust(ca_data=credential.ca_data)
    try:
        with BlockingCaller(credential.root, trust=trusted, token=credential.token) as client:
            answer = client.call("POST", path, params=params).accepted()
    except NoAnswer as error:
        raise UserError(f"{credential.root} does not answer: {error}") from error
    return msgspec.json.decode(answer.body, type=DecisionAnswer)


def _find(name: str, data: Path | None, kubeconfig: Path | None) -> Proposal:
    async def work(host: KubeClient) -> Object:
        return await host.get(PROPOSAL, name)

    proposal = read_proposal(_host(data, kubeconfig, work))
    if isinstance(proposal, Invalid):
        raise UserError(f"the Proposal {proposal} cannot be read")
    return proposal


def _host(
    data: Path | None, kubeconfig: Path | None, work: Callable[[KubeClient], Awaitable[T]]
) -> T:
    """Run `work` with a client of the host: the person's, or the installation's owner's."""
    if kubeconfig is None:
        return with_host(data, work)

    async def run() -> T:
        client = client_from(kubeconfig)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())
