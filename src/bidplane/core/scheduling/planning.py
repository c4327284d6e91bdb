"""
An agent's scheduler: its pods, bids and leases in; what to do next out.

Rule 1: a pending pod that asks for GPUs has exactly one bid; the pods of a gang (`groups`)
        share one, and pods beyond the gang's need bid once the gang has its GPUs.
Rule 2: a pod is bound to the lease its bid won, and to nothing else; a gang's pods each to
        a block of it, once all blocks are available.
Rule 3: a pod with ResourceClaims is bound where they are allocated (`core/scheduling/podclaims`).
Rule 4: a lease that no pod uses, or is about to use, is released; a gang's as a whole. A pod
        without GPUs uses none.
Rule 5: a pod without GPUs runs on CPU that is offered, else beside a lease that is paid for
        (`bindings`). No pod is bound to a node that it does not fit.

The plan is a function of the plane's present state. Carrying out any part of it, in any
order, and planning again leads to the same end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bidplane.api import labels
from bidplane.api.bid import BidPhase
from bidplane.api.kinds import Object
from bidplane.api.lease import Phase
from bidplane.api.objects import has_ended, is_deleted
from bidplane.api.reading import GPULease
from bidplane.core.bidding.asks import PodAsk, ask_of
from bidplane.core.bidding.pacing import PacedOffer
from bidplane.core.hosting.translation import host_name
from bidplane.core.nodes.fitting import unsupported
from bidplane.core.scheduling import bindings, podclaims
from bidplane.core.scheduling.bids import bid_for_gang, bid_for_pod
from bidplane.core.scheduling.claimants import plan_claimant
from bidplane.core.scheduling.gangs import (
    BidAlone,
    BidExists,
    BidTogether,
    GangBlock,
    gang_step,
    plan_named_bid,
)
from bidplane.core.scheduling.groups import Gang, Gangs, UnreadableGang
from bidplane.core.scheduling.groupstatus import update_groups
from bidplane.core.scheduling.observed import (
    PlaneSnapshot,
    bid_name,
    bid_of,
    gang_bid_name,
    host_bid_name,
    is_available,
    is_bound,
    is_by_hand,
    is_pending,
    is_used,
    lease_of,
    wants_gpus,
)
from bidplane.core.scheduling.offers import (
    is_instant,
    offers_of,
    pace_text,
    price_text,
    reprice_bid,
)
from bidplane.core.scheduling.operations import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    Operation,
    ReleaseLease,
    explain_waiting,
)


def plan(snapshot: PlaneSnapshot) -> list[Operation]:
    """Return the operations that are due in a plane now."""
    pending = [pod for pod in snapshot.pods if is_pending(pod)]
    if snapshot.suspended:
        return list(_plan_suspended(snapshot, pending))
    gangs = Gangs(snapshot)
    operations: list[Operation] = list(_end_bids(snapshot, gangs))
    operations += podclaims.releases(snapshot.devices, snapshot.pods)
    offers = offers_of(snapshot, pending)
    without_gpus = []
    for pod in pending:
        if wants_gpus(pod):
            operations.extend(_plan_pod(snapshot, gangs, pod, offers))
        else:
            without_gpus.append(pod)
    operations = bindings.check_fit(snapshot, operations, without_gpus)
    operations.extend(_release_idle_leases(snapshot, gangs, pending))
    operations.extend(update_groups(snapshot))
    return operations


def _plan_suspended(snapshot: PlaneSnapshot, pending: list[Object]) -> Iterator[Operation]:
    """
    Plan for a suspended agent: end its pods' bids and its leases, but keep bids written by hand.
    """
    for bid in snapshot.bids:
        if not is_by_hand(bid) and not bid.is_deleted:
            yield DeleteBid(bid)
    for lease in snapshot.leases:
        if not lease.is_deleted and lease.phase not in (None, Phase.RELEASED):
            yield ReleaseLease(lease)
    for pod in pending:
        yield Explain(
            pod,
            "AgentSuspended",
            "the agent is suspended and bids for nothing; its owner can resume it",
        )


def _plan_pod(
    snapshot: PlaneSnapshot, gangs: Gangs, pod: Object, offers: Mapping[str, PacedOffer]
) -> Iterator[Operation]:
    """Plan for one pending pod that asks for GPUs or devices."""
    try:
        ask = ask_of(pod)
    except ValueError as error:  # it was admitted by a plane without our admission checks
        yield Explain(pod, "BadAsk", str(error))
        return
    has_claims = bool(pod["spec"].get("resourceClaims"))
    if problem := unsupported(pod):
        yield Explain(pod, "NotSupported", problem)
        return
    match gangs.gang_of(pod):
        case UnreadableGang(reason=reason, message=message):
            yield Explain(pod, reason, message)
        case gang if has_claims:
            yield from plan_claimant(snapshot, gangs, pod, ask, gang)
        case Gang() as gang:
            yield from _plan_gang_pod(snapshot, gangs, pod, ask, gang, offers)
        case _ if ask.bid:
            yield from plan_named_bid(snapshot, pod, ask)
        case _:
            yield from _plan_single(snapshot, pod, ask, offers[pod["metadata"]["uid"]])


def _plan_single(
    snapshot: PlaneSnapshot, pod: Object, ask: PodAsk, offer_now: PacedOffer
) -> Iterator[Operation]:
    """Plan for a pod with a bid of its own."""
    bid = bid_of(snapshot, pod)
    if bid is None:
        if offer_now.price:
            price = price_text(snapshot, ask, offer_now)
            instant, pace = is_instant(snapshot, ask), pace_text(offer_now)
            yield CreateBid(pod, bid_for_pod(pod, ask, price, instant=instant, pace=pace))
        else:
            yield Explain(pod, "NotBidding", f"the pod does not bid now: {offer_now.reason}")
        return
    if bid.phase == BidPhase.ENDED:
        # It won and ended before the pod was bound. A bid wins once, so the pod bids anew.
        yield DeleteBid(bid)
        return
    lease = lease_of(snapshot, bid)
    if lease is not None and is_available(snapshot, lease):
        yield BindPod(pod, lease.name)
        return
    if lease is None and bid.is_waiting:
        yield from reprice_bid(snapshot, ask, bid, offer_now)
    yield explain_waiting(pod, bid, lease)


def _plan_gang_pod(
    snapshot: PlaneSnapshot,
    gangs: Gangs,
    pod: Object,
    ask: PodAsk,
    gang: Gang,
    offers: Mapping[str, PacedOffer],
) -> Iterator[Operation]:
    """Plan for a pod of a gang."""
    if ask.memory:
        remedy = f"a gang is of equal parts: set {labels.GPU_FRACTION} instead"
        yield Explain(pod, "BadAsk", f"metadata.annotations[{labels.GPU_MEMORY}]: {remedy}")
        return
    match gang_step(snapshot, gangs, pod, gang):
        case GangBlock(node=node):
            yield BindPod(pod, node)
        case BidTogether(members=members):
            lowest = _lowest_offer(offers, members)
            if lowest.price:
                price = price_text(snapshot, ask, lowest)
                yield CreateBid(pod, bid_for_gang(pod, gang.name, ask, price, len(members)))
            else:
                yield Explain(pod, "NotBidding", f"the gang does not bid now: {lowest.reason}")
        case BidExists(bid=bid, lease=lease, members=members):
            if members and lease is None and bid.is_waiting:
                yield from reprice_bid(snapshot, ask, bid, _lowest_offer(offers, members))
            yield explain_waiting(pod, bid, lease)
        case BidAlone():
            yield from _plan_single(snapshot, pod, ask, offers[pod["metadata"]["uid"]])
        case operations:
            yield from operations


def _lowest_offer(offers: Mapping[str, PacedOffer], members: list[Object]) -> PacedOffer:
    """Return the lowest offer of a gang's pods, which is the gang's offer for each."""
    return min(
        (offers[pod["metadata"]["uid"]] for pod in members), key=lambda offer_now: offer_now.price
    )


def _end_bids(snapshot: PlaneSnapshot, gangs: Gangs) -> Iterator[Operation]:
    """Delete the bids of pods that ended; the garbage collector removes those of deleted pods."""
    by_uid = {pod["metadata"]["uid"]: pod for pod in snapshot.pods}
    live = {gangs.key(pod) for pod in snapshot.pods if not has_ended(pod)}
    bid_by_node = {lease.name: lease.spec.bid.name for lease in snapshot.leases}
    for bid in snapshot.bids:
        gang = bid.labels.get(labels.GANG)
        if gang and not bid.is_deleted and (bid.namespace, gang) not in live:
            yield DeleteBid(bid)
        uid = bid.labels.get(labels.POD_UID)
        if uid is None or bid.is_deleted:
            continue  # written by hand: its owner ends it
        pod = by_uid.get(uid)
        if pod is None or has_ended(pod) or (is_deleted(pod) and not is_bound(pod)):
            yield DeleteBid(bid)
        elif is_bound(pod) and bid_by_node.get(
            pod["spec"]["nodeName"], host_bid_name(bid)
        ) != host_bid_name(bid):
            # The pod bid for itself, and got a block of its gang before its own bid won.
            yield DeleteBid(bid)


def _is_of_earlier_bid(lease: GPULease, won: Mapping[str, str]) -> bool:
    """Return whether a lease drains that was won by an earlier bid of the same name."""
    lease_name = won.get(lease.spec.bid.name, "")
    return lease.phase == Phase.DRAINING and not (lease_name and lease.shows(lease_name))


def _release_idle_leases(
    snapshot: PlaneSnapshot, gangs: Gangs, pending: list[Object]
) -> Iterator[Operation]:
    """Release the leases that no pod uses or is about to use."""
    # Matched by name, not by the bid's status: bids, pods and leases are read one after the
    # other, and a lease may be read before the bid that won it.
    pod_bid_names = {host_name(pod["metadata"]["namespace"], bid_name(pod)) for pod in pending}
    pod_bid_names |= {
        host_bid_name(bid) for pod in pending if (bid := bid_of(snapshot, pod)) is not None
    }
    gang_bid_names = {
        host_name(namespace, gang_bid_name(name))
        for namespace, name in filter(None, map(gangs.key, pending))
    }
    # A gang's next bid has the name of its last, whose draining leases are not for it.
    lease_by_bid = {
        host_bid_name(bid): bid.status.lease if bid.status is not None else ""
        for bid in snapshot.bids
    }
    by_hand = {host_bid_name(bid) for bid in snapshot.bids if is_by_hand(bid)}
    by_hand |= snapshot.unreadable_bids
    # A gang is released as a whole: while one of its pods runs, it keeps all of its blocks.
    busy = {lease.spec.bid.name for lease in snapshot.leases if is_used(snapshot, lease)}
    for lease in snapshot.leases:
        bid_on_host = lease.spec.bid.name
        if (
            lease.is_deleted
            # A lease without a phase was only just created.
            or lease.phase in (None, Phase.RELEASED)
            or bid_on_host in pod_bid_names
            or (bid_on_host in gang_bid_names and not _is_of_earlier_bid(lease, lease_by_bid))
            or bid_on_host in by_hand
            or bid_on_host in busy
            # An order's lease waits for the pod that names it; the exchange ends it in time.
            or (lease.was_ordered and lease.phase == Phase.PENDING)
        ):
            continue
        yield ReleaseLease(lease)
