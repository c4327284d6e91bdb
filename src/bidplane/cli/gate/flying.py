"""A pilot with the rules, in a command: `bidplane pilot run` and `bidplane up --pilot`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal

from bidplane.api.gate.action import Action
from bidplane.cli.gate.audit import open_audit
from bidplane.core.gate.digest import Digest
from bidplane.core.gate.fleet import FleetState
from bidplane.core.minds import rules
from bidplane.core.minds.observation import Intention, Observation
from bidplane.errors import UserError
from bidplane.ledger.audit.summary import digest_of_day
from bidplane.machinery.clock import SystemClock
from bidplane.pilot.changes import HostChanges
from bidplane.pilot.desired import drift_of, read_desired
from bidplane.pilot.digests import DailyDigests
from bidplane.pilot.loop import Pilot
from bidplane.pilot.uses import UseFile
from bidplane.runtime.installation import Installation
from bidplane.storage.values import Damaged
from bidplane.wiring.hostclient import pilot_client

PilotMode = Literal["propose", "shadow"]

PILOT_FOLDER = "pilot"  # in the installation's: exchanges with models, use of Endpoints, digests

Tell = Callable[[str], Awaitable[None]]


def uses_of(target: Installation) -> UseFile:
    return UseFile(target.folder / PILOT_FOLDER / "uses.json")


def drift_from(folder: Path | None) -> Callable[[FleetState], list[Action]] | None:
    """Return what finds the drift from a folder; raises `UserError` if it cannot be read now."""
    if folder is None:
        return None
    read_desired(folder)
    return lambda fleet: drift_of(read_desired(folder), fleet)


def digests_of(target: Installation, tell: Tell | None) -> DailyDigests:
    async def read(begin: float, end: float) -> Digest | None:
        return await asyncio.to_thread(_digest_of_day, target, begin, end)

    return DailyDigests(target.folder / PILOT_FOLDER / "digests", read, tell=tell)


def _digest_of_day(target: Installation, begin: float, end: float) -> Digest | None:
    trail = open_audit("", target.folder)
    try:
        return digest_of_day(trail, begin=begin, end=end)
    except Damaged as error:
        raise UserError(f"the audit cannot be read: {error}") from error
    finally:
        trail.close()


async def keep_piloting(
    target: Installation, *, mode: PilotMode, desired: Path | None, tell: Tell | None = None
) -> None:
    """Observe and propose by the rules until cancelled."""

    async def by_rules(observation: Observation) -> Sequence[Intention]:
        return rules.decide(observation)

    clock = SystemClock()
    client = pilot_client(target, clock=clock)
    try:
        pilot = Pilot(
            client,
            by_rules,
            clock=clock,
            shadow=mode == "shadow",
            tell=tell,
            uses=uses_of(target),
            desired=drift_from(desired),
            changes=HostChanges(client, clock=clock),
            digests=digests_of(target, tell),
        )
        await pilot.run(asyncio.sleep)
    finally:
        await client.close()
