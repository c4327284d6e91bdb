"""
An agent's scheduler: its pods, bids and leases in; what to do next out.

Rule 1: a pending pod that asks for GPUs has exactly one bid; the pods of a gang share one.
Rule 2: a pod is bound to the lease its bid won, and to nothing else; a gang's pods each to
        a block of it, once all of it is there.
Rule 3: a pod with ResourceClaims is bound where they are allocated (`core/claiming`).
Rule 4: a lease that no pod uses, or is about to, is released; a gang's as a whole.

The plan is a function of what the plane says now. Carrying out any part of it, in any
order, and planning again comes to the same end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bidplane.api import labels
from bidplane.api.bid import BidPhase
from bidplane.api.kinds import Object
from bidplane.api.lease import Phase
from bidplane.api.money import format_credits
from bidplane.core import claiming
from bidplane.core.asks import ask_of
from bidplane.core.market.pacing import Offer
from bidplane.core.scheduling.bids import bid_for_pod
from bidplane.core.scheduling.claimants import claimant
from bidplane.core.scheduling.gangs import gang_member, guest
from bidplane.core.scheduling.offers import bid_anew, is_instant, offers_of
from bidplane.core.scheduling.operations import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    Operation,
    ReleaseLease,
    why_waiting,
)
from bidplane.core.scheduling.seen import (
    FINISHED,
    Snapshot,
    bid_name,
    bid_of,
    can_take,
    gang_bid_name,
    gang_of,
    is_bound,
    is_by_hand,
    is_deleted,
    is_pending,
    is_used,
    lease_of,
    on_host,
    phase_of,
)
from bidplane.core.translation import host_name


def plan(snapshot: Snapshot) -> list[Operation]:
    pending = [pod for pod in snapshot.pods if is_pending(pod)]
    if snapshot.suspended:
        return list(_suspended(snapshot, pending))
    operations: list[Operation] = list(_bids_without_pod(snapshot, pending))
    operations += claiming.releases(snapshot.devices, snapshot.pods)
    offers = offers_of(snapshot, pending)
    for pod in pending:
        operations.extend(_pending(snapshot, pod, offers))
    operations.extend(_idle_leases(snapshot, pending))
    return operations


def _suspended(snapshot: Snapshot, pending: list[Object]) -> Iterator[Operation]:
    """No bid of a pod stands, no lease is kept. Bids written by hand stay for later."""
    for bid in snapshot.bids:
        marks = bid["metadata"].get("labels") or {}
        by_pod = labels.POD_UID in marks or labels.GANG in marks
        if by_pod and not is_deleted(bid):
            yield DeleteBid(bid)
    for lease in snapshot.leases:
        if not is_deleted(lease) and phase_of(lease) not in ("", Phase.RELEASED):
            yield ReleaseLease(lease)
    for pod in pending:
        yield Explain(
            pod,
            "AgentSuspended",
            "the agent is suspended and bids for nothing; its owner can resume it",
        )


def _pending(snapshot: Snapshot, pod: Object, offers: Mapping[str, Offer]) -> Iterator[Operation]:
    try:
        ask = ask_of(pod)
    except ValueError as error:  # a plane that does not refuse such a pod let it in
        yield Explain(pod, "BadAsk", str(error))
        return
    if pod["spec"].get("resourceClaims"):
        yield from claimant(snapshot, pod, ask)
        return
    if ask.gpus == 0:
        yield Explain(
            pod,
            "NothingToBidFor",
            "the pod asks for no GPU, and this plane has no node but what it leases:"
            f" give a container resources.limits[{labels.GPU_RESOURCE}]",
        )
        return
    if ask.gang:
        yield from gang_member(snapshot, pod, ask)
        return
    if ask.bid:
        yield from guest(snapshot, pod, ask)
        return
    bid = bid_of(snapshot, pod)
    offered = offers[pod["metadata"]["uid"]]
    if bid is None:
        if offered.price:
            price = format_credits(offered.price)
            instant = is_instant(snapshot, ask)
            yield CreateBid(pod, bid_for_pod(pod, ask, price, instant=instant))
        else:
            yield Explain(pod, "NotBidding", f"it does not bid now: {offered.reason}")
        return
    if phase_of(bid) == BidPhase.ENDED:
        # Won, and let go of before the pod was bound. A bid wins once, so ask anew.
        yield DeleteBid(bid)
        return
    lease = lease_of(snapshot, bid)
    if lease is not None and can_take(snapshot, lease):
        yield BindPod(pod, lease["metadata"]["name"])
        return
    if lease is None and phase_of(bid) in ("", BidPhase.WAITING):
        yield from bid_anew(snapshot, ask, bid, offered.price)
    yield why_waiting(pod, bid, lease)


def _bids_without_pod(snapshot: Snapshot, pending: list[Object]) -> Iterator[Operation]:
    """The garbage collector removes a gone pod's bid; that of one that ends is ours to end."""
    by_uid = {pod["metadata"]["uid"]: pod for pod in snapshot.pods}
    gangs = {gang_of(pod) for pod in snapshot.pods if phase_of(pod) not in FINISHED}
    for bid in snapshot.bids:
        marks = bid["metadata"].get("labels") or {}
        gang = marks.get(labels.GANG)
        if gang and not is_deleted(bid) and (bid["metadata"]["namespace"], gang) not in gangs:
            yield DeleteBid(bid)
        uid = marks.get(labels.POD_UID)
        if uid is None or bid["metadata"].get("deletionTimestamp"):
            continue  # written by hand: its owner ends it
        pod = by_uid.get(uid)
        if pod is None or phase_of(pod) in FINISHED or (is_deleted(pod) and not is_bound(pod)):
            yield DeleteBid(bid)


def _idle_leases(snapshot: Snapshot, pending: list[Object]) -> Iterator[Operation]:
    # By name, not by what the bid says: bids, pods and leases are read one after the
    # other, and a lease may be seen before the bid that won it.
    wanted = {host_name(pod["metadata"]["namespace"], bid_name(pod)) for pod in pending}
    wanted |= {on_host(bid) for pod in pending if (bid := bid_of(snapshot, pod)) is not None}
    wanted |= {
        host_name(namespace, gang_bid_name(gang))
        for namespace, gang in map(gang_of, pending)
        if gang
    }
    by_hand = {on_host(bid) for bid in snapshot.bids if is_by_hand(bid)}
    # A gang is let go of as a whole: while one of its pods runs, so are all of its blocks.
    busy = {lease["spec"]["bid"]["name"] for lease in snapshot.leases if is_used(snapshot, lease)}
    for lease in snapshot.leases:
        if (
            lease["metadata"].get("deletionTimestamp")
            # Without a phase it was only just made, and says nothing yet.
            or phase_of(lease) in ("", Phase.RELEASED)
            or lease["spec"]["bid"]["name"] in wanted
            or lease["spec"]["bid"]["name"] in by_hand
            or lease["spec"]["bid"]["name"] in busy
        ):
            continue
        yield ReleaseLease(lease)
