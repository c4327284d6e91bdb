"""`bidplane demo`: a day of the example fleet at its true scale, in virtual time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from random import Random
from typing import Annotated

from cyclopts import Parameter

from bidplane.api.agent import Strategy
from bidplane.cli.common import Json, console, print_json, print_table
from bidplane.cli.operate.up import DEFAULT_FLEET
from bidplane.cli.story import day
from bidplane.cli.story.agents import AgentWork
from bidplane.cli.story.chronicle import Narrator, Say
from bidplane.cli.story.judgement import DayResult, PolicyResult, day_result
from bidplane.cli.story.night import show_night
from bidplane.errors import UserError
from bidplane.exchange.snapshot import AgentView
from bidplane.node import fleet as fleets
from bidplane.node.fleet import Fleet
from bidplane.sim.day import DayJob, MarketDay

_HOUR = 3600
_SCREEN_SECONDS = 55.0


def demo(
    *,
    seed: int = 1,
    seconds: Annotated[
        float | None, Parameter(help="How long the day takes on screen; in a pipe, 0.")
    ] = None,
    night: Annotated[
        bool, Parameter(negative="", help="Play a day and a night of the pilot instead.")
    ] = False,
    json: Json = False,
) -> None:
    """
    Play a day of five agents on 28 GPUs, in about a minute; or, with --night, of the pilot.

    The day is played at its true scale in virtual time, by the exchange, its ledger and its
    bidders: rounds of a second, 30 s of notice. Planes and pods are not played: for those, see
    `bidplane up --example`. Ends with what each agent paid, and with the results of the same work
    under first come, first served.

    For example:
        bidplane demo
        bidplane demo --seed 7 --seconds 10
        bidplane demo --json | jq .market
        bidplane demo --night

    Args:
        seed: Draws when jobs arrive and how long they take. One seed gives one day. With --night
            nothing is drawn.
    """
    if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
        raise UserError(f"--seconds must be 0 or more, not {seconds}")
    on_screen = seconds if seconds is not None else _SCREEN_SECONDS * console.is_terminal
    if night:
        show_night(0.0 if json else on_screen, json=json)
        return
    if json:
        print_json(play(seed, lambda at, text, style: None))
        return
    console.print(
        "[bold]28 GPUs, five agents, a day.[/bold] Each agent has a wallet, refilled by priority.\n"
        "For a GPU-hour it offers priority × list price, or what its wallet sustains.\n"
        "The exchange and its ledger play the day in virtual time: rounds of a second,\n"
        f"{day.NOTICE_SECONDS} s of notice. Planes and pods are not played.\n"
    )
    result = play(seed, paced(on_screen / (day.HOURS * _HOUR), time.monotonic, time.sleep))
    show(result)


def play(seed: int, say: Say) -> DayResult:
    """Play the day of a seed and evaluate it."""
    fleet = day.with_demo_notice(fleets.load(DEFAULT_FLEET))
    works = day.works(_HOUR, dice=Random(seed))
    played = market_day(works, fleet, seconds=day.HOURS * _HOUR)
    narrator = Narrator(played, say)
    narrator.run()
    return day_result(seed, works, played, narrator, list(day.domains(fleet)))


def market_day(works: list[AgentWork], fleet: Fleet, *, seconds: int) -> MarketDay:
    """The example's agents and the given works on a fleet."""
    agents = [
        AgentView(
            name=agent.name,
            uid=agent.name,
            owner=f"{agent.name}-team",
            priority=agent.priority,
            strategy=Strategy.STEADY,
            default_refill=True,
            default_cap=True,
        )
        for agent in day.AGENTS
    ]
    saves = {agent.name: agent.saves for agent in day.AGENTS}
    jobs = [
        DayJob(
            agent=work.agent,
            name=work.name,
            at=round(work.at),
            gpus=work.gpus,
            seconds=work.seconds,
            pool=work.pool,
            saves=saves[work.agent],
        )
        for work in works
    ]
    return MarketDay(jobs, agents, fleet, seconds=seconds)


def paced(
    scale: float, clock: Callable[[], float], sleep: Callable[[float], None]
) -> Callable[[int, str, str], None]:
    """
    Return a function that prints a line at its moment: `scale` seconds on screen for each of the
    day. Lines that are late are printed at once.
    """
    began = clock()

    def say(at: int, text: str, style: str) -> None:
        delay = began + scale * at - clock()
        if delay > 0:
            sleep(delay)
        console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)

    return say


def show(result: DayResult) -> None:
    """Print the bill and the comparison."""
    console.print("\n[bold]Who paid what[/bold] (credits; per hour: of one GPU)")
    print_table(
        ["agent", "priority", "GPU-hours", "granted", "paid", "per-hour", "offered", "compensated"],
        [
            [
                agent.agent,
                str(agent.priority),
                f"{agent.gpu_hours:.0f}",
                f"{agent.granted:.0f}",
                f"{agent.paid:.0f}",
                f"{agent.paid_per_hour:.2f}",
                f"{agent.offered_per_hour:.2f}",
                f"{agent.compensation_received:.2f}",
            ]
            for agent in result.agents
        ],
        right="priority GPU-hours granted paid per-hour offered compensated",
    )
    console.print(
        f"No lease paid more than it offered: of {result.leases}, the highest paid"
        f" {result.highest_paid_percent} % of its offer."
    )
    console.print("\n[bold]The same work, first come first served[/bold]")
    print_table(["", "Bidplane", "queue"], comparison_rows(result), right="Bidplane queue")
    console.print(
        "Value: GPU-hours done in time, each times its agent's priority. Utilisation: GPU time\n"
        "of work that was done within the day.",
        style="dim",
    )
    problem = result.ledger_problem
    console.print(
        f"\nThe ledger {'is broken: ' + problem if problem else 'adds up'}: {result.transfers}"
        f" transfers in {result.rounds} rounds; those that would decide nothing were skipped."
    )


def comparison_rows(result: DayResult) -> list[list[str]]:
    """The market's figures beside the queue's."""

    def row(label: str, figure: Callable[[PolicyResult], str]) -> list[str]:
        return [label, figure(result.market), figure(result.queue)]

    return [
        row("value", lambda policy: f"{policy.value:.0f} of {result.value_of_all:.0f}"),
        row("utilisation", lambda policy: f"{policy.utilisation:.1%}"),
        row("done in time", lambda policy: f"{policy.done_in_time} of {result.jobs}"),
        row("chat in time", lambda policy: f"{policy.urgent_in_time} of {result.urgent_jobs}"),
        row("chat waited at most", lambda policy: duration(policy.urgent_wait_seconds)),
    ]


def duration(seconds: int) -> str:
    """Write a duration as seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
