"""The fleet's state from the objects of the host. Pure: the caller has listed them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from bidplane.api import labels
from bidplane.api.endpoint import EndpointStatus, WarmPath
from bidplane.api.kinds import Object
from bidplane.api.lease import IN_USE, LINK_DEGRADED, Phase
from bidplane.api.money import parse_credits
from bidplane.api.objects import is_true, spec_of
from bidplane.api.reading import Agent, Bid, Endpoint, GPULease, Invalid, Pool
from bidplane.api.views import Node, Pod, ResourceSlice
from bidplane.core.gate.drift import spec_fields
from bidplane.core.gate.fleet import (
    FleetAgent,
    FleetEndpoint,
    FleetLease,
    FleetNode,
    FleetPod,
    FleetPool,
    FleetState,
)
from bidplane.core.hosting.translation import host_name


class HostObjects(msgspec.Struct, frozen=True, kw_only=True):
    """Listings of the host."""

    agents: Iterable[Agent | Invalid] = ()
    pools: Iterable[Pool | Invalid] = ()
    bids: Iterable[Bid | Invalid] = ()
    leases: Iterable[GPULease | Invalid] = ()
    pods: Iterable[Pod] = ()
    nodes: Iterable[Node] = ()
    endpoints: Iterable[Endpoint | Invalid] = ()
    slices: Iterable[ResourceSlice] = ()


def fleet_state(host: HostObjects) -> FleetState:
    """Return the state. An object that cannot be read is left out: nobody acts on it."""
    pools = [pool for pool in host.pools if not isinstance(pool, Invalid)]
    products: defaultdict[str, list[str]] = defaultdict(list)
    for pool in pools:
        products[pool.spec.product].append(pool.name)
    sold = _sold_devices(host.slices, products)
    waiting = _waiting(host.bids, [pool.name for pool in pools])
    pods = tuple(_pod(pod) for pod in host.pods if not pod.has_ended and not pod.is_deleted)
    return FleetState(
        pods=pods,
        leases=tuple(
            _lease(lease)
            for lease in host.leases
            if not isinstance(lease, Invalid)
            and not lease.is_deleted
            and lease.phase is not Phase.RELEASED
        ),
        nodes=tuple(_node(node, sold) for node in host.nodes),
        pools=tuple(
            FleetPool(
                name=pool.name,
                floor_price=pool.spec.floor_price,
                idle_seconds=pool.spec.idle_seconds,
                list_price=pool.spec.list_price,
                waiting=waiting.get(pool.name),
                fields=spec_fields(spec_of(pool.json)),
                labels=pool.labels,
                annotations=pool.annotations,
            )
            for pool in pools
        ),
        agents=tuple(
            FleetAgent(
                name=agent.name,
                refill=agent.spec.refill,
                priority=agent.spec.priority,
                movable=agent.spec.movable,
                fields=spec_fields(spec_of(agent.json)),
                labels=agent.labels,
                annotations=agent.annotations,
            )
            for agent in host.agents
            if not isinstance(agent, Invalid)
        ),
        endpoints=tuple(
            _endpoint(endpoint, pods)
            for endpoint in host.endpoints
            if not isinstance(endpoint, Invalid) and not endpoint.is_deleted
        ),
    )


_SoldDevices = dict[str, Counter[str]]  # by node: how many devices of each pool


def _sold_devices(slices: Iterable[ResourceSlice], products: dict[str, list[str]]) -> _SoldDevices:
    sold: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for resource_slice in slices:
        for device in resource_slice.devices:
            attributes = device.get("attributes") or {}
            product = (attributes.get(labels.PRODUCT_ATTRIBUTE) or {}).get("string", "")
            kind = (attributes.get(labels.TYPE_ATTRIBUTE) or {}).get("string", "gpu")
            if kind == "gpu" and product in products:
                sold[resource_slice.node_name][products[product][0]] += 1
    return dict(sold)


def _waiting(bids: Iterable[Bid | Invalid], pools: list[str]) -> dict[str, int]:
    """Return how many bids wait for each pool; no number of any pool if one cannot be read."""
    counts = dict.fromkeys(pools, 0)
    for bid in bids:
        if isinstance(bid, Invalid):
            return {}
        if not bid.is_waiting or bid.is_deleted:
            continue
        routed = bid.status.pool if bid.status is not None else ""
        for pool in pools:
            # A bid that was not routed yet may enter any pool.
            counts[pool] += routed in ("", pool)
    return counts


def _pod(pod: Pod) -> FleetPod:
    return FleetPod(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        agent=pod.labels.get(labels.AGENT, ""),
        node=pod.node_name,
        lease=pod.labels.get(labels.LEASE, ""),
        labels=pod.labels,
        annotations=pod.annotations,
    )


def _endpoint(endpoint: Endpoint, pods: Iterable[FleetPod]) -> FleetEndpoint:
    status = endpoint.status or EndpointStatus()
    demand, start, ladder = status.demand, status.cold_start, status.ladder
    notes = endpoint.annotations
    agent = endpoint.labels.get(labels.AGENT, "")
    space = notes.get(labels.PLANE_NAMESPACE, "")
    names = {host_name(space, backend.pod) for backend in status.backends} if space else set()
    own = [pod for pod in pods if pod.agent == agent and pod.name in names]
    return FleetEndpoint(
        namespace=endpoint.namespace,
        name=endpoint.name,
        uid=endpoint.uid,
        agent=agent,
        service=notes.get(labels.PLANE_NAME, endpoint.name),
        phase=status.phase,
        replicas=endpoint.spec.replicas,
        most_replicas=endpoint.spec.max_replicas,
        gpus=status.gpus,
        idle_seconds=endpoint.spec.idle_seconds,
        holds=demand.holds if demand is not None else None,
        in_flight=demand.in_flight if demand is not None else None,
        awake=demand.awake if demand is not None else False,
        since=demand.since if demand is not None else "",
        reason=demand.reason if demand is not None else "",
        last_request=demand.last_request if demand is not None else "",
        cold_start_seconds=start.total / 1000 if start is not None else 0.0,
        failure=(status.message or status.reason) if status.failed else "",
        pods=len(own),
        leases=tuple(sorted(pod.lease for pod in own if pod.lease)),
        asked=notes.get(labels.ENDPOINT_REQUEST, ""),
        past_us=endpoint.spec.warm_path is WarmPath.DIRECT,
        own_queue=endpoint.spec.idle.queue is not None or endpoint.spec.idle.gpu_percent > 0,
        rung=ladder.rung if ladder is not None else None,
        not_idle=ladder.idle if ladder is not None else "",
        labels=endpoint.labels,
        annotations=notes,
    )


def _lease(lease: GPULease) -> FleetLease:
    return FleetLease(
        namespace=lease.namespace,
        name=lease.name,
        uid=lease.uid,
        agent=lease.spec.agent,
        pool=lease.spec.pool,
        node=lease.spec.node,
        devices=len({device.whole for device in lease.spec.devices}),
        rent=_rent(lease),
        idle_since=lease.status.idle_since if lease.status is not None else "",
        unused_since=_unused_since(lease),
        degraded=_degradation(lease),
        labels=lease.labels,
        annotations=lease.annotations,
    )


def _unused_since(lease: GPULease) -> str:
    condition = lease.condition(IN_USE)
    if condition is None or condition.status != "False":
        return ""
    return condition.last_transition_time


def _degradation(lease: GPULease) -> str:
    condition = lease.condition(LINK_DEGRADED)
    if condition is None or condition.status != "True":
        return ""
    return condition.message or condition.reason or "a link is degraded"


def _rent(lease: GPULease) -> int:
    """Return the micro-credits per hour that a lease pays, as its status shows them."""
    price = lease.status.price if lease.status is not None else ""
    try:
        per_gpu = parse_credits(price) if price else 0
    except ValueError:
        return 0
    whole = lease.spec.gpu_weight
    return per_gpu * (lease.spec.weight or whole * len(lease.spec.devices)) // whole


def _node(node: Node, sold: _SoldDevices) -> FleetNode:
    devices: Counter[str] = sold.get(node.name, Counter())
    return FleetNode(
        name=node.name,
        pools=tuple(sorted(devices)),
        devices=sum(devices.values()),
        cordoned=is_cordoned(node),
        ready=is_true(node, "Ready"),
        labels=node.labels,
        annotations=node.annotations,
    )


def is_cordoned(node: Object) -> bool:
    return bool((node.get("spec") or {}).get("unschedulable"))
