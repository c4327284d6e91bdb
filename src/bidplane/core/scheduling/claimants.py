"""A pod with ResourceClaims: inside what is leased, else by a bid of its own."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.api.bid import BidPhase
from bidplane.api.kinds import Object
from bidplane.core import claiming
from bidplane.core.asks import Ask
from bidplane.core.scheduling.bids import bid_for_pod
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
    lease_of,
    on_host,
    phase_of,
)


def claimant(snapshot: Snapshot, pod: Object, ask: Ask) -> Iterator[Operation]:
    """A pod with ResourceClaims: inside what is leased, else by a bid of its own."""
    if ask.gpus:
        yield Explain(
            pod,
            "BadAsk",
            "spec: the pod asks for GPUs by claims and by resources: use one of the two",
        )
        return
    bid = bid_of(snapshot, pod)
    match claiming.decide(snapshot.devices, pod, _usable_by(snapshot, bid)):
        case claiming.Bind(node=node):
            yield BindPod(pod, node)
        case claiming.Wait(reason=reason, message=message):
            yield Explain(pod, reason, message)
        case claiming.Market(bid=wanted, why=why):
            if bid is None:
                yield CreateBid(
                    pod,
                    bid_for_pod(
                        pod, ask, snapshot.max_price, wanted, instant=is_instant(snapshot, ask)
                    ),
                )
            elif phase_of(bid) == BidPhase.ENDED:
                yield DeleteBid(bid)
            elif phase_of(bid) == BidPhase.WON and _usable_by(snapshot, bid):
                yield Explain(pod, "ClaimDoesNotFit", f"{why} in what its bid has won")
            else:
                yield why_waiting(pod, bid, lease_of(snapshot, bid))
        case operations:
            yield from operations


def _usable_by(snapshot: Snapshot, bid: Object | None) -> list[str]:
    """Nodes of leases its own bid won, or one written by hand; not those a pod has as a whole."""
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
        and not lease["spec"]["devices"][0].get("share")
        and lease["spec"]["bid"]["name"] in by_hand | {mine}
    )
