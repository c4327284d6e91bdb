"""`bidplane pilot …`: the pilot, in the foreground."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from bidplane.api.gate.action import Action
from bidplane.api.kinds import PROPOSAL, Object
from bidplane.api.reading import Invalid, read_proposal
from bidplane.cli.common import Data, Json, console, installation, print_json, with_host
from bidplane.cli.gate.audit import duration
from bidplane.cli.gate.flying import PILOT_FOLDER, digests_of, drift_from, uses_of
from bidplane.core.gate.effects import ActionImpossible, Impossible, prepare
from bidplane.core.gate.fleet import FleetState
from bidplane.core.minds import rules
from bidplane.core.minds.observation import Intention, Observation
from bidplane.core.minds.rules import RuleSettings
from bidplane.errors import UserError
from bidplane.gate.observing import read_fleet
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import SystemClock
from bidplane.models import anthropic, openai
from bidplane.models.anthropic import AnthropicModel
from bidplane.models.chat import ChatModel
from bidplane.models.openai import OpenAiModel
from bidplane.pilot.changes import HostChanges
from bidplane.pilot.desired import drift_of, missing_of, read_desired
from bidplane.pilot.exchanges import ExchangeFiles
from bidplane.pilot.loop import Mind, Pilot
from bidplane.pilot.modelmind import ModelMind
from bidplane.pilot.webhook import Webhook
from bidplane.wiring.hostclient import pilot_client

app = App(name="pilot", help="The pilot: observes the fleet and proposes changes.")


@app.command
def run(
    *,
    for_: Annotated[
        str, Parameter(name="--for", help="How long, as 30m or 24h; else until it is stopped.")
    ] = "",
    shadow: Annotated[
        bool, Parameter(negative="", help="Have everything judged and recorded, nothing applied.")
    ] = False,
    park_after: Annotated[
        str, Parameter(help="Park a node that nobody has used for so long.")
    ] = "30m",
    release_after: Annotated[
        str, Parameter(help="Release a lease whose GPUs did nothing for so long.")
    ] = "1h",
    mind: Annotated[
        Literal["rules", "openai", "anthropic"], Parameter(help="What decides.")
    ] = "rules",
    model: Annotated[str, Parameter(help="The model's name, with openai and anthropic.")] = "",
    url: Annotated[str, Parameter(help="The model's endpoint; else the vendor's.")] = "",
    model_timeout: Annotated[str, Parameter(help="For a whole answer of the model.")] = "1m",
    tokens_per_hour: Annotated[
        int, Parameter(help="The model's budget; beyond it, the rules decide.")
    ] = 200_000,
    webhook: Annotated[
        str,
        Parameter(
            help="Post each Proposal that waits, is done or refused, and each day's digest, as"
            " Slack reads it."
        ),
    ] = "",
    desired: Annotated[
        Path | None,
        Parameter(help="A folder, or git checkout, that declares Pools and Agents: repair drift."),
    ] = None,
    data: Data = None,
) -> None:
    """
    Observe the fleet every 30 s and propose what a person on call would do without thinking.

    It looks sooner where a rollout fails, a link gets worse, a node goes away or a Proposal is
    decided on. It parks idle nodes, frees those of which little is used and returns them, releases
    idle leases, cordons nodes where a link got worse, pre-warms services by their history and lets
    them sleep, and retries failed rollouts. It writes Proposals and can do nothing else; the
    Policies decide, and by default a person approves: `bidplane proposals list --waiting`.

    The digest of each day is written to `pilot/digests` of the data folder, in UTC.

    With `--mind openai` or `anthropic` a model is asked, with the key in $OPENAI_API_KEY or
    $ANTHROPIC_API_KEY. If it does not answer, or its budget is used up, the rules decide.

    For example:
        bidplane pilot run --for 24h --shadow
        bidplane pilot run --mind openai --model qwen3 --url http://127.0.0.1:8080/v1
    """
    settings = RuleSettings(
        park_after_seconds=duration("--park-after", park_after),
        release_after_seconds=duration("--release-after", release_after),
    )
    seconds = duration("--for", for_) if for_ else 0

    answer_seconds = duration("--model-timeout", model_timeout)
    if tokens_per_hour < 1:
        raise UserError(f"--tokens-per-hour must be at least 1, not {tokens_per_hour}")
    if mind != "rules" and not model:
        raise UserError(f"--mind {mind}: name the model with --model")

    drifts = drift_from(desired)

    def by_rules(observation: Observation) -> Sequence[Intention]:
        return rules.decide(observation, settings)

    async def decide(observation: Observation) -> Sequence[Intention]:
        return by_rules(observation)

    async def work() -> None:
        clock = SystemClock()
        client = pilot_client(installation(data), clock=clock)
        chat = _chat_model(mind, model, url, answer_seconds)
        files = ExchangeFiles(installation(data).folder / PILOT_FOLDER)
        chosen: Mind = decide
        if chat is not None:
            chosen = ModelMind(chat, by_rules, files, tokens_per_hour=tokens_per_hour)
        mode = "in shadow: nothing is applied" if shadow else "the Policies decide"
        console.print(f"the pilot observes every 30 s; {mode}; Ctrl-C stops it")
        try:
            tell = Webhook(webhook).tell if webhook else None
            pilot = Pilot(
                client,
                chosen,
                clock=clock,
                shadow=shadow,
                tell=tell,
                uses=uses_of(installation(data)),
                desired=drifts,
                changes=HostChanges(client, clock=clock),
                digests=digests_of(installation(data), tell),
            )
            await pilot.run(asyncio.sleep, until=clock.now() + seconds if seconds else 0.0)
        finally:
            await client.close()
            if chat is not None:
                await chat.close()

    asyncio.run(work())


def _chat_model(mind: str, model: str, url: str, seconds: float) -> ChatModel | None:
    """Return the model that a mind asks; None for the rules."""
    if mind == "openai":
        key = os.environ.get("OPENAI_API_KEY", "")
        return OpenAiModel(model, url=url or openai.DEFAULT_URL, key=key, seconds=seconds)
    if mind == "anthropic":
        key = os.environ.get("ANTHROPIC_API_KEY", "")
        return AnthropicModel(model, url=url or anthropic.DEFAULT_URL, key=key, seconds=seconds)
    return None


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between what was declared and what is."""

    repairs: list[str]
    missing: list[str]  # declared, and not there: an owner creates it


@app.command
def drift(desired: Path, /, *, json: Json = False, data: Data = None) -> None:
    """
    Show where Pools and Agents differ from a folder that declares them; exit code 1 if they do.

    For example:
        bidplane pilot drift ./fleet
    """
    declared = read_desired(desired)
    fleet = with_host(data, read_fleet)
    repairs = [str(action) for action in drift_of(declared, fleet) if _is_due(action, fleet)]
    report = DriftReport(repairs=repairs, missing=missing_of(declared, fleet))
    if json:
        print_json(report)
    else:
        for line in report.repairs:
            console.print(f"~ {line}", markup=False, soft_wrap=True)
        for line in report.missing:
            console.print(f"+ {line}: create it with kubectl", markup=False, soft_wrap=True)
        if not report.repairs and not report.missing:
            console.print("nothing differs from what was declared")
    if report.repairs or report.missing:
        sys.exit(1)


def _is_due(action: Action, fleet: FleetState) -> bool:
    """Return False for another spelling of the value that is there."""
    try:
        prepare(action, fleet)
    except ActionImpossible as impossible:
        return impossible.reason is not Impossible.NOTHING_TO_DO
    return True


@app.command
def explain(name: str, *, json: Json = False, data: Data = None) -> None:
    """
    Show exactly what the model was given before it proposed this, and what it said.

    For example:
        bidplane pilot explain pilot-3f2a9c01d4e5-1
    """

    async def work(host: KubeClient) -> Object:
        return await host.get(PROPOSAL, name)

    proposal = read_proposal(with_host(data, work))
    if isinstance(proposal, Invalid):
        raise UserError(f"the Proposal {proposal} cannot be read")
    folder = installation(data).folder / PILOT_FOLDER
    exchange = ExchangeFiles(folder).read(proposal.spec.observation)
    if json:
        print_json(exchange)
        return
    for title, text in (
        ("it was told", exchange.system),
        ("it was given", exchange.question),
        ("it said", exchange.answer or "(nothing)"),
        ("the rules decided, because", exchange.problem),
    ):
        if text:
            console.print(f"--- {title}:", style="bold")
            console.print(text, markup=False, soft_wrap=True)
