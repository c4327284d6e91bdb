"""Pods that share a bid: a gang, won and bound together, and guests of one written by hand."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.api import labels
from bidplane.api.bid import BidPhase
from bidplane.api.kinds import Object
from bidplane.core.asks import Ask
from bidplane.core.scheduling.bids import bid_for_gang
from bidplane.core.scheduling.operations import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    Operation,
    why_waiting,
)
from bidplane.core.scheduling.seen import (
    Snapshot,
    blocks_of,
    can_take,
    gang_bid_name,
    gang_of,
    is_held,
    is_pending,
    is_used,
    name_of,
    named_bid,
    phase_of,
    safe_ask,
)


def gang_member(snapshot: Snapshot, pod: Object, ask: Ask) -> Iterator[Operation]:
    namespace = pod["metadata"]["namespace"]
    members = [p for p in snapshot.pods if gang_of(p) == (namespace, ask.gang)]
    waiting = sorted((p for p in members if is_pending(p)), key=name_of)
    bid = named_bid(snapshot, namespace, gang_bid_name(ask.gang))
    if bid is None:
        if len(waiting) < ask.gang_size:
            here = f"{len(waiting)} of the {ask.gang_size} pods of gang {ask.gang} wait"
            yield Explain(pod, "WaitingForGang", f"{here}; they are bid for together")
        elif any(safe_ask(member) != ask for member in waiting):
            yield Explain(
                pod,
                "GangDiffers",
                f"the pods of gang {ask.gang} do not all ask for the same GPUs, price and size:"
                " make them alike",
            )
        elif pod is waiting[0]:
            yield CreateBid(pod, bid_for_gang(pod, ask, snapshot.max_price))
        return
    blocks = blocks_of(snapshot, bid)
    if phase_of(bid) == BidPhase.ENDED or (blocks and not any(map(is_held, blocks))):
        # What it won is over, or ends. A bid wins once, so ask anew, all together.
        if pod is waiting[0]:
            yield DeleteBid(bid)
        return
    free = [lease for lease in blocks if is_held(lease) and can_take(snapshot, lease)]
    busy = [lease for lease in blocks if is_used(snapshot, lease)]
    place = waiting.index(pod)
    # Bound only when every block is there: none runs before all can.
    if blocks and len(free) + len(busy) == blocks[0]["spec"].get("parts", 1) and place < len(free):
        yield BindPod(pod, free[place]["metadata"]["name"])
        return
    yield why_waiting(pod, bid, blocks[0] if blocks else None)


def guest(snapshot: Snapshot, pod: Object, ask: Ask) -> Iterator[Operation]:
    """A pod that uses what a bid written by hand has won."""
    bid = named_bid(snapshot, pod["metadata"]["namespace"], ask.bid)
    if bid is None:
        message = f"there is no Bid {ask.bid!r} in its namespace; write one, or take"
        yield Explain(pod, "NoSuchBid", f"{message} {labels.BID_NAME} from the pod")
        return
    blocks = blocks_of(snapshot, bid)
    for lease in blocks:
        if is_held(lease) and can_take(snapshot, lease) and _suffices(lease, ask):
            yield BindPod(pod, lease["metadata"]["name"])
            return
    if any(map(is_held, blocks)):
        yield Explain(pod, "LeaseInUse", f"what {ask.bid} has won is in use, or too small")
        return
    yield why_waiting(pod, bid, None)


def _suffices(lease: Object, ask: Ask) -> bool:
    devices = lease["spec"]["devices"]
    share = devices[0].get("share", "")
    return share == ask.share and len(devices) >= ask.gpus
