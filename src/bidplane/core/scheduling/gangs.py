"""
Pods that share a bid: gangs, won and bound together, and pods that name a bid written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.bid import BidPhase
from bidplane.api.kinds import Object
from bidplane.api.objects import has_ended, is_deleted, name_of
from bidplane.api.reading import Bid, GPULease
from bidplane.api.shape import share_name
from bidplane.core.bidding.asks import PodAsk
from bidplane.core.scheduling.groups import Gang, Gangs, pods_needed
from bidplane.core.scheduling.observed import (
    PlaneSnapshot,
    ask_or_none,
    blocks_of,
    find_bid,
    gang_bid_name,
    is_available,
    is_bound,
    is_pending,
    is_used,
)
from bidplane.core.scheduling.operations import (
    BindPod,
    DeleteBid,
    Explain,
    Operation,
    explain_waiting,
)


class GangBlock(msgspec.Struct, frozen=True):
    """The pod's block of the gang's leases, which are all available."""

    node: str


class BidTogether(msgspec.Struct, frozen=True):
    """The pod's turn to create the bid for all of `members`, because enough pods wait."""

    members: list[Object]


class BidExists(msgspec.Struct, frozen=True):
    """
    The gang's bid exists. One pod keeps its price up to date: only for that one, `members` is set.
    """

    bid: Bid
    lease: GPULease | None
    members: list[Object]


class BidAlone(msgspec.Struct, frozen=True):
    """The gang has all it needs: a pod beyond that bids for itself."""


Step = GangBlock | BidTogether | BidExists | BidAlone | list[Operation]


def gang_step(
    snapshot: PlaneSnapshot,
    gangs: Gangs,
    pod: Object,
    gang: Gang,
    *,
    claimed_nodes: Mapping[str, str] | None = None,
) -> Step:
    """
    Return the next step for a pending pod of a gang. `claimed_nodes`: by pod, its claims' node.
    """
    members = gangs.members(pod)
    waiting = sorted((p for p in members if is_pending(p)), key=name_of)
    rank = waiting.index(pod)
    needed = pods_needed(gang, members) - sum(_is_settled(snapshot, member) for member in members)
    bid = find_bid(snapshot, pod["metadata"]["namespace"], gang_bid_name(gang.name))
    if bid is None:
        return _without_bid(pod, gang, waiting, rank, needed)
    blocks = blocks_of(snapshot, bid)
    if bid.is_waiting:
        # Leases of the gang's previous bid, which had the same name, may still be ending.
        blocks = [lease for lease in blocks if lease.is_held]
    if bid.phase == BidPhase.ENDED or (blocks and not any(lease.is_held for lease in blocks)):
        # Its leases ended or are ending. A bid wins once, so the gang bids anew together.
        return [DeleteBid(bid)] if rank == 0 else []
    if not blocks and 0 < needed != bid.spec.blocks and bid.is_waiting:
        # The gang became larger or smaller while its bid waited.
        return [DeleteBid(bid)] if rank == 0 else []
    free = [lease for lease in blocks if lease.is_held and is_available(snapshot, lease)]
    busy = [lease for lease in blocks if is_used(snapshot, lease)]
    # Pods are bound only when every block is available: none runs before all can.
    if blocks and len(free) + len(busy) == blocks[0].spec.parts:
        node = _assign_blocks(waiting, [lease.name for lease in free], claimed_nodes or {}).get(
            name_of(pod)
        )
        if node is not None:
            return GangBlock(node)
        if needed <= 0:
            return BidAlone()
        if not free:
            # A block outside this bid was lost, and a bid cannot grow once it has won: the missing
            # pods bid alone. Blocks that pods are leaving will be used again as they are.
            leaving = len(busy) - sum(_is_bound_to(busy, member) for member in members)
            if rank < needed - leaving:
                return BidAlone()
    first_members = list(waiting[: bid.spec.blocks])
    if pod not in first_members:
        return [_explain_surplus(pod, gang)]
    return BidExists(bid, blocks[0] if blocks else None, first_members if rank == 0 else [])


def _without_bid(
    pod: Object, gang: Gang, waiting: Sequence[Object], rank: int, needed: int
) -> Step:
    """Return the next step for a pod of a gang that has no bid."""
    if needed <= 0:
        return BidAlone()
    if len(waiting) < needed:
        progress = f"{len(waiting)} of the {needed} pods that {gang.origin} needs wait"
        return [Explain(pod, "WaitingForGang", f"{progress}; they are bid for together")]
    together = list(waiting[:needed])
    if rank >= needed:
        return [_explain_surplus(pod, gang)]
    asks = [ask_or_none(member) for member in together]
    if any(ask != asks[0] for ask in asks):
        return [
            Explain(
                pod,
                "GangDiffers",
                f"the pods of {gang.origin} do not all ask for the same GPUs, price and size: make"
                f' them alike, or set {labels.GANG_SIZE}: "1" on pods that may start alone',
            )
        ]
    return BidTogether(together) if rank == 0 else []


def _explain_surplus(pod: Object, gang: Gang) -> Explain:
    """Explain a pod that its gang does not need now."""
    message = f"the {gang.size} pods that {gang.origin} needs are bid for first"
    return Explain(pod, "WaitingForGang", message)


def _is_settled(snapshot: PlaneSnapshot, pod: Object) -> bool:
    """Return whether a pod runs, or is about to, on a lease that it is not about to lose."""
    return _is_bound_to((lease for lease in snapshot.leases if lease.is_held), pod)


def _is_bound_to(leases: Iterable[GPULease], pod: Object) -> bool:
    """Return whether a pod is bound to one of these leases and is not leaving it."""
    if not is_bound(pod) or is_deleted(pod) or has_ended(pod):
        return False
    node = pod["spec"]["nodeName"]
    return any(lease.name == node for lease in leases)


def _assign_blocks(
    waiting: Sequence[Object], free: Sequence[str], claimed_nodes: Mapping[str, str]
) -> dict[str, str]:
    """Return a block for each pod: the one its devices are on already, else the next free one."""
    claimed = {name: node for name, node in claimed_nodes.items() if node in free}
    remaining = [node for node in free if node not in claimed.values()]
    unassigned = [name for pod in waiting if (name := name_of(pod)) not in claimed]
    return {**claimed, **dict(zip(unassigned, remaining, strict=False))}


def plan_named_bid(snapshot: PlaneSnapshot, pod: Object, ask: PodAsk) -> Iterator[Operation]:
    """Plan for a pod that uses what a bid written by hand has won, or an order has bought."""
    bid = find_bid(snapshot, pod["metadata"]["namespace"], ask.bid)
    if bid is None:
        yield from _plan_order(snapshot, pod, ask)
        return
    blocks = blocks_of(snapshot, bid)
    for lease in blocks:
        if lease.is_held and is_available(snapshot, lease) and _suffices(lease, ask):
            yield BindPod(pod, lease.name)
            return
    if any(lease.is_held for lease in blocks):
        yield Explain(pod, "LeaseInUse", f"what the Bid {ask.bid} has won is in use, or too small")
        return
    yield explain_waiting(pod, bid, None)


def _plan_order(snapshot: PlaneSnapshot, pod: Object, ask: PodAsk) -> Iterator[Operation]:
    """Plan for a pod that uses the lease of an order."""
    bought = [
        lease for lease in snapshot.leases if lease.was_ordered and lease.spec.bid.name == ask.bid
    ]
    for lease in bought:
        if lease.is_held and is_available(snapshot, lease) and _suffices(lease, ask):
            yield BindPod(pod, lease.name)
            return
    if any(lease.is_held for lease in bought):
        # A lease's node appears a moment after the lease.
        yield Explain(
            pod, "LeaseInUse", f"what order {ask.bid} bought is in use, too small, or not ready yet"
        )
        return
    yield Explain(
        pod,
        "NoSuchBid",
        f"there is no Bid {ask.bid!r} in its namespace, and no order of that name has a lease now;"
        f" write such a Bid, order again, or take {labels.BID_NAME} from the pod",
    )


def _suffices(lease: GPULease, ask: PodAsk) -> bool:
    """Return whether a lease has as many GPUs, or the share, that a pod asks for."""
    return share_name(lease.share) == ask.share and len(lease.spec.devices) >= ask.gpus
