"""Pods that share a bid: a gang, won and bound together, and guests of one written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.bid import BidPhase
from bidplane.api.kinds import Object
from bidplane.core.asks import Ask
from bidplane.core.scheduling.groups import Gang, Gangs, left
from bidplane.core.scheduling.operations import (
    BindPod,
    DeleteBid,
    Explain,
    Operation,
    why_waiting,
)
from bidplane.core.scheduling.seen import (
    FINISHED,
    Snapshot,
    blocks_of,
    can_take,
    gang_bid_name,
    is_bound,
    is_deleted,
    is_held,
    is_order,
    is_pending,
    is_used,
    name_of,
    named_bid,
    phase_of,
    safe_ask,
)


class Seat(msgspec.Struct, frozen=True):
    """All of what the gang won is there, and this block is the pod's."""

    node: str


class Together(msgspec.Struct, frozen=True):
    """Those that wait are enough: this pod writes the bid for all of them."""

    members: list[Object]


class Stands(msgspec.Struct, frozen=True):
    """The gang's bid stands. One of its pods keeps its price: to that one `members` are told."""

    bid: Object
    lease: Object | None
    members: list[Object]


class Alone(msgspec.Struct, frozen=True):
    """Its gang has what it needs: who is more than that bids for itself."""


Step = Seat | Together | Stands | Alone | list[Operation]


def step(
    snapshot: Snapshot,
    gangs: Gangs,
    pod: Object,
    gang: Gang,
    *,
    taken: Mapping[str, str] | None = None,
) -> Step:
    """What is next for a pending pod of a gang. `taken`: by pod, the node its claims are on."""
    members = gangs.members(pod)
    waiting = sorted((p for p in members if is_pending(p)), key=name_of)
    place = waiting.index(pod)
    needed = left(gang, members) - sum(_is_settled(snapshot, member) for member in members)
    bid = named_bid(snapshot, pod["metadata"]["namespace"], gang_bid_name(gang.name))
    if bid is None:
        return _without_bid(pod, gang, waiting, place, needed)
    blocks = blocks_of(snapshot, bid)
    if _is_undecided(bid):
        # What the gang's last bid had, which was called the same, may still be leaving.
        blocks = list(filter(is_held, blocks))
    if phase_of(bid) == BidPhase.ENDED or (blocks and not any(map(is_held, blocks))):
        # What it won is over, or ends. A bid wins once, so ask anew, all together.
        return [DeleteBid(bid)] if place == 0 else []
    if not blocks and 0 < needed != bid["spec"].get("blocks", 1) and _is_undecided(bid):
        # It became larger or smaller while it waited.
        return [DeleteBid(bid)] if place == 0 else []
    free = [lease for lease in blocks if is_held(lease) and can_take(snapshot, lease)]
    busy = [lease for lease in blocks if is_used(snapshot, lease)]
    # Bound only when every block is there: none runs before all can.
    if blocks and len(free) + len(busy) == blocks[0]["spec"].get("parts", 1):
        node = _seats(waiting, [name_of(lease) for lease in free], taken or {}).get(name_of(pod))
        if node is not None:
            return Seat(node)
        if needed <= 0:
            return Alone()
        if not free:
            # A place outside this bid was lost, and a bid cannot grow once it has won: who is
            # missing asks beside it. Blocks that pods are leaving will be had again as they are.
            leaving = len(busy) - sum(_sits_on(busy, member) for member in members)
            if place < needed - leaving:
                return Alone()
    first = list(waiting[: bid["spec"].get("blocks", 1)])
    if pod not in first:
        return [_after_the_others(pod, gang)]
    return Stands(bid, blocks[0] if blocks else None, first if place == 0 else [])


def _without_bid(
    pod: Object, gang: Gang, waiting: Sequence[Object], place: int, needed: int
) -> Step:
    if needed <= 0:
        return Alone()
    if len(waiting) < needed:
        here = f"{len(waiting)} of the {needed} pods that {gang.of} needs wait"
        return [Explain(pod, "WaitingForGang", f"{here}; they are bid for together")]
    together = list(waiting[:needed])
    if place >= needed:
        return [_after_the_others(pod, gang)]
    asks = [safe_ask(member) for member in together]
    if any(ask != asks[0] for ask in asks):
        return [
            Explain(
                pod,
                "GangDiffers",
                f"the pods of {gang.of} do not all ask for the same GPUs, price and size: make"
                f' them alike, or set {labels.GANG_SIZE}: "1" on pods that may start alone',
            )
        ]
    return Together(together) if place == 0 else []


def _after_the_others(pod: Object, gang: Gang) -> Explain:
    words = f"the {gang.size} pods that {gang.of} needs are bid for first"
    return Explain(pod, "WaitingForGang", words)


def _is_settled(snapshot: Snapshot, pod: Object) -> bool:
    """Whether it has a place that it is not about to lose."""
    return _sits_on(filter(is_held, snapshot.leases), pod)


def _sits_on(leases: Iterable[Object], pod: Object) -> bool:
    """Whether it runs, or is about to, on one of these, and is not leaving it."""
    if not is_bound(pod) or is_deleted(pod) or phase_of(pod) in FINISHED:
        return False
    node = pod["spec"]["nodeName"]
    return any(name_of(lease) == node for lease in leases)


def _is_undecided(bid: Object) -> bool:
    return phase_of(bid) in ("", BidPhase.WAITING)


def _seats(
    waiting: Sequence[Object], free: Sequence[str], taken: Mapping[str, str]
) -> dict[str, str]:
    """By pod, the block that is its own: where its devices are already, else in order."""
    fixed = {name: node for name, node in taken.items() if node in free}
    others = [node for node in free if node not in fixed.values()]
    unseated = [name for pod in waiting if (name := name_of(pod)) not in fixed]
    return {**fixed, **dict(zip(unseated, others, strict=False))}


def guest(snapshot: Snapshot, pod: Object, ask: Ask) -> Iterator[Operation]:
    """A pod that uses what a bid written by hand has won, or an order has bought."""
    if is_order(ask.bid):
        yield from _of_order(snapshot, pod, ask)
        return
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


def _of_order(snapshot: Snapshot, pod: Object, ask: Ask) -> Iterator[Operation]:
    bought = [lease for lease in snapshot.leases if lease["spec"]["bid"]["name"] == ask.bid]
    for lease in bought:
        if is_held(lease) and can_take(snapshot, lease) and _suffices(lease, ask):
            yield BindPod(pod, lease["metadata"]["name"])
            return
    if any(map(is_held, bought)):
        # Its node is shown a moment after it.
        yield Explain(pod, "LeaseInUse", f"what {ask.bid} bought is in use, too small, or not here")
        return
    words = f"the order {ask.bid!r} has no lease: it was given back, or it is another agent's"
    yield Explain(pod, "NoSuchOrder", f"{words}; order again, and name that")


def _suffices(lease: Object, ask: Ask) -> bool:
    devices = lease["spec"]["devices"]
    share = devices[0].get("share", "")
    return share == ask.share and len(devices) >= ask.gpus
