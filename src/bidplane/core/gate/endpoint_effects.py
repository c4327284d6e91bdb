"""
The effects of actions on Endpoints. Nothing is scaled down while requests wait or are in flight,
or while it is unknown whether any are.
"""

from __future__ import annotations

from bidplane.api.endpoint import EndpointPhase
from bidplane.api.gate.action import Action, ActionKind, Effect
from bidplane.api.money import parse_price
from bidplane.core.gate.fleet import FleetEndpoint, FleetLease, FleetState
from bidplane.core.gate.refusals import ActionImpossible, Impossible

AWAKE = (EndpointPhase.WAKING, EndpointPhase.READY)


def endpoint_effect(
    action: Action, endpoint: FleetEndpoint, fleet: FleetState
) -> tuple[Effect, str]:
    """Return what an action touches, and the value before; raises `ActionImpossible`."""
    if endpoint.phase is EndpointPhase.REFUSED:
        message = f"Endpoint {endpoint.name} is refused: it serves nothing"
        raise ActionImpossible(Impossible.NOT_SERVED, message)
    match action.kind:
        case ActionKind.SCALE_ENDPOINT:
            return _scale(action, endpoint, fleet)
        case ActionKind.PREWARM_ENDPOINT:
            if endpoint.awake or endpoint.phase in AWAKE:
                raise _nothing(f"Endpoint {endpoint.name} is awake already")
            return _replicas(endpoint, endpoint.replicas, fleet), ""
        case ActionKind.SLEEP_ENDPOINT:
            if not endpoint.awake and endpoint.phase not in AWAKE:
                raise _nothing(f"Endpoint {endpoint.name} sleeps already")
            require_no_requests(endpoint)
            return held_by(endpoint, fleet), ""
    if not endpoint.failure:
        raise _nothing(f"the pods of Endpoint {endpoint.name} have not failed")
    return Effect(pods=endpoint.pods, agents=1), ""


def require_empty_queue(endpoint: FleetEndpoint) -> None:
    """Raise unless it is known that the Endpoint has neither requests nor work of its own."""
    require_no_requests(endpoint)
    if endpoint.own_queue and endpoint.is_up:
        message = (
            f"Endpoint {endpoint.name}: its application has a queue of its own (spec.idle):"
            f" {endpoint.own_work or 'it was empty'}: let it sleep, then it is asked first"
        )
        raise ActionImpossible(Impossible.QUEUE_UNKNOWN, message)


def require_no_requests(endpoint: FleetEndpoint) -> None:
    """
    Raise unless it is known that no request waits for the Endpoint or is in flight. Enough for its
    sleep: the activator asks an application with a queue of its own before.
    """
    if endpoint.queue is None:
        message = f"Endpoint {endpoint.name}: how many requests wait for it is unknown"
        if endpoint.past_us:
            message += " (warmPath: direct; with activator they are seen)"
        raise ActionImpossible(Impossible.QUEUE_UNKNOWN, message)
    if endpoint.queue:
        message = (
            f"Endpoint {endpoint.name}: {endpoint.holds} requests wait for it,"
            f" {endpoint.in_flight} are in flight"
        )
        raise ActionImpossible(Impossible.QUEUE_NOT_EMPTY, message)


def leases_of(endpoint: FleetEndpoint, fleet: FleetState) -> list[FleetLease]:
    return [
        lease
        for lease in fleet.leases
        if lease.agent == endpoint.agent and lease.name in endpoint.leases
    ]


def held_by(endpoint: FleetEndpoint, fleet: FleetState) -> Effect:
    """Return what an Endpoint holds now."""
    leases = leases_of(endpoint, fleet)
    return Effect(
        devices=sum(lease.devices for lease in leases),
        pods=endpoint.pods,
        agents=1,
        spend=sum(lease.rent for lease in leases),
    )


def device_price(fleet: FleetState) -> int:
    """Return the most that a device costs per hour now: the dearest lease's rent, or floor."""
    rents = [lease.rent // lease.devices for lease in fleet.leases if lease.devices]
    return max([*rents, *(_price(pool.floor_price) for pool in fleet.pools)], default=0)


def list_price(fleet: FleetState) -> int:
    """Return the dearest pool's list price; where none is set, ten times its floor price."""
    return max(
        (_price(pool.list_price) or 10 * _price(pool.floor_price) for pool in fleet.pools),
        default=0,
    )


def _scale(action: Action, endpoint: FleetEndpoint, fleet: FleetState) -> tuple[Effect, str]:
    before, after = endpoint.replicas, int(action.value)
    if after == before:
        raise _nothing(f"Endpoint {endpoint.name} has {before} already")
    if endpoint.most_replicas and after > endpoint.most_replicas:
        message = f"Endpoint {endpoint.name}: its maxReplicas is {endpoint.most_replicas}"
        raise ActionImpossible(Impossible.BAD_ACTION, message)
    if after < before:
        require_empty_queue(endpoint)
    return _replicas(endpoint, abs(after - before), fleet), str(before)


def _replicas(endpoint: FleetEndpoint, count: int, fleet: FleetState) -> Effect:
    """Return what so many replicas more or less touch, at the dearest price now."""
    devices = endpoint.gpus * count
    return Effect(devices=devices, pods=count, agents=1, spend=devices * device_price(fleet))


def _nothing(message: str) -> ActionImpossible:
    return ActionImpossible(Impossible.NOTHING_TO_DO, message)


def _price(text: str) -> int:
    try:
        return parse_price(text) if text else 0
    except ValueError:
        return 0
