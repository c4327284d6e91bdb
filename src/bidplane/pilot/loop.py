"""
Observe, decide, propose, and again: every half minute, and soon after a change of the host.

The pilot keeps one thing in memory, since when nodes are idle, and loses nothing but time when it
is killed: a Proposal's name follows from its action and from those before, so that the same
intention never becomes two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import structlog

from bidplane.api.gate.action import Action
from bidplane.api.gate.policy import ActorRole
from bidplane.api.gate.proposal import ProposalPhase, ProposalSpec, Proposer
from bidplane.api.kinds import PROPOSAL
from bidplane.api.manifests import manifest
from bidplane.api.reading import Invalid, Proposal, read_proposal
from bidplane.api.times import parse_or_zero
from bidplane.core.gate.actions import action_digest
from bidplane.core.gate.fleet import FleetState
from bidplane.core.minds.observation import Intention, Observation, PastProposal, idle_nodes, rests
from bidplane.core.minds.services import next_retry
from bidplane.core.minds.tracking import EndpointUse
from bidplane.errors import AlreadyExists, ApiError, UserError
from bidplane.gate.observing import read_fleet
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import Clock
from bidplane.pilot.changes import HostChanges
from bidplane.pilot.digests import DailyDigests
from bidplane.pilot.uses import UseFile

TICK_SECONDS = 30.0
LEAST_SECONDS = 5.0  # between two looks, whatever happens
PILOT_NAME = "pilot"
_MOST_INTENTIONS = 16  # of one tick
MOST_AN_HOUR = 120  # Proposals, whatever a mind wants
_HOUR = 3600.0
_NEWS = {
    ProposalPhase.WAITING: "waits for you",
    ProposalPhase.APPLIED: "is done",
    ProposalPhase.DENIED: "was refused",
    ProposalPhase.FAILED: "failed",
}

log = structlog.get_logger(__name__)

Mind = Callable[[Observation], Awaitable[Sequence[Intention]]]


class Pilot:
    def __init__(
        self,
        client: KubeClient,
        mind: Mind,
        *,
        clock: Clock,
        shadow: bool = False,
        tell: Callable[[str], Awaitable[None]] | None = None,
        uses: UseFile | None = None,
        desired: Callable[[FleetState], list[Action]] | None = None,
        changes: HostChanges | None = None,
        digests: DailyDigests | None = None,
    ) -> None:
        """
        `uses` keeps the history of Endpoints' use over a restart; `desired` returns what would
        repair the drift from what was declared.

        `shadow`: what it proposes is judged and recorded, and never applied. `tell` has people hear
        of Proposals, their own too, that wait, are done or were refused. With `changes`, it looks
        again when the host changes, and when a retry is due. `digests` keeps that of each day.
        """
        self._digests = digests
        self._changes = changes
        self._retry_at = 0.0  # when the next retry of a failed rollout is due; 0: none is
        self._tell = tell
        self._phases: dict[str, ProposalPhase | None] | None = None  # by name, when last looked
        self._client, self._mind, self._clock, self._shadow = client, mind, clock, shadow
        self._idle_nodes: dict[str, float] = {}
        self._uses, self._desired = uses, desired
        self._tracker = uses.load() if uses is not None else EndpointUse()

    async def tick(self) -> list[str]:
        """Observe, decide and propose once; return the names of the new Proposals."""
        observation = await self._observe()
        await self._tell_news(observation)
        self._retry_at = next_retry(observation)
        intentions = await self._mind(observation)
        names: list[str] = []
        for intention in self._new(observation, intentions):
            name = await self._propose(observation, intention)
            if name is not None:
                names.append(name)
        return names

    async def _tell_news(self, observation: Observation) -> None:
        """Tell of each Proposal whose phase changed since the last look; at first, of none."""
        before = self._phases
        self._phases = {past.name: past.phase for past in observation.proposals}
        if before is None or self._tell is None:
            return
        for past in observation.proposals:
            if past.phase != before.get(past.name) and past.phase in _NEWS:
                await self._tell(
                    f"{past.action}, proposed by {past.by}, {_NEWS[past.phase]}:"
                    f" bidplane proposals show {past.name}"
                )

    def _new(
        self, observation: Observation, intentions: Sequence[Intention]
    ) -> Sequence[Intention]:
        """Return the intentions that are neither under way nor resting, within the bounds."""
        recent = sum(
            past.by == PILOT_NAME and past.created > observation.at - _HOUR
            for past in observation.proposals
        )
        room = min(_MOST_INTENTIONS, MOST_AN_HOUR - recent)
        new: dict[Action, Intention] = {}
        for intention in intentions:
            if not rests(observation, intention.action):
                new.setdefault(intention.action, intention)
        if len(new) > room:
            log.warning("more intentions than the pilot may propose", left_out=len(new) - room)
        return list(new.values())[: max(0, room)]

    async def run(self, sleep: Callable[[float], Awaitable[None]], *, until: float = 0.0) -> None:
        """Tick until the time `until`; for ever, if it is 0. A host that is away is waited for."""
        async with AsyncExitStack() as stack:
            if self._changes is not None:
                following = asyncio.create_task(self._changes.follow())
                stack.callback(following.cancel)
            while not until or self._clock.now() < until:
                if self._changes is not None:
                    self._changes.seen.clear()
                try:
                    names = await self.tick()
                except ApiError as error:
                    log.warning("the pilot could not look at the host", error=str(error))
                else:
                    for name in names:
                        log.info("proposed", proposal=name, shadow=self._shadow)
                if self._digests is not None:
                    await self._digests.write_due(self._clock.now())
                rest = until - self._clock.now() if until else TICK_SECONDS
                await self._rest(sleep, max(0.0, min(TICK_SECONDS, rest)))

    async def _rest(self, sleep: Callable[[float], Awaitable[None]], seconds: float) -> None:
        """Sleep so long; less, if the host changes or a retry is due."""
        if self._changes is None:
            await sleep(seconds)
            return
        if self._retry_at:
            seconds = min(seconds, max(LEAST_SECONDS, self._retry_at - self._clock.now()))
        least = min(seconds, LEAST_SECONDS)
        await sleep(least)
        if seconds <= least:
            return
        waits = (
            asyncio.ensure_future(sleep(seconds - least)),
            asyncio.ensure_future(self._changes.seen.wait()),
        )
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _observe(self) -> Observation:
        now = self._clock.now()
        fleet = await read_fleet(self._client)
        self._idle_nodes = idle_nodes(fleet, self._idle_nodes, now)
        if self._tracker.observe(fleet.endpoints, now) and self._uses is not None:
            self._uses.save(self._tracker)
        objects = (await self._client.list(PROPOSAL)).items
        proposals = [p for p in map(read_proposal, objects) if not isinstance(p, Invalid)]
        return Observation(
            at=now,
            fleet=fleet,
            proposals=tuple(map(_past, proposals)),
            idle_nodes=self._idle_nodes,
            likely=self._tracker.likely(fleet.endpoints, now),
            drifts=tuple(self._drifts(fleet)),
        )

    def _drifts(self, fleet: FleetState) -> list[Action]:
        """Return the repairs of drift; none, and a warning, while the folder cannot be read."""
        if self._desired is None:
            return []
        try:
            return self._desired(fleet)
        except UserError as error:
            log.warning("drift cannot be looked for", error=str(error))
            return []

    async def _propose(self, observation: Observation, intention: Intention) -> str | None:
        """Create the Proposal of an intention; None if it was created before."""
        earlier = sum(past.action == intention.action for past in observation.proposals)
        name = f"{PILOT_NAME}-{action_digest(intention.action)[:12]}-{earlier + 1}"
        spec = ProposalSpec(
            action=intention.action,
            proposer=Proposer(name=PILOT_NAME, role=ActorRole.PILOT),
            reason=intention.reason,
            evidence=list(intention.evidence),
            observation=observation.digest,
            shadow=self._shadow,
        )
        try:
            await self._client.create(PROPOSAL, manifest(PROPOSAL, name, spec))
        except AlreadyExists:
            return None
        return name


def _past(proposal: Proposal) -> PastProposal:
    return PastProposal(
        name=proposal.name,
        action=proposal.spec.action,
        by=proposal.spec.proposer.name,
        phase=proposal.phase,
        created=float(parse_or_zero(proposal.creation_timestamp)),
    )
