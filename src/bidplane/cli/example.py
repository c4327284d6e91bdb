"""
`bidplane up --example`: the day of the demo, over and over, so that there is a market to see.

Ten minutes to a day; everything the agents do is public API.
"""

from __future__ import annotations

import asyncio
import itertools

from bidplane.api.kinds import POD
from bidplane.cli import day
from bidplane.cli.story import NAMESPACE, Cast, InstallationStage, Work
from bidplane.core.scheduling import phase_of
from bidplane.errors import AlreadyExists, ApiError
from bidplane.runtime.installation import Installation

HOUR_SECONDS = 25.0
_MOST = 20  # pods of an agent that are not done: a fleet that is busy is not buried
_RETRY_SECONDS = 2.0


async def keep_trading(where: Installation) -> None:
    """Until cancelled."""
    cast = Cast(InstallationStage(where))
    try:
        for character in day.CAST:
            await cast.enter(character)
        for number in itertools.count(1):
            await play_day(cast, number, HOUR_SECONDS)
    finally:
        await cast.leave()


async def play_day(cast: Cast, number: int, hour: float) -> None:
    """Submit a day's work at its hours; returns when the day is over."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for work in sorted(day.works(hour, f"-day{number}"), key=lambda work: work.at):
        await asyncio.sleep(max(0.0, began + work.at - loop.time()))
        await _submit(cast, work)
    await asyncio.sleep(max(0.0, began + day.HOURS * hour - loop.time()))


async def _submit(cast: Cast, work: Work) -> None:
    while True:
        try:
            if await _tidy(cast, work.agent) < _MOST:
                await cast.submit(work)
            return
        except AlreadyExists:
            return  # left from an earlier day of that number, before a restart
        except ApiError:
            # The server restarts: not worth a word.
            await asyncio.sleep(_RETRY_SECONDS)


async def _tidy(cast: Cast, agent: str) -> int:
    """Remove the pods that are done; returns how many are not."""
    busy = 0
    for pod in (await cast.client(agent).list(POD, NAMESPACE)).items:
        if phase_of(pod) in ("Succeeded", "Failed"):
            await cast.forget(agent, pod["metadata"]["name"])
        else:
            busy += 1
    return busy
