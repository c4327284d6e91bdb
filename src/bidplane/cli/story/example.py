"""
`bidplane up --example`: the demo's day, over and over, so that there is a market to watch.

A day takes ten minutes; the agents use the public API only.
"""

from __future__ import annotations

import asyncio
import itertools

from bidplane.api.kinds import POD
from bidplane.api.objects import phase_of
from bidplane.cli.story import day, service
from bidplane.cli.story.agents import NAMESPACE, AgentWork, DemoAgents, InstallationEnvironment
from bidplane.errors import AlreadyExists, ApiError
from bidplane.runtime.installation import Installation

HOUR_SECONDS = 25.0
_MOST = 20  # unfinished pods of an agent, so that they do not pile up on a busy fleet
_RETRY_SECONDS = 2.0


async def keep_trading(target: Installation, *, with_service: bool = False) -> None:
    """Play day after day until cancelled; `with_service`: this machine runs the example's page."""
    agents = DemoAgents(InstallationEnvironment(target))
    try:
        for demo_agent in day.AGENTS:
            await agents.create(demo_agent)
        if with_service:
            await service.create(agents.client(service.AGENT), NAMESPACE)
        for number in itertools.count(1):
            await play_day(agents, number, HOUR_SECONDS)
    finally:
        await agents.close()


async def play_day(agents: DemoAgents, number: int, hour: float) -> None:
    """Submit a day's work at its hours; returns when the day is over."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for work in sorted(day.works(hour, f"-day{number}"), key=lambda work: work.at):
        await asyncio.sleep(max(0.0, began + work.at - loop.time()))
        await _submit(agents, work)
    await asyncio.sleep(max(0.0, began + day.HOURS * hour - loop.time()))


async def _submit(agents: DemoAgents, work: AgentWork) -> None:
    """Submit a work, trying again while the server restarts."""
    while True:
        try:
            if await _delete_finished(agents, work.agent) < _MOST:
                await agents.submit(work)
            return
        except AlreadyExists:
            return  # left from an earlier day of that number, before a restart
        except ApiError:
            # The server restarts: try again silently.
            await asyncio.sleep(_RETRY_SECONDS)


async def _delete_finished(agents: DemoAgents, agent: str) -> int:
    """Delete an agent's finished pods; return how many others it has."""
    busy = 0
    for pod in (await agents.client(agent).list(POD, NAMESPACE)).items:
        if phase_of(pod) in ("Succeeded", "Failed"):
            await agents.delete_pod(agent, pod["metadata"]["name"])
        else:
            busy += 1
    return busy
