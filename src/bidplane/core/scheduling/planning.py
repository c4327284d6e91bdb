"""
An agent's scheduler: its pods, bids and leases in; what to do next out.

Rule 1: a pending pod that asks for GPUs has exactly one bid; the pods of a gang (`groups`)
        share one, and who is more than a gang needs bids once it has that.
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
from bidplane.core.asks import Ask, ask_of
from bidplane.core.market.pacing import Offer
from bidplane.core.scheduling.bids import bid_for_gang, bid_for_pod
from bidplane.core.scheduling.claimants import claimant
from bidplane.core.scheduling.gangs import Alone, Seat, Stands, Together, guest, step
from bidplane.core.scheduling.groups import Gang, Gangs, Unclear
from bidplane.core.scheduling.groupstatus import told_of_groups
from bidplane.core.scheduling.offers import bid_anew, is_instant, offers_of, pace_text
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
    is_bound,
    is_by_hand,
    is_deleted,
    is_order,
    is_pending,
    is_used,
    lease_of,
    name_of,
    on_host,
    phase_of,
)
from bidplane.core.translation import host_name


def plan(snapshot: Snapshot) -> list[Operation]:
    pending = [pod for pod in snapshot.pods if is_pending(pod)]
    if snapshot.suspended:
        return list(_suspended(snapshot, pending))
    gangs = Gangs(snapshot)
    operations: list[Operation] = list(_bids_without_pod(snapshot, gangs))
    operations += claiming.releases(snapshot.devices, snapshot.pods)
    offers = offers_of(snapshot, pending)
    for pod in pending:
        operations.extend(_pending(snapshot, gangs, pod, offers))
    operations.extend(_idle_leases(snapshot, gangs, pending))
    operations.extend(told_of_groups(snapshot))
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


def _pending(
    snapshot: Snapshot, gangs: Gangs, pod: Object, offers: Mapping[str, Offer]
) -> Iterator[Operation]:
    try:
        ask = ask_of(pod)
    except ValueError as error:  # a plane that does not refuse such a pod let it in
        yield Explain(pod, "BadAsk", str(error))
        return
    has_claims = bool(pod["spec"].get("resourceClaims"))
    if ask.gpus == 0 and not has_claims:
        yield Explain(
            pod,
            "NothingToBidFor",
            "the pod asks for no GPU, and this plane has no node but what it leases:"
            f" give a container resources.limits[{labels.GPU_RESOURCE}]",
        )
        return
    match gangs.of(pod):
        case Unclear(reason=reason, message=message):
            yield Explain(pod, reason, message)
        case gang if has_claims:
            yield from claimant(snapshot, gangs, pod, ask, gang)
        case Gang() as gang:
            yield from _of_gang(snapshot, gangs, pod, ask, gang, offers)
        case _ if ask.bid:
            yield from guest(snapshot, pod, ask)
        case _:
            yield from _single(snapshot, pod, ask, offers[pod["metadata"]["uid"]])


def _single(snapshot: Snapshot, pod: Object, ask: Ask, offered: Offer) -> Iterator[Operation]:
    bid = bid_of(snapshot, pod)
    if bid is None:
        if offered.price:
            price = format_credits(offered.price)
            instant, pace = is_instant(snapshot, ask), pace_text(offered)
            yield CreateBid(pod, bid_for_pod(pod, ask, price, instant=instant, pace=pace))
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
        yield from bid_anew(snapshot, ask, bid, offered)
    yield why_waiting(pod, bid, lease)


def _of_gang(
    snapshot: Snapshot,
    gangs: Gangs,
    pod: Object,
    ask: Ask,
    gang: Gang,
    offers: Mapping[str, Offer],
) -> Iterator[Operation]:
    if ask.memory:
        words = f"a gang is of equal parts: say {labels.GPU_FRACTION} instead"
        yield Explain(pod, "BadAsk", f"metadata.annotations[{labels.GPU_MEMORY}]: {words}")
        return
    match step(snapshot, gangs, pod, gang):
        case Seat(node=node):
            yield BindPod(pod, node)
        case Together(members=members):
            offered = _least(offers, members)
            if offered.price:
                price = format_credits(offered.price)
                yield CreateBid(pod, bid_for_gang(pod, gang.name, ask, price, len(members)))
            else:
                yield Explain(pod, "NotBidding", f"it does not bid now: {offered.reason}")
        case Stands(bid=bid, lease=lease, members=members):
            if members and lease is None and phase_of(bid) in ("", BidPhase.WAITING):
                yield from bid_anew(snapshot, ask, bid, _least(offers, members))
            yield why_waiting(pod, bid, lease)
        case Alone():
            yield from _single(snapshot, pod, ask, offers[pod["metadata"]["uid"]])
        case operations:
            yield from operations


def _least(offers: Mapping[str, Offer], members: list[Object]) -> Offer:
    """A gang offers for each what the one offers that has the least left to spend."""
    return min((offers[pod["metadata"]["uid"]] for pod in members), key=lambda one: one.price)


def _bids_without_pod(snapshot: Snapshot, gangs: Gangs) -> Iterator[Operation]:
    """The garbage collector removes a gone pod's bid; that of one that ends is ours to end."""
    by_uid = {pod["metadata"]["uid"]: pod for pod in snapshot.pods}
    live = {gangs.key(pod) for pod in snapshot.pods if phase_of(pod) not in FINISHED}
    host = {name_of(lease): lease["spec"]["bid"]["name"] for lease in snapshot.leases}
    for bid in snapshot.bids:
        marks = bid["metadata"].get("labels") or {}
        gang = marks.get(labels.GANG)
        if gang and not is_deleted(bid) and (bid["metadata"]["namespace"], gang) not in live:
            yield DeleteBid(bid)
        uid = marks.get(labels.POD_UID)
        if uid is None or bid["metadata"].get("deletionTimestamp"):
            continue  # written by hand: its owner ends it
        pod = by_uid.get(uid)
        if pod is None or phase_of(pod) in FINISHED or (is_deleted(pod) and not is_bound(pod)):
            yield DeleteBid(bid)
        elif is_bound(pod) and host.get(pod["spec"]["nodeName"], on_host(bid)) != on_host(bid):
            # It bid for itself, and was given a block of its gang's before that won.
            yield DeleteBid(bid)


def _is_of_the_last(lease: Object, won: Mapping[str, str]) -> bool:
    """Whether a lease drains that the bid of its name did not win."""
    id = won.get(lease["spec"]["bid"]["name"], "")
    return phase_of(lease) == Phase.DRAINING and not (
        id and lease["metadata"]["name"].startswith(id)
    )


def _idle_leases(snapshot: Snapshot, gangs: Gangs, pending: list[Object]) -> Iterator[Operation]:
    # By name, not by what the bid says: bids, pods and leases are read one after the
    # other, and a lease may be seen before the bid that won it.
    wanted = {host_name(pod["metadata"]["namespace"], bid_name(pod)) for pod in pending}
    wanted |= {on_host(bid) for pod in pending if (bid := bid_of(snapshot, pod)) is not None}
    of_gangs = {
        host_name(namespace, gang_bid_name(name))
        for namespace, name in filter(None, map(gangs.key, pending))
    }
    # A gang's next bid has the name of its last: what that one had, and drains, is not for it.
    won = {on_host(bid): (bid.get("status") or {}).get("lease", "") for bid in snapshot.bids}
    by_hand = {on_host(bid) for bid in snapshot.bids if is_by_hand(bid)}
    # A gang is let go of as a whole: while one of its pods runs, so are all of its blocks.
    busy = {lease["spec"]["bid"]["name"] for lease in snapshot.leases if is_used(snapshot, lease)}
    for lease in snapshot.leases:
        if (
            lease["metadata"].get("deletionTimestamp")
            # Without a phase it was only just made, and says nothing yet.
            or phase_of(lease) in ("", Phase.RELEASED)
            or lease["spec"]["bid"]["name"] in wanted
            or (lease["spec"]["bid"]["name"] in of_gangs and not _is_of_the_last(lease, won))
            or lease["spec"]["bid"]["name"] in by_hand
            or lease["spec"]["bid"]["name"] in busy
            # An order's waits for the pod that names it; the exchange gives it back in time.
            or (is_order(lease["spec"]["bid"]["name"]) and phase_of(lease) == Phase.PENDING)
        ):
            continue
        yield ReleaseLease(lease)
