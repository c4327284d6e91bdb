"""`bidplane demo`: a day of the example fleet, told in a minute, on a real installation."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import msgspec

from bidplane.api.exchange import Leases, Statement
from bidplane.api.kinds import POD
from bidplane.api.money import parse_credits
from bidplane.cli import day
from bidplane.cli.chronicle import Chronicle, perform
from bidplane.cli.common import ask, console, print_table
from bidplane.cli.judgement import Judgement, Paid, judge
from bidplane.cli.story import NAMESPACE, Cast, InstallationStage
from bidplane.cli.up import DEFAULT_FLEET, Running
from bidplane.ledger import verify
from bidplane.node import fleet as fleets
from bidplane.runtime.installation import Installation

HOUR_SECONDS = 2.0
_SETTLED_SECONDS = 20.0


def demo() -> None:
    """
    Play a day of five agents on 28 GPUs, in about a minute.

    Starts a Bidplane of its own in a temporary directory (with simulated GPUs) and
    removes it afterwards. Ends with who paid what, and what first come, first served
    would have made of the same work.
    """
    with tempfile.TemporaryDirectory(prefix="bidplane-demo-") as folder:
        asyncio.run(_play(Path(folder)))


async def _play(folder: Path) -> None:
    fleet = day.with_short_notice(fleets.load(DEFAULT_FLEET))
    declared = folder / "my-fleet.yaml"
    declared.write_bytes(msgspec.yaml.encode(fleet))
    where = Installation(folder / "data")
    running = Running(where, port=0, fleet=declared)
    cast: Cast | None = None
    try:
        with console.status("starting a Bidplane with five simulated nodes …"):
            await running.start()
            cast = Cast(InstallationStage(where))
            for character in day.CAST:
                await cast.enter(character)
        console.print(
            "[bold]28 GPUs, five agents, a day in 48 seconds.[/bold] Each agent has a Kubernetes\n"
            "of its own and a wallet. Prices are credits per GPU-hour; who is outbid has"
            f" {day.NOTICE_SECONDS} s\nto leave.\n"
        )
        works = day.works(HOUR_SECONDS)
        chronicle = Chronicle(
            works,
            HOUR_SECONDS,
            lambda text, style: console.print(
                text, style=style, soft_wrap=True, highlight=False, markup=False
            ),
        )
        await perform(cast, chronicle, works, HOUR_SECONDS)
        await _end(cast)
        await _all_settled(where)
        paid = await asyncio.to_thread(_payments, where)
        _show(judge(works, chronicle, paid, list(day.domains(fleet)), HOUR_SECONDS))
        _show_books(where)
    finally:
        if cast is not None:
            await cast.leave()
        await running.stop()


async def _end(cast: Cast) -> None:
    """The day is over: what is still there has had its chance."""
    for name in cast.names:
        for pod in (await cast.client(name).list(POD, NAMESPACE)).items:
            await cast.forget(name, pod["metadata"]["name"])


async def _all_settled(where: Installation) -> None:
    """The last pod's end is paid for in the next round."""
    async with asyncio.timeout(_SETTLED_SECONDS):
        while (
            await asyncio.to_thread(ask, where.folder, "GET", "/exchange/v1/leases", Leases)
        ).leases:
            await asyncio.sleep(0.2)


def _payments(where: Installation) -> dict[str, Paid]:
    """By agent, of its statement: what it paid, and what it was paid for leaving."""
    found = {}
    for character in day.CAST:
        path = f"/exchange/v1/wallets/{character.name}/statement"
        lines = ask(where.folder, "GET", path, Statement).lines
        amounts = [(line.kind, parse_credits(line.amount.removeprefix("-"))) for line in lines]
        found[character.name] = Paid(
            paid=sum(
                amount
                for line, (_, amount) in zip(lines, amounts, strict=True)
                if line.amount.startswith("-")
            ),
            compensated=sum(amount for kind, amount in amounts if kind == "compensation"),
        )
    return found


def _show(verdict: Judgement) -> None:
    console.print("\n[bold]Who paid what[/bold] (credits; an hour of the story is an hour)")
    print_table(
        ["agent", "GPU-hours", "paid", "per-hour", "compensated"],
        verdict.bill,
        right="GPU-hours paid per-hour compensated",
    )
    console.print("\n[bold]The same work, first come first served[/bold]")
    print_table(["", "Bidplane", "queue"], verdict.beside, right="Bidplane queue")
    console.print(
        "Useful: GPU time of work that ended within the day, but for what an eviction\n"
        "lost. Value: what work that ended in time is worth to its agent. Paid: also for\n"
        "starting and leaving, which weigh more in such a day than in a real one.",
        style="dim",
    )


def _show_books(where: Installation) -> None:
    books = verify(where.ledger)
    console.print(
        f"\nThe ledger {'adds up' if books.is_sound else 'is broken: ' + books.problem}:"
        f" {books.transfers} transfers in {books.commits} commits."
    )
