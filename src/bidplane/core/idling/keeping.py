"""
The lease of a service that stopped: kept by a Bid of its Endpoint, which outlives its pods. Pure.

A pod's own bid, and so its lease, ends with the pod. An Endpoint with `keepLeaseSeconds` bids in
its pods' place: its pods name its Bid, and what that has won stays while they are gone. Without
pods the lease counts as unused; after the pool's `idleSeconds` it ranks by its bid alone, as any
idle lease. Whoever outbids it then ends it, and the service with it is released.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.bid import BidPhase
from bidplane.api.endpoint import Demand, EndpointSpec
from bidplane.api.idling.ladder import HoldingStatus
from bidplane.api.kinds import BID, ENDPOINT, Draft, Object
from bidplane.api.money import GPU_WEIGHT, SECONDS_PER_HOUR, format_credits, parse_price, rent
from bidplane.api.objects import annotations_of, labels_of, spec_of
from bidplane.api.reading import Bid, GPULease
from bidplane.core.bidding.asks import ask_of
from bidplane.core.scheduling.bids import bid_for_pod


class BidChange(msgspec.Struct, frozen=True):
    """The change of an Endpoint's Bid; None leaves it."""

    create: Draft | None = None
    delete: bool = False
    problem: str = ""  # why it keeps no lease


def bid_name(endpoint: str) -> str:
    """Return the name of an Endpoint's Bid."""
    return f"endpoint-{endpoint}"[:253]


def step(
    spec: EndpointSpec,
    demand: Demand | None,
    endpoint: Object,
    deployment: Object,
    bid: Bid | None,
) -> BidChange:
    """Return the next change of an Endpoint's Bid; `endpoint` is the plane's."""
    if demand is None:
        return BidChange()
    keeps = spec.ladder.keep_lease_seconds > 0
    is_due = keeps and (demand.awake or demand.keep_lease)
    if bid is not None:
        if bid.is_deleted:
            return BidChange()
        # A bid wins once: the next life needs a new one.
        return BidChange(delete=not is_due or (demand.awake and bid.phase == BidPhase.ENDED))
    if not keeps or not demand.awake:
        return BidChange()
    name = bid_name(endpoint["metadata"]["name"])
    if spec_of(deployment).get("replicas", 1) and _notes(deployment).get(labels.BID_NAME) != name:
        return BidChange()  # its pods have bid for themselves: from their next start on
    return _bid(spec, endpoint, deployment)


def _notes(deployment: Object) -> Draft:
    """Return the annotations of a Deployment's pods."""
    template = spec_of(deployment).get("template") or {}
    return dict(annotations_of({"metadata": {}, **template}))


def _bid(spec: EndpointSpec, endpoint: Object, deployment: Object) -> BidChange:
    template: Draft = dict(spec_of(deployment).get("template") or {})
    pod_spec = template.get("spec") or {}
    if pod_spec.get("resourceClaims"):
        problem = "KeepsNoLease: its pods have ResourceClaims: ask for nvidia.com/gpu instead"
        return BidChange(problem=problem)
    notes = _notes(deployment)
    notes.pop(labels.BID_NAME, None)
    notes.setdefault(labels.URGENCY, spec.urgency.value)
    if spec.stay_seconds:
        notes.setdefault(labels.TERM, str(spec.stay_seconds))
    metadata = endpoint["metadata"]
    pod: Draft = {
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "annotations": notes,
            "labels": dict(labels_of({"metadata": {}, **template})),
        },
        "spec": pod_spec,
    }
    try:
        ask = ask_of(pod)
        if not ask.gpus:
            return BidChange(problem="KeepsNoLease: its pods ask for no GPU")
        bid_spec: Draft = dict(bid_for_pod(pod, ask, "")["spec"])
    except ValueError as error:
        return BidChange(problem=f"KeepsNoLease: {error}")
    if spec.replicas > 1:
        bid_spec["blocks"] = spec.replicas
    owner = {
        "apiVersion": ENDPOINT.api_version,
        "kind": ENDPOINT.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    return BidChange(
        create={
            "apiVersion": BID.api_version,
            "kind": BID.kind,
            "metadata": {
                "name": bid_name(metadata["name"]),
                "namespace": metadata["namespace"],
                "ownerReferences": [owner],
            },
            "spec": bid_spec,
        }
    )


def template_note(spec: EndpointSpec, endpoint: str, notes: Draft, *, has_bid: bool) -> Draft:
    """Return the change of the pod template's annotations, so that its pods use the Bid, or not."""
    name, named = bid_name(endpoint), notes.get(labels.BID_NAME)
    if spec.ladder.keep_lease_seconds and has_bid:
        return {labels.BID_NAME: name} if named is None else {}
    return {labels.BID_NAME: None} if named == name else {}


def holding(
    leases: Iterable[GPULease], nodes: Sequence[str], kept_bid: str, problem: str
) -> HoldingStatus:
    """
    Return what a service holds: the leases that its pods run on (`nodes`), and those that its Bid
    has won (`kept_bid`, by its name on the host).
    """
    own = [
        lease
        for lease in leases
        if lease.is_held and (lease.name in nodes or lease.spec.bid.name == kept_bid)
    ]
    keeps_lease = any(lease.spec.bid.name == kept_bid for lease in own)
    return HoldingStatus(
        leases=tuple(sorted(lease.name for lease in own)),
        devices=sum(len(lease.spec.devices) for lease in own),
        paid_per_hour=format_credits(sum(_rent_per_hour(lease) for lease in own)) if own else "",
        keeps_lease=keeps_lease,
        message=problem,
    )


def _rent_per_hour(lease: GPULease) -> int:
    """Return what a lease costs in an hour, in micro-credits; 0 before it has a price."""
    price = lease.status.price if lease.status is not None else ""
    weight = lease.spec.weight * GPU_WEIGHT // max(1, lease.spec.gpu_weight)
    return rent(parse_price(price), weight, SECONDS_PER_HOUR) if price else 0
