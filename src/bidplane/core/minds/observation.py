"""The pilot's observation: the fleet, the Proposals that are there, and for how long nodes idle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from bidplane.api.gate.action import Action
from bidplane.api.gate.proposal import ProposalPhase
from bidplane.core.gate.fleet import FleetState
from bidplane.core.minds.recurrence import Likelihood

REST_SECONDS = 3600.0  # after a refusal, before the same is proposed again
_REFUSED = (
    ProposalPhase.DENIED,
    ProposalPhase.REJECTED,
    ProposalPhase.EXPIRED,
    ProposalPhase.FAILED,
    ProposalPhase.SHADOW,
)


class PastProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A Proposal that exists, as the pilot sees it."""

    name: str
    action: Action
    by: str = ""  # the proposer
    phase: ProposalPhase | None
    created: float  # seconds


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    at: float  # seconds
    fleet: FleetState
    proposals: tuple[PastProposal, ...] = ()
    # By node: since when the pilot has seen nobody on it.
    idle_nodes: Mapping[str, float] = {}
    # By an Endpoint's uid: how likely its use is, learned from when it was used before.
    likely: Mapping[str, Likelihood] = {}
    drifts: tuple[Action, ...] = ()  # that would bring the host to what was declared

    @property
    def digest(self) -> str:
        """The hash by which a Proposal says what it was based on."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


class Intention(msgspec.Struct, frozen=True, kw_only=True):
    """An action that a mind would take, and why."""

    action: Action
    reason: str
    evidence: tuple[str, ...] = ()


def idle_nodes(fleet: FleetState, before: Mapping[str, float], now: float) -> dict[str, float]:
    """Return since when nobody is on each node, from what was seen before."""
    used = {lease.node for lease in fleet.leases} | {pod.node for pod in fleet.pods}
    return {node.name: before.get(node.name, now) for node in fleet.nodes if node.name not in used}


def rests(observation: Observation, action: Action) -> bool:
    """Return True if this action is under way, or was refused a short time ago."""
    for past in observation.proposals:
        if past.action != action:
            continue
        if past.phase in _REFUSED and past.created + REST_SECONDS <= observation.at:
            continue
        if past.phase is not ProposalPhase.APPLIED:
            return True
    return False
