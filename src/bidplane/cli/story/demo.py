"""`bidplane demo`: a day of the example fleet in a minute, on a real installation."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import msgspec

from bidplane.api.http.exchange import Leases, StatementView
from bidplane.api.kinds import POD
from bidplane.api.money import parse_credits
from bidplane.cli.common import ask, console, print_table
from bidplane.cli.operate.up import DEFAULT_FLEET, Running
from bidplane.cli.story import day
from bidplane.cli.story.agents import NAMESPACE, DemoAgents, InstallationEnvironment
from bidplane.cli.story.chronicle import DayLog, run_day
from bidplane.cli.story.judgement import DayComparison, Paid, compare_with_queue
from bidplane.ledger import verify
from bidplane.node import fleet as fleets
from bidplane.runtime.installation import Installation

HOUR_SECONDS = 2.0
_SETTLED_SECONDS = 20.0


def demo() -> None:
    """
    Play a day of five agents on 28 GPUs, in about a minute.

    Starts a separate Bidplane in a temporary directory (with simulated GPUs) and removes it
    afterwards. Ends with what each agent paid, and with the results of the same work under
    first come, first served.

    For example:
        bidplane demo
    """
    with tempfile.TemporaryDirectory(prefix="bidplane-demo-") as folder:
        asyncio.run(_run_demo(Path(folder)))


async def _run_demo(folder: Path) -> None:
    fleet = day.with_short_notice(fleets.load(DEFAULT_FLEET))
    fleet_file = folder / "my-fleet.yaml"
    fleet_file.write_bytes(msgspec.yaml.encode(fleet))
    target = Installation(folder / "data")
    running = Running(target, port=0, fleet=fleet_file)
    agents: DemoAgents | None = None
    try:
        with console.status("starting a Bidplane with five simulated nodes …"):
            await running.start()
            agents = DemoAgents(InstallationEnvironment(target))
            for demo_agent in day.AGENTS:
                await agents.create(demo_agent)
        console.print(
            "[bold]28 GPUs, five agents, a day in 48 seconds.[/bold] Each agent has a Kubernetes\n"
            "of its own and a wallet. Prices are credits per GPU-hour; an outbid agent has"
            f" {day.NOTICE_SECONDS} s\nto leave.\n"
        )
        works = day.works(HOUR_SECONDS)
        day_log = DayLog(
            works,
            HOUR_SECONDS,
            lambda text, style: console.print(
                text, style=style, soft_wrap=True, highlight=False, markup=False
            ),
        )
        await run_day(agents, day_log, works, HOUR_SECONDS)
        await _delete_pods(agents)
        await _wait_settled(target)
        payments = await asyncio.to_thread(_payments, target)
        _show(compare_with_queue(works, day_log, payments, list(day.domains(fleet)), HOUR_SECONDS))
        _show_books(target)
    finally:
        if agents is not None:
            await agents.close()
        await running.stop()


async def _delete_pods(agents: DemoAgents) -> None:
    """Delete all remaining pods at the end of the day."""
    for name in agents.names:
        for pod in (await agents.client(name).list(POD, NAMESPACE)).items:
            await agents.delete_pod(name, pod["metadata"]["name"])


async def _wait_settled(target: Installation) -> None:
    """Wait until all leases have ended: the last is settled in the next round."""
    async with asyncio.timeout(_SETTLED_SECONDS):
        while (
            await asyncio.to_thread(ask, target.folder, "GET", "/exchange/v1/leases", Leases)
        ).leases:
            await asyncio.sleep(0.2)


def _payments(target: Installation) -> dict[str, Paid]:
    """The amounts that each agent paid and received as compensation, from its statement."""
    payments = {}
    for demo_agent in day.AGENTS:
        path = f"/exchange/v1/wallets/{demo_agent.name}/statement"
        lines = ask(target.folder, "GET", path, StatementView).lines
        amounts = [(line.kind, parse_credits(line.amount.removeprefix("-"))) for line in lines]
        payments[demo_agent.name] = Paid(
            paid=sum(
                amount
                for line, (_, amount) in zip(lines, amounts, strict=True)
                if line.amount.startswith("-")
            ),
            compensated=sum(amount for kind, amount in amounts if kind == "compensation"),
        )
    return payments


def _show(comparison: DayComparison) -> None:
    """Print the bill and the comparison."""
    console.print("\n[bold]Who paid what[/bold] (credits; an hour of the story is an hour)")
    print_table(
        ["agent", "GPU-hours", "paid", "per-hour", "compensated"],
        comparison.bill,
        right="GPU-hours paid per-hour compensated",
    )
    console.print("\n[bold]The same work, first come first served[/bold]")
    print_table(["", "Bidplane", "queue"], comparison.beside, right="Bidplane queue")
    console.print(
        "Useful: GPU time of work that ended within the day, without what evictions lost.\n"
        "Value: what work that ended in time is worth to its agent. Paid includes the time\n"
        "to start and to leave, which weighs more in this short day than in a real one.",
        style="dim",
    )


def _show_books(target: Installation) -> None:
    """Print whether the ledger adds up."""
    verification = verify(target.ledger)
    result = "adds up" if verification.is_sound else f"is broken: {verification.problem}"
    console.print(
        f"\nThe ledger {result}:"
        f" {verification.transfers} transfers in {verification.commits} commits."
    )
