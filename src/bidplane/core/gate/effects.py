"""
The effect of an action, computed before it is judged: the target, and what of the fleet it touches.

An action that cannot be carried out, or would change nothing, is refused here by name. Nothing is
scaled down while somebody uses it, or while its queue is not empty or unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from bidplane.api.agent import hourly_grant
from bidplane.api.gate.action import Action, ActionKind, Effect
from bidplane.api.kinds import POOL
from bidplane.api.money import format_credits, parse_price
from bidplane.core.gate.actions import SHAPES, action_problem, undo_of
from bidplane.core.gate.drift import field_before, parse_drift
from bidplane.core.gate.endpoint_effects import endpoint_effect, require_empty_queue
from bidplane.core.gate.fleet import (
    FleetAgent,
    FleetEndpoint,
    FleetLease,
    FleetNode,
    FleetPod,
    FleetPool,
    FleetState,
    Marks,
)
from bidplane.core.gate.refusals import ActionImpossible, Impossible

__all__ = [
    "ActionImpossible",
    "ActionTarget",
    "Impossible",
    "Prepared",
    "is_carried_out",
    "prepare",
]


class ActionTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The object that an action changes, as conditions of Policies see it."""

    kind: str
    name: str
    namespace: str = ""
    agent: str = ""
    labels: Marks = {}
    annotations: Marks = {}


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """An action with everything that is computed before the verdict."""

    action: Action
    target: ActionTarget
    effect: Effect
    undo: Action | None = None
    lease: str = ""  # of an evicted pod


def prepare(action: Action, fleet: FleetState) -> Prepared:
    """Compute an action's effect and undo; raises `ActionImpossible`."""
    if problem := action_problem(action):
        raise ActionImpossible(Impossible.BAD_ACTION, problem)
    match action.kind:
        case ActionKind.EVICT_POD:
            return _evict(action, fleet)
        case ActionKind.RELEASE_LEASE:
            return _release(action, fleet)
        case ActionKind.CORDON_NODE | ActionKind.PARK_NODE | ActionKind.RETURN_NODE:
            return _node(action, fleet)
        case ActionKind.SET_FLOOR_PRICE | ActionKind.SET_IDLE_WINDOW:
            return _pool(action, fleet)
        case ActionKind.SET_REFILL | ActionKind.SET_PRIORITY:
            return _agent(action, fleet)
        case ActionKind.CONSOLIDATE_NODE:
            return _consolidate(action, fleet)
        case (
            ActionKind.SCALE_ENDPOINT
            | ActionKind.PREWARM_ENDPOINT
            | ActionKind.SLEEP_ENDPOINT
            | ActionKind.RETRY_ROLLOUT
        ):
            endpoint = _find(fleet.endpoints, action)
            effect, before = endpoint_effect(action, endpoint, fleet)
            return Prepared(
                action=action,
                target=_target(action, endpoint, endpoint.agent),
                effect=effect,
                undo=undo_of(action, before),
            )
        case ActionKind.SNAPSHOT_PLANE:
            agent = _find(fleet.agents, action)
            target = _target(action, agent, agent.name)
            return Prepared(action=action, target=target, effect=Effect(agents=1))
        case ActionKind.PAGE_PERSON:
            person = ActionTarget(kind=SHAPES[action.kind].target, name=action.name)
            return Prepared(action=action, target=person, effect=Effect())
        case ActionKind.REPAIR_DRIFT:
            return _drift(action, fleet)
        case ActionKind.OFF_TOPIC:
            message = f"off-topic: {action.value!r} is no action"
            raise ActionImpossible(Impossible.OFF_TOPIC, message)


def is_carried_out(action: Action, fleet: FleetState) -> bool:
    """Return True if the fleet is as the action wants it: it need not be applied again."""
    match action.kind:
        case ActionKind.EVICT_POD:
            return all(pod.uid != action.uid for pod in fleet.pods)
        case ActionKind.RELEASE_LEASE:
            return all(lease.uid != action.uid for lease in fleet.leases)
        case ActionKind.SNAPSHOT_PLANE | ActionKind.PAGE_PERSON:
            return False  # each is done anew; a Proposal of one finds its own trace
        case ActionKind.CONSOLIDATE_NODE:
            cordoned = any(node.name == action.name and node.cordoned for node in fleet.nodes)
            return cordoned and all(lease.node != action.name for lease in fleet.leases)
    try:
        prepare(action, fleet)
    except ActionImpossible as impossible:
        return impossible.reason is Impossible.NOTHING_TO_DO
    return False


def _evict(action: Action, fleet: FleetState) -> Prepared:
    pod = _find(fleet.pods, action)
    lease = next(
        (x for x in fleet.leases if pod.lease and (x.agent, x.name) == (pod.agent, pod.lease)), None
    )
    effect = Effect(
        pods=1,
        agents=1 if pod.agent else 0,
        devices=lease.devices if lease is not None else 0,
        spend=lease.rent if lease is not None else 0,
    )
    return Prepared(
        action=action,
        target=_target(action, pod, pod.agent),
        effect=effect,
        lease=lease.name if lease is not None else "",
    )


def _release(action: Action, fleet: FleetState) -> Prepared:
    lease = _find(fleet.leases, action)
    for endpoint in fleet.endpoints:
        if endpoint.agent == lease.agent and lease.name in endpoint.leases:
            require_empty_queue(endpoint)
    effect = Effect(
        devices=lease.devices,
        agents=1,
        pods=sum((pod.agent, pod.lease) == (lease.agent, lease.name) for pod in fleet.pods),
        spend=lease.rent,
    )
    return Prepared(action=action, target=_target(action, lease, lease.agent), effect=effect)


def _node(action: Action, fleet: FleetState) -> Prepared:
    node = _find(fleet.nodes, action)
    returns = action.kind is ActionKind.RETURN_NODE
    if node.cordoned is not returns:
        state = "takes work already" if returns else "is cordoned already"
        raise ActionImpossible(Impossible.NOTHING_TO_DO, f"node {node.name} {state}")
    if action.kind is ActionKind.PARK_NODE:
        _require_idle(node, fleet)
    holders = {lease.agent for lease in fleet.leases if lease.node == node.name}
    return Prepared(
        action=action,
        target=_target(action, node),
        effect=Effect(devices=node.devices, agents=len(holders)),
        undo=undo_of(action, ""),
    )


def _require_idle(node: FleetNode, fleet: FleetState) -> None:
    """Raise unless nothing runs on the node, nobody leases it, and nobody waits for its devices."""
    pods = sum(pod.node == node.name for pod in fleet.pods)
    leases = sum(lease.node == node.name for lease in fleet.leases)
    if pods or leases:
        raise ActionImpossible(
            Impossible.IN_USE,
            f"node {node.name} is not idle: {leases} leases and {pods} pods are on it",
        )
    _require_no_bids(node, fleet)


def _require_no_bids(node: FleetNode, fleet: FleetState) -> None:
    """Raise unless it is known that no bid waits for the node's devices."""
    queues = {pool.name: pool.waiting for pool in fleet.pools}
    for pool in node.pools:
        waiting = queues.get(pool)
        if waiting is None:
            raise ActionImpossible(
                Impossible.QUEUE_UNKNOWN,
                f"node {node.name}: how many bids wait for pool {pool} is unknown",
            )
        if waiting:
            raise ActionImpossible(
                Impossible.QUEUE_NOT_EMPTY,
                f"node {node.name}: {waiting} bids wait for devices of pool {pool}",
            )


def _consolidate(action: Action, fleet: FleetState) -> Prepared:
    """Prepare a node's consolidation: all that it carries may move, and fits elsewhere."""
    node = _find(fleet.nodes, action)
    if node.cordoned:
        raise ActionImpossible(Impossible.NOTHING_TO_DO, f"node {node.name} is cordoned already")
    leases = [lease for lease in fleet.leases if lease.node == node.name]
    if not leases:
        message = f"node {node.name} carries no lease: park it"
        raise ActionImpossible(Impossible.NOTHING_TO_DO, message)
    movable = {agent.name for agent in fleet.agents if agent.movable}
    for lease in leases:
        if lease.agent not in movable:
            message = f"node {node.name}: the agent {lease.agent} is not movable (Agent.spec)"
            raise ActionImpossible(Impossible.NOT_MOVABLE, message)
    _require_no_bids(node, fleet)
    needs = Counter(dict.fromkeys(node.pools, 0))
    for lease in leases:
        needs[lease.pool] += lease.devices
    for pool, devices in needs.items():
        room = free_devices(pool, fleet, besides=node.name)
        if devices > room:
            message = (
                f"node {node.name}: {devices} leased devices of pool {pool} must move, and {room}"
                " are free on other nodes"
            )
            raise ActionImpossible(Impossible.NO_ROOM, message)
    for endpoint in fleet.endpoints:
        if any((x.agent, x.name) in {(endpoint.agent, y) for y in endpoint.leases} for x in leases):
            require_empty_queue(endpoint)
    names = {(lease.agent, lease.name) for lease in leases}
    effect = Effect(
        devices=sum(lease.devices for lease in leases),
        pods=sum((pod.agent, pod.lease) in names for pod in fleet.pods),
        agents=len({lease.agent for lease in leases}),
        spend=sum(lease.rent for lease in leases),
    )
    target = _target(action, node)
    return Prepared(action=action, target=target, effect=effect, undo=undo_of(action, ""))


def free_devices(pool: str, fleet: FleetState, *, besides: str) -> int:
    """Return how many devices of a pool nobody leases, on other nodes that take work."""
    free = 0
    for node in fleet.nodes:
        if pool in node.pools and not node.cordoned and node.ready and node.name != besides:
            leased = sum(lease.devices for lease in fleet.leases if lease.node == node.name)
            free += max(0, node.devices - leased)
    return free


def _drift(action: Action, fleet: FleetState) -> Prepared:
    drift = parse_drift(action.value)
    if drift.kind == POOL.kind:
        pool = _find(fleet.pools, action)
        leases = [lease for lease in fleet.leases if lease.pool == pool.name]
        devices = sum(lease.devices for lease in leases)
        effect = Effect(devices=devices, agents=len({lease.agent for lease in leases}))
        fields, target = pool.fields, _target(action, pool)
    else:
        agent = _find(fleet.agents, action)
        effect = Effect(agents=1)
        fields, target = agent.fields, _target(action, agent, agent.name)
    before = str(field_before(fields, drift))
    _require_change(action, before)
    return Prepared(
        action=action,
        target=msgspec.structs.replace(target, kind=drift.kind),
        effect=effect,
        undo=undo_of(action, before),
    )


def _pool(action: Action, fleet: FleetState) -> Prepared:
    pool = _find(fleet.pools, action)
    leases = [lease for lease in fleet.leases if lease.pool == pool.name]
    devices = sum(lease.devices for lease in leases)
    spend = 0
    if action.kind is ActionKind.SET_FLOOR_PRICE:
        try:
            before_price = parse_price(pool.floor_price)
        except ValueError as error:
            message = f"pool {pool.name}: its floor price: {error}"
            raise ActionImpossible(Impossible.BAD_ACTION, message) from error
        before = format_credits(before_price)
        spend = abs(parse_price(action.value) - before_price) * devices
    else:
        before = str(pool.idle_seconds)
    _require_change(action, before)
    return Prepared(
        action=action,
        target=_target(action, pool),
        effect=Effect(devices=devices, agents=len({x.agent for x in leases}), spend=spend),
        undo=undo_of(action, before),
    )


def _agent(action: Action, fleet: FleetState) -> Prepared:
    agent = _find(fleet.agents, action)
    try:
        granted = hourly_grant(agent.refill, agent.priority)
        if action.kind is ActionKind.SET_REFILL:
            before = format_credits(hourly_grant(agent.refill, 1))
            after = hourly_grant(action.value, agent.priority)
        else:
            before = str(agent.priority)
            after = hourly_grant(agent.refill, int(action.value))
    except ValueError as error:
        message = f"agent {agent.name}: {error}"
        raise ActionImpossible(Impossible.BAD_ACTION, message) from error
    _require_change(action, before)
    return Prepared(
        action=action,
        target=_target(action, agent, agent.name),
        effect=Effect(agents=1, spend=abs(after - granted)),
        undo=undo_of(action, before),
    )


def _require_change(action: Action, before: str) -> None:
    if action.value == before:
        message = f"{SHAPES[action.kind].target} {action.name} has {before} already"
        raise ActionImpossible(Impossible.NOTHING_TO_DO, message)


Part = TypeVar("Part", FleetPod, FleetLease, FleetNode, FleetPool, FleetAgent, FleetEndpoint)


def _find(parts: Iterable[Part], action: Action) -> Part:
    for part in parts:
        if isinstance(part, FleetPod | FleetLease | FleetEndpoint):
            if (part.namespace, part.name, part.uid) == (
                action.namespace,
                action.name,
                action.uid,
            ):
                return part
        elif part.name == action.name:
            return part
    kind = SHAPES[action.kind].target
    place = f"{action.namespace}/{action.name}" if action.namespace else action.name
    uid = f" with uid {action.uid}" if action.uid else ""
    raise ActionImpossible(Impossible.NO_SUCH_TARGET, f"there is no {kind} {place}{uid}")


def _target(action: Action, part: Part, agent: str = "") -> ActionTarget:
    return ActionTarget(
        kind=SHAPES[action.kind].target,
        name=action.name,
        namespace=action.namespace,
        agent=agent,
        labels=part.labels,
        annotations=part.annotations,
    )
