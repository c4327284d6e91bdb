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
from datetime import datetime
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import Strategy
from bidplane.api.bid import BidPhase
from bidplane.api.kinds import BID, Object
from bidplane.api.lease import Phase
from bidplane.api.money import GPU_WEIGHT, format_credits, parse_credits
from bidplane.core import claiming
from bidplane.core.asks import WORK_SECONDS, Ask, ask_of, memory_choices
from bidplane.core.chain import FRACTIONS, block_size
from bidplane.core.claiming import AllocateClaim, Devices, MakeClaim, ReleaseClaim
from bidplane.core.market.metering import reprice as worth_repricing
from bidplane.core.market.pacing import Offer
from bidplane.core.market.strategy import Wish, offer
from bidplane.core.translation import host_name

_FINISHED = ("Succeeded", "Failed")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler sees of one plane."""

    pods: list[Object]
    bids: list[Object]
    leases: list[Object]
    nodes: list[Object]
    max_price: str  # for pods that name none
    suspended: bool = False  # the agent keeps everything and spends nothing
    devices: Devices = Devices()
    strategy: Strategy = Strategy.MANUAL  # how those bid
    hourly: int = 0  # micro-credits the agent is granted an hour
    now: float = 0.0


class CreateBid(msgspec.Struct, frozen=True):
    pod: Object
    bid: dict[str, Any]


class PriceBid(msgspec.Struct, frozen=True):
    """Offer another price, as the agent's strategy has it now."""

    bid: Object
    max_price: str


class DeleteBid(msgspec.Struct, frozen=True):
    bid: Object


class BindPod(msgspec.Struct, frozen=True):
    pod: Object
    node: str


class ReleaseLease(msgspec.Struct, frozen=True):
    lease: Object


class Explain(msgspec.Struct, frozen=True):
    """Say on the pod why it is pending."""

    pod: Object
    reason: str
    message: str
    bid: Object | None = None  # what stands for it, if something does


Operation = (
    CreateBid
    | PriceBid
    | DeleteBid
    | BindPod
    | ReleaseLease
    | Explain
    | MakeClaim
    | AllocateClaim
    | ReleaseClaim
)


def plan(snapshot: Snapshot) -> list[Operation]:
    pending = [pod for pod in snapshot.pods if is_pending(pod)]
    if snapshot.suspended:
        return list(_suspended(snapshot, pending))
    operations: list[Operation] = list(_bids_without_pod(snapshot, pending))
    operations += claiming.releases(snapshot.devices, snapshot.pods)
    offers = _offers(snapshot, pending)
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


def is_pending(pod: Object) -> bool:
    return (
        not _is_bound(pod)
        and not pod["spec"].get("schedulingGates")  # whoever gated it is not ready to pay
        and not pod["metadata"].get("deletionTimestamp")
        and phase_of(pod) not in _FINISHED
    )


def is_live_on(pod: Object, node: str) -> bool:
    """Whether the pod still uses the node: bound to it, and not known to have ended."""
    return pod["spec"].get("nodeName") == node and phase_of(pod) not in _FINISHED


def is_deleted(obj: Object) -> bool:
    """Whether its end was asked for; it may still be there for a while."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def _is_bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


def phase_of(obj: Object) -> str:
    phase: str = (obj.get("status") or {}).get("phase", "")
    return phase


def bid_name(pod: Object) -> str:
    metadata = pod["metadata"]
    return f"{_cut(metadata['name'], 54)}-{metadata['uid'][:8]}"


def _cut(name: str, length: int) -> str:
    """The beginning of a name, as a name: it ends in a letter or a digit."""
    return name[:length].rstrip("-.")


def _pending(snapshot: Snapshot, pod: Object, offers: Mapping[str, Offer]) -> Iterator[Operation]:
    try:
        ask = ask_of(pod)
    except ValueError as error:  # a plane that does not refuse such a pod let it in
        yield Explain(pod, "BadAsk", str(error))
        return
    if pod["spec"].get("resourceClaims"):
        yield from _claimant(snapshot, pod, ask)
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
        yield from _gang_member(snapshot, pod, ask)
        return
    if ask.bid:
        yield from _guest(snapshot, pod, ask)
        return
    bid = _bid_of(snapshot, pod)
    offered = offers[pod["metadata"]["uid"]]
    if bid is None:
        if offered.price:
            yield CreateBid(pod, _bid_for(pod, ask, format_credits(offered.price)))
        else:
            yield Explain(pod, "NotBidding", f"it does not bid now: {offered.reason}")
        return
    if phase_of(bid) == BidPhase.ENDED:
        # Won, and let go of before the pod was bound. A bid wins once, so ask anew.
        yield DeleteBid(bid)
        return
    lease = _lease_of(snapshot, bid)
    if lease is not None and _can_take(snapshot, lease):
        yield BindPod(pod, lease["metadata"]["name"])
        return
    if lease is None and phase_of(bid) in ("", BidPhase.WAITING):
        yield from _bid_anew(snapshot, ask, bid, offered.price)
    yield _explain(pod, bid, lease)


def _claimant(snapshot: Snapshot, pod: Object, ask: Ask) -> Iterator[Operation]:
    """A pod with ResourceClaims: inside what is leased, else by a bid of its own."""
    if ask.gpus:
        yield Explain(
            pod,
            "BadAsk",
            "spec: the pod asks for GPUs by claims and by resources: use one of the two",
        )
        return
    bid = _bid_of(snapshot, pod)
    match claiming.decide(snapshot.devices, pod, _usable_by(snapshot, bid)):
        case claiming.Bind(node=node):
            yield BindPod(pod, node)
        case claiming.Wait(reason=reason, message=message):
            yield Explain(pod, reason, message)
        case claiming.Market(bid=wanted, why=why):
            if bid is None:
                yield CreateBid(pod, _bid_for(pod, ask, snapshot.max_price, wanted))
            elif phase_of(bid) == BidPhase.ENDED:
                yield DeleteBid(bid)
            elif phase_of(bid) == BidPhase.WON and _usable_by(snapshot, bid):
                yield Explain(pod, "ClaimDoesNotFit", f"{why} in what its bid has won")
            else:
                yield _explain(pod, bid, _lease_of(snapshot, bid))
        case operations:
            yield from operations


def _usable_by(snapshot: Snapshot, bid: Object | None) -> list[str]:
    """Nodes of leases its own bid won, or one written by hand; not those a pod has as a whole."""
    mine = _on_host(bid) if bid is not None else ""
    by_hand = {_on_host(one) for one in snapshot.bids if _is_by_hand(one)}
    whole = {
        pod["spec"].get("nodeName")
        for pod in snapshot.pods
        if not pod["spec"].get("resourceClaims") and phase_of(pod) not in _FINISHED
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
        and _is_held(lease)
        and not lease["spec"]["devices"][0].get("share")
        and lease["spec"]["bid"]["name"] in by_hand | {mine}
    )


def _is_by_hand(bid: Object) -> bool:
    return not {labels.POD_UID, labels.GANG} & set(bid["metadata"].get("labels") or {})


def is_paced(snapshot: Snapshot) -> bool:
    """Whether what its pods offer may change though nothing else does."""
    return snapshot.strategy is not Strategy.MANUAL and any(map(is_pending, snapshot.pods))


def _bid_anew(snapshot: Snapshot, ask: Ask, bid: Object, offered: int) -> Iterator[Operation]:
    if ask.max_price and bid["spec"]["maxPrice"] != ask.max_price:
        yield PriceBid(bid, ask.max_price)  # its author changed it while it waits
    if ask.max_price or snapshot.strategy is Strategy.MANUAL:
        return
    before = parse_credits(bid["spec"]["maxPrice"])
    if offered == 0:
        yield DeleteBid(bid)
    elif worth_repricing(before, offered) or (offered > before and offered == _value(snapshot)):
        yield PriceBid(bid, format_credits(offered))


def _offers(snapshot: Snapshot, pending: list[Object]) -> dict[str, Offer]:
    """
    By pod, what it bids now. One after the other, the oldest first: each counts what those
    before it may cost, and none what those after it may; so two never make way for each other.
    """
    offers: dict[str, Offer] = {}
    promised = _promised(snapshot) if snapshot.strategy is Strategy.STEADY else 0
    for pod in sorted(pending, key=lambda pod: (_created(pod), _name(pod))):
        ask = _safe_ask(pod)
        if ask is None or not ask.gpus:
            continue
        offered = _offer(snapshot, pod, ask, promised)
        offers[pod["metadata"]["uid"]] = offered
        bid = _bid_of(snapshot, pod)
        if bid is None or _lease_of(snapshot, bid) is None:  # else its lease is counted
            promised += offered.price * _weight(ask) // GPU_WEIGHT
    return offers


def _offer(snapshot: Snapshot, pod: Object, ask: Ask, promised: int) -> Offer:
    if ask.max_price:
        return Offer(price=parse_credits(ask.max_price), reason="the pod's own price")
    if snapshot.strategy is Strategy.MANUAL:
        return Offer(price=_value(snapshot), reason="the agent's price")
    wish = Wish(
        value=_value(snapshot),
        weight=_weight(ask),
        since=_milliseconds(_created(pod)) or round(1000 * snapshot.now),
        work_seconds=ask.work_seconds or WORK_SECONDS,
        deadline=_milliseconds(ask.deadline),
        hourly=snapshot.hourly,
        promised=promised,
    )
    return offer(snapshot.strategy, wish, now=round(1000 * snapshot.now))


def _created(obj: Object) -> str:
    stamp: str = obj["metadata"].get("creationTimestamp", "")
    return stamp


def _value(snapshot: Snapshot) -> int:
    return parse_credits(snapshot.max_price)


def _weight(ask: Ask) -> int:
    """56ths of a GPU; of a MIG instance at most as much as a whole one."""
    for leaf in FRACTIONS:
        if leaf.name == ask.share:
            return leaf.weight
    return GPU_WEIGHT * (block_size(ask.gpus) or ask.gpus)


def _promised(snapshot: Snapshot) -> int:
    """What the agent's leases may cost an hour, and its bids that are no single pod's."""
    total = 0
    for lease in snapshot.leases:
        if phase_of(lease) != Phase.RELEASED:
            spec = lease["spec"]
            total += parse_credits(spec["maxPrice"]) * spec.get("weight", 0) // GPU_WEIGHT
    for bid in snapshot.bids:
        marks = bid["metadata"].get("labels") or {}
        if labels.POD_UID not in marks and phase_of(bid) in ("", BidPhase.WAITING):
            spec = bid["spec"]
            gpus = (block_size(spec["gpus"]) or spec["gpus"]) * spec.get("blocks", 1)
            total += parse_credits(spec["maxPrice"]) * gpus
    return total


def _milliseconds(stamp: str) -> int:
    return round(1000 * datetime.fromisoformat(stamp).timestamp()) if stamp else 0


def _gang_member(snapshot: Snapshot, pod: Object, ask: Ask) -> Iterator[Operation]:
    namespace = pod["metadata"]["namespace"]
    members = [p for p in snapshot.pods if _gang_of(p) == (namespace, ask.gang)]
    waiting = sorted((p for p in members if is_pending(p)), key=_name)
    bid = _named_bid(snapshot, namespace, gang_bid_name(ask.gang))
    if bid is None:
        if len(waiting) < ask.gang_size:
            here = f"{len(waiting)} of the {ask.gang_size} pods of gang {ask.gang} wait"
            yield Explain(pod, "WaitingForGang", f"{here}; they are bid for together")
        elif any(_safe_ask(member) != ask for member in waiting):
            yield Explain(
                pod,
                "GangDiffers",
                f"the pods of gang {ask.gang} do not all ask for the same GPUs, price and size:"
                " make them alike",
            )
        elif pod is waiting[0]:
            yield CreateBid(pod, _gang_bid(pod, ask, snapshot.max_price))
        return
    blocks = _blocks_of(snapshot, bid)
    if phase_of(bid) == BidPhase.ENDED or (blocks and not any(map(_is_held, blocks))):
        # What it won is over, or ends. A bid wins once, so ask anew, all together.
        if pod is waiting[0]:
            yield DeleteBid(bid)
        return
    free = [lease for lease in blocks if _is_held(lease) and _can_take(snapshot, lease)]
    busy = [lease for lease in blocks if _is_used(snapshot, lease)]
    place = waiting.index(pod)
    # Bound only when every block is there: none runs before all can.
    if blocks and len(free) + len(busy) == blocks[0]["spec"].get("parts", 1) and place < len(free):
        yield BindPod(pod, free[place]["metadata"]["name"])
        return
    yield _explain(pod, bid, blocks[0] if blocks else None)


def _guest(snapshot: Snapshot, pod: Object, ask: Ask) -> Iterator[Operation]:
    """A pod that uses what a bid written by hand has won."""
    bid = _named_bid(snapshot, pod["metadata"]["namespace"], ask.bid)
    if bid is None:
        message = f"there is no Bid {ask.bid!r} in its namespace; write one, or take"
        yield Explain(pod, "NoSuchBid", f"{message} {labels.BID_NAME} from the pod")
        return
    blocks = _blocks_of(snapshot, bid)
    for lease in blocks:
        if _is_held(lease) and _can_take(snapshot, lease) and _suffices(lease, ask):
            yield BindPod(pod, lease["metadata"]["name"])
            return
    if any(map(_is_held, blocks)):
        yield Explain(pod, "LeaseInUse", f"what {ask.bid} has won is in use, or too small")
        return
    yield _explain(pod, bid, None)


def _suffices(lease: Object, ask: Ask) -> bool:
    devices = lease["spec"]["devices"]
    share = devices[0].get("share", "")
    return share == ask.share and len(devices) >= ask.gpus


def _name(obj: Object) -> str:
    name: str = obj["metadata"]["name"]
    return name


def _gang_of(pod: Object) -> tuple[str, str]:
    annotations = pod["metadata"].get("annotations") or {}
    return pod["metadata"]["namespace"], annotations.get(labels.GANG, "")


def _safe_ask(pod: Object) -> Ask | None:
    try:
        return ask_of(pod)
    except ValueError:
        return None


def gang_bid_name(gang: str) -> str:
    return f"{gang}-gang"


def _named_bid(snapshot: Snapshot, namespace: str, name: str) -> Object | None:
    for bid in snapshot.bids:
        metadata = bid["metadata"]
        if (metadata["namespace"], metadata["name"]) == (namespace, name):
            return None if is_deleted(bid) else bid
    return None


def _blocks_of(snapshot: Snapshot, bid: Object) -> list[Object]:
    """The leases a bid has won, a gang's block by block, whatever became of them."""
    name, uid = _on_host(bid), (bid.get("status") or {}).get("lease", "")
    found = [
        lease
        for lease in snapshot.leases
        if lease["spec"]["bid"]["name"] == name
        # A gang's next bid has the same name: its status says which of the leases are its.
        and (not uid or lease["metadata"]["name"].startswith(uid))
    ]
    return sorted(found, key=lambda lease: lease["spec"].get("part", 0))


def _is_held(lease: Object) -> bool:
    return phase_of(lease) in (Phase.PENDING, Phase.ACTIVE) and not is_deleted(lease)


def _is_used(snapshot: Snapshot, lease: Object) -> bool:
    return any(is_live_on(pod, lease["metadata"]["name"]) for pod in snapshot.pods)


def _explain(pod: Object, bid: Object, lease: Object | None) -> Explain:
    status = bid.get("status") or {}
    if lease is not None and not lease.get("status", {}).get("ready", True):
        return Explain(pod, "Won", "won; waiting for the GPUs' last holder to leave", bid)
    if not status:
        return Explain(pod, "Bidding", "the bid waits for its first round", bid)
    return Explain(pod, status["reason"], status["message"], bid)


def _bids_without_pod(snapshot: Snapshot, pending: list[Object]) -> Iterator[Operation]:
    """The garbage collector removes a gone pod's bid; that of one that ends is ours to end."""
    by_uid = {pod["metadata"]["uid"]: pod for pod in snapshot.pods}
    gangs = {_gang_of(pod) for pod in snapshot.pods if phase_of(pod) not in _FINISHED}
    for bid in snapshot.bids:
        marks = bid["metadata"].get("labels") or {}
        gang = marks.get(labels.GANG)
        if gang and not is_deleted(bid) and (bid["metadata"]["namespace"], gang) not in gangs:
            yield DeleteBid(bid)
        uid = marks.get(labels.POD_UID)
        if uid is None or bid["metadata"].get("deletionTimestamp"):
            continue  # written by hand: its owner ends it
        pod = by_uid.get(uid)
        if pod is None or phase_of(pod) in _FINISHED or (is_deleted(pod) and not _is_bound(pod)):
            yield DeleteBid(bid)


def _bid_of(snapshot: Snapshot, pod: Object) -> Object | None:
    uid = pod["metadata"]["uid"]
    for bid in snapshot.bids:
        if (bid["metadata"].get("labels") or {}).get(labels.POD_UID) == uid:
            return bid
    return None


def _lease_of(snapshot: Snapshot, bid: Object) -> Object | None:
    """The lease a bid won. Found by name, which is there before the bid's status is."""
    name = _on_host(bid)
    for lease in snapshot.leases:
        if (
            lease["spec"]["bid"]["name"] == name
            and phase_of(lease) in (Phase.PENDING, Phase.ACTIVE)
            and not lease["metadata"].get("deletionTimestamp")
        ):
            return lease
    return None


def _on_host(bid: Object) -> str:
    return host_name(bid["metadata"]["namespace"], bid["metadata"]["name"])


def _can_take(snapshot: Snapshot, lease: Object) -> bool:
    name = lease["metadata"]["name"]
    node = next((node for node in snapshot.nodes if node["metadata"]["name"] == name), None)
    if node is None or node["spec"].get("taints"):
        return False
    return not any(is_live_on(pod, name) for pod in snapshot.pods)


def _idle_leases(snapshot: Snapshot, pending: list[Object]) -> Iterator[Operation]:
    # By name, not by what the bid says: bids, pods and leases are read one after the
    # other, and a lease may be seen before the bid that won it.
    wanted = {host_name(pod["metadata"]["namespace"], bid_name(pod)) for pod in pending}
    wanted |= {_on_host(bid) for pod in pending if (bid := _bid_of(snapshot, pod)) is not None}
    wanted |= {
        host_name(namespace, gang_bid_name(gang))
        for namespace, gang in map(_gang_of, pending)
        if gang
    }
    by_hand = {_on_host(bid) for bid in snapshot.bids if _is_by_hand(bid)}
    # A gang is let go of as a whole: while one of its pods runs, so are all of its blocks.
    busy = {lease["spec"]["bid"]["name"] for lease in snapshot.leases if _is_used(snapshot, lease)}
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


def _bid_for(
    pod: Object, ask: Ask, max_price: str, claimed: dict[str, Any] | None = None
) -> dict[str, Any]:
    metadata = pod["metadata"]
    return {
        "apiVersion": BID.api_version,
        "kind": BID.kind,
        "metadata": {
            "name": bid_name(pod),
            "namespace": metadata["namespace"],
            "labels": {
                labels.POD_UID: metadata["uid"],
                labels.POD_NAME: _cut(metadata["name"], 63),
            },
            # The pod's end is the bid's end.
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": _bid_spec(ask, max_price)
        if claimed is None
        else _of_claim(ask, max_price, claimed),
    }


def _of_claim(ask: Ask, max_price: str, claimed: dict[str, Any]) -> dict[str, Any]:
    terms = {key: value for key, value in _bid_spec(ask, max_price).items() if key != "gpus"}
    others = [{**terms, **choice} for choice in claimed.get("otherwise") or ()]
    return {**terms, **claimed, **({"otherwise": others} if others else {})}


def _gang_bid(pod: Object, ask: Ask, max_price: str) -> dict[str, Any]:
    """One bid for all of a gang. No pod owns it: it ends when the last of them does."""
    return {
        "apiVersion": BID.api_version,
        "kind": BID.kind,
        "metadata": {
            "name": gang_bid_name(ask.gang),
            "namespace": pod["metadata"]["namespace"],
            "labels": {labels.GANG: ask.gang},
        },
        "spec": {**_bid_spec(ask, max_price), "blocks": ask.gang_size},
    }


def _bid_spec(ask: Ask, max_price: str) -> dict[str, Any]:
    """What it asks for, and on which terms it wants to have it."""
    return {
        **_shape(ask, max_price),
        **({"termSeconds": ask.term_seconds} if ask.term_seconds else {}),
        **({"urgent": True} if ask.urgent else {}),
    }


def _shape(ask: Ask, max_price: str) -> dict[str, Any]:
    if ask.memory:
        terms = _shape(msgspec.structs.replace(ask, memory=0), max_price)
        first, *others = ({**terms, **choice} for choice in memory_choices(ask.memory))
        return {**first, "otherwise": others}
    return {
        "gpus": ask.gpus,
        "maxPrice": ask.max_price or max_price,
        **({"share": ask.share} if ask.share else {}),
        **({"pool": ask.pool} if ask.pool else {}),
    }
