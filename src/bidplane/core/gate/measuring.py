"""The measured effect of an action: by how much what it aimed at differs, before and after."""

from __future__ import annotations

from bidplane.api.agent import hourly_grant
from bidplane.api.gate.action import Action, ActionKind, Effect
from bidplane.core.gate.endpoint_effects import held_by
from bidplane.core.gate.fleet import FleetLease, FleetState


def scope_of(action: Action, fleet: FleetState, lease: str = "") -> Effect:
    """Return how much there is of what an action aims at. `lease`: an evicted pod's."""
    match action.kind:
        case ActionKind.EVICT_POD:
            leases = [x for x in fleet.leases if (x.namespace, x.name) == (action.namespace, lease)]
            pods = sum(pod.uid == action.uid for pod in fleet.pods)
            return _total(leases, pods)
        case ActionKind.RELEASE_LEASE:
            leases = [x for x in fleet.leases if x.uid == action.uid]
            pods = sum(
                (pod.namespace, pod.lease) == (action.namespace, action.name) for pod in fleet.pods
            )
            return _total(leases, pods)
        case ActionKind.CONSOLIDATE_NODE:
            leases = [x for x in fleet.leases if x.node == action.name]
            return _total(leases, sum(pod.node == action.name for pod in fleet.pods))
        case (
            ActionKind.SCALE_ENDPOINT
            | ActionKind.PREWARM_ENDPOINT
            | ActionKind.SLEEP_ENDPOINT
            | ActionKind.RETRY_ROLLOUT
        ):
            endpoint = next((x for x in fleet.endpoints if x.uid == action.uid), None)
            return held_by(endpoint, fleet) if endpoint is not None else Effect()
        case ActionKind.CORDON_NODE | ActionKind.PARK_NODE | ActionKind.RETURN_NODE:
            nodes = [x for x in fleet.nodes if x.name == action.name and not x.cordoned]
            return Effect(devices=sum(node.devices for node in nodes))
        case ActionKind.SET_FLOOR_PRICE | ActionKind.SET_IDLE_WINDOW:
            return _total([x for x in fleet.leases if x.pool == action.name], 0)
        case ActionKind.SET_REFILL | ActionKind.SET_PRIORITY:
            agent = next((x for x in fleet.agents if x.name == action.name), None)
            if agent is None:
                return Effect()
            try:
                return Effect(agents=1, spend=hourly_grant(agent.refill, agent.priority))
            except ValueError:
                return Effect(agents=1)
        case (
            ActionKind.SNAPSHOT_PLANE
            | ActionKind.PAGE_PERSON
            | ActionKind.REPAIR_DRIFT
            | ActionKind.OFF_TOPIC
        ):
            return Effect()  # nobody's devices, pods or rents change with it


def _total(leases: list[FleetLease], pods: int) -> Effect:
    return Effect(
        devices=sum(lease.devices for lease in leases),
        pods=pods,
        agents=len({lease.agent for lease in leases}),
        spend=sum(lease.rent for lease in leases),
    )


def difference(before: Effect, after: Effect) -> Effect:
    return Effect(
        devices=abs(after.devices - before.devices),
        pods=abs(after.pods - before.pods),
        agents=abs(after.agents - before.agents),
        spend=abs(after.spend - before.spend),
    )
