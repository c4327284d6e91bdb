"""Pods with ResourceClaims: served from what is leased, or else by a bid of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from bidplane.api.bid import BidPhase
from bidplane.api.kinds import Draft, Object
from bidplane.api.money import format_credits
from bidplane.api.objects import has_ended, name_of
from bidplane.api.reading import Bid
from bidplane.api.shape import part_units
from bidplane.core.bidding.asks import PodAsk
from bidplane.core.scheduling import podclaims
from bidplane.core.scheduling.bids import bid_for_gang, bid_for_pod
from bidplane.core.scheduling.gangs import BidAlone, BidExists, BidTogether, GangBlock, gang_step
from bidplane.core.scheduling.groups import Gang, Gangs
from bidplane.core.scheduling.observed import (
    PlaneSnapshot,
    bid_of,
    host_bid_name,
    is_by_hand,
    is_pending,
    lease_of,
    wants_gpus,
)
from bidplane.core.scheduling.offers import is_instant
from bidplane.core.scheduling.operations import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    Operation,
    explain_waiting,
)


def plan_claimant(
    snapshot: PlaneSnapshot, gangs: Gangs, pod: Object, ask: PodAsk, gang: Gang | None
) -> Iterator[Operation]:
    """Plan for a pod with ResourceClaims: from what is leased, or by its own or its gang's bid."""
    if ask.gpus:
        yield Explain(
            pod,
            "BadAsk",
            "spec: the pod asks for GPUs by claims and by resources: use one of the two",
        )
        return
    # A claim that several pods share is on one node, so those pods cannot be a gang.
    if gang is not None and podclaims.is_all_its_own(pod):
        yield from _plan_gang_pod(snapshot, gangs, pod, ask, gang)
    else:
        yield from _plan_alone(snapshot, pod, ask)


def _plan_alone(snapshot: PlaneSnapshot, pod: Object, ask: PodAsk) -> Iterator[Operation]:
    """Plan for a pod with claims by itself."""
    bid = bid_of(snapshot, pod)
    usable = _usable_nodes(snapshot, bid, pod)
    match podclaims.decide(snapshot.devices, pod, usable, now=snapshot.now):
        case podclaims.Bind(node=node):
            yield BindPod(pod, node)
        case podclaims.Wait(reason=reason, message=message):
            yield Explain(pod, reason, message)
        case podclaims.MarketNeed(bid=claim_bid, obstacle=obstacle, refusals=refusals):
            if bid is None and (bidder := _bidder_of(snapshot, pod)) is not pod:
                # A claim is one bid and one lease, however many pods share it.
                explanation = f"{name_of(bidder)} bids for the claim that they share"
                yield Explain(pod, "ClaimShared", explanation)
            elif bid is None:
                yield CreateBid(
                    pod,
                    bid_for_pod(
                        pod,
                        ask,
                        _default_price_text(snapshot, ask),
                        claim_bid,
                        instant=is_instant(snapshot, ask),
                    ),
                )
            elif bid.phase == BidPhase.ENDED:
                yield DeleteBid(bid)
            elif bid.phase == BidPhase.WON and usable:
                yield Explain(
                    pod, "ClaimDoesNotFit", f"{obstacle} on the GPUs that its bid has won"
                )
            else:
                yield _in_claim_terms(explain_waiting(pod, bid, lease_of(snapshot, bid)), refusals)
        case operations:
            yield from operations


def _plan_gang_pod(
    snapshot: PlaneSnapshot, gangs: Gangs, pod: Object, ask: PodAsk, gang: Gang
) -> Iterator[Operation]:
    """Plan for a pod with claims in a gang."""
    claimed_nodes = podclaims.nodes_of_claims(snapshot.devices, gangs.members(pod))
    gang_action = gang_step(snapshot, gangs, pod, gang, claimed_nodes=claimed_nodes)
    if isinstance(gang_action, BidAlone):
        yield from _plan_alone(snapshot, pod, ask)
        return
    nodes_with_slices = {slice_["spec"].get("nodeName") for slice_ in snapshot.devices.slices}
    seat = (
        [gang_action.node]
        if isinstance(gang_action, GangBlock) and gang_action.node in nodes_with_slices
        else []
    )
    match podclaims.decide(snapshot.devices, pod, seat, now=snapshot.now):
        case podclaims.Bind(node=node):
            yield BindPod(pod, node)
        case podclaims.Wait(reason=reason, message=message):
            yield Explain(pod, reason, message)
        case podclaims.MarketNeed(bid=claim_bid, obstacle=obstacle, refusals=refusals):
            if isinstance(gang_action, BidTogether):
                decisions = [
                    podclaims.decide(snapshot.devices, member, (), now=snapshot.now)
                    for member in gang_action.members
                ]
                yield from _bid_together(
                    pod, ask, gang, claim_bid, decisions, _default_price_text(snapshot, ask)
                )
            elif isinstance(gang_action, BidExists):
                yield _in_claim_terms(
                    explain_waiting(pod, gang_action.bid, gang_action.lease), refusals
                )
            elif seat:
                yield Explain(
                    pod, "ClaimDoesNotFit", f"{obstacle} on the GPUs that its gang has won"
                )
            elif isinstance(gang_action, list):
                yield from gang_action
        case operations:
            yield from operations


def _in_claim_terms(waiting: Explain, refusals: Mapping[str, str]) -> Explain:
    """
    Return the explanation in terms of the claim, where the market's is about a bid nobody wrote.
    """
    message = refusals.get(waiting.reason, waiting.message)
    return msgspec.structs.replace(waiting, message=message)


def _bid_together(
    pod: Object,
    ask: PodAsk,
    gang: Gang,
    claim_bid: Draft,
    decisions: Sequence[podclaims.Decision],
    max_price: str,
) -> Iterator[Operation]:
    """Yield the gang's bid, if the claims of all its pods need the same."""
    if all(
        isinstance(decision, podclaims.MarketNeed) and decision.bid == claim_bid
        for decision in decisions
    ):
        yield CreateBid(
            pod, bid_for_gang(pod, gang.name, ask, max_price, len(decisions), claim_bid)
        )
    elif all(isinstance(decision, podclaims.MarketNeed) for decision in decisions):
        yield Explain(
            pod,
            "GangDiffers",
            f"the claims of the pods of {gang.origin} are not alike: make them equal",
        )


def _bidder_of(snapshot: PlaneSnapshot, pod: Object) -> Object:
    """
    Return the pod that bids for a shared claim: the one that has a bid already, else the oldest.
    """
    shared = podclaims.pods_sharing_claim(pod, filter(is_pending, snapshot.pods))
    return min(
        shared,
        key=lambda other_pod: (
            bid_of(snapshot, other_pod) is None,
            other_pod["metadata"].get("creationTimestamp", ""),
            other_pod["metadata"]["uid"],
        ),
    )


def _usable_nodes(snapshot: PlaneSnapshot, bid: Bid | None, pod: Object) -> list[str]:
    """
    Return the nodes that a pod's claims may use.

    These are nodes of leases that its own bid won, or a bid written by hand, and nodes where a
    claim of it already has devices; but none that a pod without claims has to itself.
    """
    claimed = set(podclaims.nodes_of_claims(snapshot.devices, [pod]).values())
    own_bid = host_bid_name(bid) if bid is not None else ""
    by_hand = {host_bid_name(other_bid) for other_bid in snapshot.bids if is_by_hand(other_bid)}
    exclusively_used = {
        pod["spec"].get("nodeName")
        for pod in snapshot.pods
        if not pod["spec"].get("resourceClaims") and wants_gpus(pod) and not has_ended(pod)
    }
    # A node's slices appear a moment after it.
    nodes_with_slices = {slice_["spec"].get("nodeName") for slice_ in snapshot.devices.slices}
    usable = {
        name
        for node in snapshot.nodes
        if (name := node["metadata"]["name"]) in nodes_with_slices
        and not node["spec"].get("taints")
    }
    return sorted(
        lease.name
        for lease in snapshot.leases
        if lease.name in usable - exclusively_used
        and lease.is_held
        and (
            lease.name in claimed
            or lease.spec.bid.name == own_bid
            # A fraction serves only the claim that asked for it; a MIG instance describes itself
            # and may serve others.
            or (lease.spec.bid.name in by_hand and part_units(lease.share) is None)
        )
    )


def _default_price_text(snapshot: PlaneSnapshot, ask: PodAsk) -> str:
    """Return the price of a pod without one; "" where each pool's list price gives another."""
    prices = snapshot.default_prices(ask.pool)
    return format_credits(min(prices)) if len(prices) == 1 else ""
