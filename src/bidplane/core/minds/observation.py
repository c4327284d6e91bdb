"""The pilot's observation: the fleet, the Proposals that are there, and for how long nodes idle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from bidplane.api.gate.action import Action
from bidplane.api.gate.proposal import ProposalPhase
from bidplane.core.gate.fleet import FleetState


class PastProposal(msgspec.Struct, frozen=True, kw_only=True):
    """A Proposal that exists, as the pilot sees it."""

    name: str
    action: Action
    phase: ProposalPhase | None
    created: float  # seconds


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    at: float  # seconds
    fleet: FleetState
    proposals: tuple[PastProposal, ...] = ()
    # By node: since when the pilot has seen nobody on it.
    idle_nodes: Mapping[str, float] = {}

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
