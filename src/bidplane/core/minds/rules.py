"""
The mind `rules`: what a person on call does without thinking, and no model is needed for.

It parks nodes that nobody has used for a while, frees those of which little is used, returns them
when somebody waits, gives back leases whose GPUs do nothing for long, and cordons a node where a
link got worse. Services are pre-warmed and let sleep by their history (`services`); what differs
from what was declared is repaired. It proposes nothing twice: an action that waits, or was refused
a short time ago, rests.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.gate.proposal import ProposalPhase
from bidplane.core.gate.effects import ActionImpossible, prepare
from bidplane.core.gate.fleet import FleetNode, FleetState
from bidplane.core.minds import services
from bidplane.core.minds.idleness import (
    cost_evidence,
    counter_seconds,
    idleness_of,
    service_of,
)
from bidplane.core.minds.observation import Intention, Observation, PastProposal, rests
from bidplane.core.minds.services import DEFAULT_SERVICES, ServiceSettings


class RuleSettings(msgspec.Struct, frozen=True, kw_only=True):
    park_after_seconds: float = 1800.0
    spare_nodes: int = 1  # of each pool, that stay in service though nobody uses them
    release_after_seconds: float = 3600.0  # of an idle lease
    # A node whose leases may move is freed if at most so much of it is leased.
    consolidate_share: float = 0.5
    services: ServiceSettings = DEFAULT_SERVICES


DEFAULT_RULES = RuleSettings()


def decide(observation: Observation, settings: RuleSettings = DEFAULT_RULES) -> list[Intention]:
    """Return what is to be done now, in a fixed order; each could be carried out by itself."""
    intentions: list[Intention] = []
    for intention in (
        *_return_parked(observation),
        *_cordon_degraded(observation.fleet),
        *services.retry_failed(observation, settings.services),
        *services.let_sleep(observation, settings.services),
        *services.prewarm(observation, settings.services),
        *_repair_drift(observation),
        *_release_idle(observation, settings),
        *_park_idle(observation, settings),
        *_consolidate(observation.fleet, settings),
    ):
        if rests(observation, intention.action):
            continue
        try:
            prepare(intention.action, observation.fleet)
        except ActionImpossible:
            continue
        intentions.append(intention)
    return intentions


def _waiting(fleet: FleetState, node: FleetNode) -> int:
    return sum(pool.waiting or 0 for pool in fleet.pools if pool.name in node.pools)


def _return_parked(observation: Observation) -> Iterator[Intention]:
    """Yield the return of nodes that the pilot parked, while bids wait for their devices."""
    fleet = observation.fleet
    for node in fleet.nodes:
        waiting = _waiting(fleet, node)
        if not node.cordoned or not waiting or not _parked_by_proposal(observation, node.name):
            continue
        yield Intention(
            action=Action(kind=ActionKind.RETURN_NODE, name=node.name),
            reason=f"{waiting} bids wait for devices that this parked node has",
            evidence=(
                f"pools {', '.join(node.pools)}: {waiting} bids wait",
                f"node {node.name}: {node.devices} devices, parked by a Proposal",
            ),
        )


def _parked_by_proposal(observation: Observation, node: str) -> bool:
    """Return True if the last applied Proposal about the node parked it: a person's cordon stays"""
    past = [
        proposal
        for proposal in observation.proposals
        if proposal.action.name == node and proposal.phase is ProposalPhase.APPLIED
    ]
    newest: PastProposal | None = max(past, key=lambda p: (p.created, p.name), default=None)
    kinds = (ActionKind.PARK_NODE, ActionKind.CONSOLIDATE_NODE)
    return newest is not None and newest.action.kind in kinds


def _repair_drift(observation: Observation) -> Iterator[Intention]:
    for action in observation.drifts:
        yield Intention(
            action=action,
            reason="it differs from what was declared",
            evidence=(f"declared: {action}",),
        )


def _consolidate(fleet: FleetState, settings: RuleSettings) -> Iterator[Intention]:
    """Yield the consolidation of the node that is leased least, if all on it may move."""
    candidates: list[tuple[float, FleetNode]] = []
    for node in fleet.nodes:
        leased = sum(lease.devices for lease in fleet.leases if lease.node == node.name)
        if node.devices and leased and leased / node.devices <= settings.consolidate_share:
            candidates.append((leased / node.devices, node))
    for share, node in sorted(candidates, key=lambda candidate: (candidate[0], candidate[1].name)):
        action = Action(kind=ActionKind.CONSOLIDATE_NODE, name=node.name)
        try:
            effect = prepare(action, fleet).effect
        except ActionImpossible:
            continue
        yield Intention(
            action=action,
            reason=f"{share:.0%} of it is leased, and fits on other nodes: it can be freed",
            evidence=(
                f"node {node.name}: {effect.devices} of {node.devices} devices leased, by"
                f" {effect.agents} agents that are movable",
                f"pools {', '.join(node.pools)}: no bid waits",
            ),
        )
        return


def _cordon_degraded(fleet: FleetState) -> Iterator[Intention]:
    for node in fleet.nodes:
        leases = [x for x in fleet.leases if x.node == node.name and x.degraded]
        if node.cordoned or not leases:
            continue
        yield Intention(
            action=Action(kind=ActionKind.CORDON_NODE, name=node.name),
            reason="a link of its devices got worse: sell nothing new there until it is looked at",
            evidence=tuple(f"lease {x.namespace}/{x.name}: {x.degraded}" for x in leases),
        )


def _release_idle(observation: Observation, settings: RuleSettings) -> Iterator[Intention]:
    for lease in observation.fleet.leases:
        if service_of(lease, observation.fleet) is not None:
            continue  # it sleeps: its Endpoint would win another lease at once
        seconds = counter_seconds(lease, observation.at)
        if seconds < settings.release_after_seconds:
            continue
        joined = idleness_of(lease, observation.fleet, observation.at)
        yield Intention(
            action=Action(
                kind=ActionKind.RELEASE_LEASE,
                namespace=lease.namespace,
                name=lease.name,
                uid=lease.uid,
            ),
            reason=f"its {lease.devices} devices have done nothing for {seconds / 3600:.1f} h",
            evidence=(*joined.signals, cost_evidence(lease, joined.seconds)),
        )


def _park_idle(observation: Observation, settings: RuleSettings) -> Iterator[Intention]:
    """Yield the parking of idle nodes, but for the spare ones of each pool."""
    fleet = observation.fleet
    in_service = {
        pool.name: sum(pool.name in n.pools and not n.cordoned and n.ready for n in fleet.nodes)
        for pool in fleet.pools
    }
    for node in sorted(fleet.nodes, key=lambda n: n.name):
        since = observation.idle_nodes.get(node.name)
        if node.cordoned or not node.ready or not node.pools or since is None:
            continue
        seconds = observation.at - since
        if seconds < settings.park_after_seconds:
            continue
        if any(in_service.get(pool, 0) <= settings.spare_nodes for pool in node.pools):
            continue
        for pool in node.pools:
            in_service[pool] -= 1
        yield Intention(
            action=Action(kind=ActionKind.PARK_NODE, name=node.name),
            reason=f"nobody has used it for {seconds / 60:.0f} minutes, and nobody waits",
            evidence=(
                f"node {node.name}: no lease and no pod for {seconds:.0f} s",
                f"pools {', '.join(node.pools)}: no bid waits",
                "in service besides: "
                + ", ".join(f"{in_service[pool]} nodes of {pool}" for pool in node.pools),
            ),
        )
