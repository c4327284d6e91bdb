"""`bidplane pilot …`: the pilot, in the foreground."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, Parameter

from bidplane.cli.common import Data, console, installation
from bidplane.core.minds import rules
from bidplane.core.minds.observation import Intention, Observation
from bidplane.core.minds.rules import RuleSettings
from bidplane.errors import UserError
from bidplane.machinery.clock import SystemClock
from bidplane.pilot.loop import Pilot
from bidplane.wiring.hostclient import pilot_client

app = App(name="pilot", help="The pilot: observes the fleet and proposes changes.")

_DURATION = re.compile(r"([0-9]{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


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
    data: Data = None,
) -> None:
    """
    Observe the fleet every 30 s and propose what a person on call would do without thinking.

    It parks idle nodes and returns them, releases idle leases, and cordons nodes where a link got
    worse. It writes Proposals and can do nothing else; the Policies decide, and by default a person
    approves: `bidplane proposals list --waiting`.

    For example:
        bidplane pilot run --for 24h --shadow
    """
    settings = RuleSettings(
        park_after_seconds=duration("--park-after", park_after),
        release_after_seconds=duration("--release-after", release_after),
    )
    seconds = duration("--for", for_) if for_ else 0

    async def mind(observation: Observation) -> Sequence[Intention]:
        return rules.decide(observation, settings)

    async def work() -> None:
        clock = SystemClock()
        client = pilot_client(installation(data), clock=clock)
        mode = "in shadow: nothing is applied" if shadow else "the Policies decide"
        console.print(f"the pilot observes every 30 s; {mode}; Ctrl-C stops it")
        try:
            pilot = Pilot(client, mind, clock=clock, shadow=shadow)
            await pilot.run(asyncio.sleep, until=clock.now() + seconds if seconds else 0.0)
        finally:
            await client.close()

    asyncio.run(work())


def duration(option: str, text: str) -> int:
    """Return the seconds in a duration such as 30m; raise `UserError` for what is none."""
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        raise UserError(f"{option} {text!r}: write a number and s, m, h or d, as 30m")
    return int(match[1]) * _SECONDS[match[2]]
