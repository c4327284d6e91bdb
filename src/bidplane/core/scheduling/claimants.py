"""A pod with ResourceClaims: inside what is leased, else by a bid of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bidplane.api.bid import BidPhase
from bidplane.api.kinds import Object
from bidplane.core import claiming
from bidplane.core.asks import Ask
from bidplane.core.scheduling.bids import bid_for_gang, bid_for_pod
from bidplane.core.scheduling.gangs import Alone, Seat, Stands, Together, step
from bidplane.core.scheduling.groups import Gang, Gangs
from bidplane.core.scheduling.offers import is_instant
from bidplane.core.scheduling.operations import (
    BindPod,
    CreateBid,
    DeleteBid,
    Explain,
    Operation,
    why_waiting,
)
from bidplane.core.scheduling.seen import (
    FINISHED,
    Snapshot,
    bid_of,
    is_by_hand,
    is_held,
    is_pending,
    lease_of,
    name_of,
    on_host,
    phase_of,
)


def claimant(
    snapshot: Snapshot, gangs: Gangs, pod: Object, ask: Ask, gang: Gang | None
) -> Iterator[Operation]:
    """A pod with ResourceClaims: inside what is leased, else by a bid of its own or its gang's."""
    if ask.gpus:
        yield Explain(
            pod,
            "BadAsk",
            "spec: the pod asks for GPUs by claims and by resources: use one of the two",
        )
        return
    # A claim that several pods name is on one node: nothing that a gang could be of.
    if gang is not None and claiming.is_all_its_own(pod):
        yield from _of_gang(snapshot, gangs, pod, ask, gang)
    else:
        yield from _alone(snapshot, pod, ask)


def _alone(snapshot: Snapshot, pod: Object, ask: Ask) -> Iterator[Operation]:
    bid = bid_of(snapshot, pod)
    usable = _usable_by(snapshot, bid, pod)
    match claiming.decide(snapshot.devices, pod, usable, now=snapshot.now):
        case claiming.Bind(node=node):
            yield BindPod(pod, node)
        case claiming.Wait(reason=reason, message=message):
            yield Explain(pod, reason, message)
        case claiming.Market(bid=wanted, why=why, refusals=refusals):
            if bid is None and (other := _who_bids(snapshot, pod)) is not pod:
                # A claim is one bid and one lease, however many pods share it.
                words = f"{name_of(other)} bids for the claim that they share"
                yield Explain(pod, "ClaimShared", words)
            elif bid is None:
                yield CreateBid(
                    pod,
                    bid_for_pod(
                        pod, ask, snapshot.max_price, wanted, instant=is_instant(snapshot, ask)
                    ),
                )
            elif phase_of(bid) == BidPhase.ENDED:
                yield DeleteBid(bid)
            elif phase_of(bid) == BidPhase.WON and usable:
                yield Explain(pod, "ClaimDoesNotFit", f"{why} in what its bid has won")
            else:
                yield _told(why_waiting(pod, bid, lease_of(snapshot, bid)), refusals)
        case operations:
            yield from operations


def _of_gang(
    snapshot: Snapshot, gangs: Gangs, pod: Object, ask: Ask, gang: Gang
) -> Iterator[Operation]:
    taken = claiming.nodes_taken(snapshot.devices, gangs.members(pod))
    turn = step(snapshot, gangs, pod, gang, taken=taken)
    if isinstance(turn, Alone):
        yield from _alone(snapshot, pod, ask)
        return
    shown = {one["spec"].get("nodeName") for one in snapshot.devices.slices}
    seat = [turn.node] if isinstance(turn, Seat) and turn.node in shown else []
    match claiming.decide(snapshot.devices, pod, seat, now=snapshot.now):
        case claiming.Bind(node=node):
            yield BindPod(pod, node)
        case claiming.Wait(reason=reason, message=message):
            yield Explain(pod, reason, message)
        case claiming.Market(bid=wanted, why=why, refusals=refusals):
            if isinstance(turn, Together):
                others = [
                    claiming.decide(snapshot.devices, one, (), now=snapshot.now)
                    for one in turn.members
                ]
                yield from _ask_together(pod, ask, gang, wanted, others, snapshot.max_price)
            elif isinstance(turn, Stands):
                yield _told(why_waiting(pod, turn.bid, turn.lease), refusals)
            elif seat:
                yield Explain(pod, "ClaimDoesNotFit", f"{why} in what its gang has won")
            elif isinstance(turn, list):
                yield from turn
        case operations:
            yield from operations


def _told(waiting: Explain, refusals: Mapping[str, str]) -> Explain:
    """In the claim's own words, where the market's are about a bid nobody wrote."""
    words = refusals.get(waiting.reason, waiting.message)
    return msgspec.structs.replace(waiting, message=words)


def _ask_together(
    pod: Object,
    ask: Ask,
    gang: Gang,
    wanted: dict[str, Any],
    others: Sequence[claiming.Decision],
    max_price: str,
) -> Iterator[Operation]:
    if all(isinstance(one, claiming.Market) and one.bid == wanted for one in others):
        yield CreateBid(pod, bid_for_gang(pod, gang.name, ask, max_price, len(others), wanted))
    elif all(isinstance(one, claiming.Market) for one in others):
        yield Explain(pod, "GangDiffers", f"the claims of the pods of {gang.of} are not alike")


def _who_bids(snapshot: Snapshot, pod: Object) -> Object:
    """Of the pods that wait for the same claim: who has a bid for it, else the oldest."""
    shared = claiming.shared_by(pod, filter(is_pending, snapshot.pods))
    return min(
        shared,
        key=lambda one: (
            bid_of(snapshot, one) is None,
            one["metadata"].get("creationTimestamp", ""),
            one["metadata"]["uid"],
        ),
    )


def _usable_by(snapshot: Snapshot, bid: Object | None, pod: Object) -> list[str]:
    """
    Nodes of leases its own bid won, or one written by hand, and where a claim of it has devices
    already, which others share; not those a pod has as a whole.
    """
    claimed = set(claiming.nodes_taken(snapshot.devices, [pod]).values())
    mine = on_host(bid) if bid is not None else ""
    by_hand = {on_host(one) for one in snapshot.bids if is_by_hand(one)}
    whole = {
        pod["spec"].get("nodeName")
        for pod in snapshot.pods
        if not pod["spec"].get("resourceClaims") and phase_of(pod) not in FINISHED
    }
    # A node's devices are shown a moment after it.
    shown = {one["spec"].get("nodeName") for one in snapshot.devices.slices}
    there = {
        name
        for node in snapshot.nodes
        if (name := node["metadata"]["name"]) in shown and not node["spec"].get("taints")
    }
    return sorted(
        name
        for lease in snapshot.leases
        if (name := lease["metadata"]["name"]) in there - whole
        and is_held(lease)
        and (
            name in claimed
            or lease["spec"]["bid"]["name"] == mine
            # A fraction is what its own claim asked for, and no GPU for another's; a MIG instance
            # says what it is.
            or (
                lease["spec"]["bid"]["name"] in by_hand
                and "/" not in lease["spec"]["devices"][0].get("share", "")
            )
        )
    )
