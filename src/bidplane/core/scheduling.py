"""
An agent's scheduler: its pods, bids and leases in; what to do next out.

Rule 1: a pending pod that asks for GPUs has exactly one bid.
Rule 2: a pod is bound to the lease its bid won, and to nothing else.
Rule 3: a lease that no pod uses, or is about to, is released.

The plan is a function of what the plane says now. Carrying out any part of it, in any
order, and planning again comes to the same end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.bid import BidPhase
from bidplane.api.kinds import BID, Object
from bidplane.api.lease import Phase
from bidplane.core.asks import Ask, ask_of
from bidplane.core.translation import host_name

_FINISHED = ("Succeeded", "Failed")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler sees of one plane."""

    pods: list[Object]
    bids: list[Object]
    leases: list[Object]
    nodes: list[Object]
    max_price: str  # for pods that name none


class CreateBid(msgspec.Struct, frozen=True):
    pod: Object
    bid: dict[str, Any]


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


Operation = CreateBid | DeleteBid | BindPod | ReleaseLease | Explain


def plan(snapshot: Snapshot) -> list[Operation]:
    pending = [pod for pod in snapshot.pods if is_pending(pod)]
    operations = list(_bids_without_pod(snapshot, pending))
    for pod in pending:
        operations.extend(_pending(snapshot, pod))
    operations.extend(_idle_leases(snapshot, pending))
    return operations


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


def _pending(snapshot: Snapshot, pod: Object) -> Iterator[Operation]:
    try:
        ask = ask_of(pod)
    except ValueError as error:  # a plane that does not refuse such a pod let it in
        yield Explain(pod, "BadAsk", str(error))
        return
    if ask.gpus == 0:
        yield Explain(
            pod,
            "NothingToBidFor",
            "the pod asks for no GPU, and this plane has no node but what it leases:"
            f" give a container resources.limits[{labels.GPU_RESOURCE}]",
        )
        return
    bid = _bid_of(snapshot, pod)
    if bid is None:
        yield CreateBid(pod, _bid_for(pod, ask, snapshot.max_price))
        return
    if phase_of(bid) == BidPhase.ENDED:
        # Won, and let go of before the pod was bound. A bid wins once, so ask anew.
        yield DeleteBid(bid)
        return
    lease = _lease_of(snapshot, bid)
    if lease is not None and _can_take(snapshot, lease):
        yield BindPod(pod, lease["metadata"]["name"])
        return
    yield _explain(pod, bid, lease)


def _explain(pod: Object, bid: Object, lease: Object | None) -> Explain:
    status = bid.get("status") or {}
    if lease is not None and not lease.get("status", {}).get("ready", True):
        return Explain(pod, "Won", "won; waiting for the GPUs' last holder to leave")
    if not status:
        return Explain(pod, "Bidding", "the bid waits for its first round")
    return Explain(pod, status["reason"], status["message"])


def _bids_without_pod(snapshot: Snapshot, pending: list[Object]) -> Iterator[Operation]:
    """The garbage collector removes a gone pod's bid; that of one that ends is ours to end."""
    by_uid = {pod["metadata"]["uid"]: pod for pod in snapshot.pods}
    for bid in snapshot.bids:
        uid = (bid["metadata"].get("labels") or {}).get(labels.POD_UID)
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
    by_hand = {
        _on_host(bid)
        for bid in snapshot.bids
        if labels.POD_UID not in (bid["metadata"].get("labels") or {})
    }
    for lease in snapshot.leases:
        name = lease["metadata"]["name"]
        if (
            lease["metadata"].get("deletionTimestamp")
            # Without a phase it was only just made, and says nothing yet.
            or phase_of(lease) in ("", Phase.RELEASED)
            or lease["spec"]["bid"]["name"] in wanted
            or lease["spec"]["bid"]["name"] in by_hand
            or any(is_live_on(pod, name) for pod in snapshot.pods)
        ):
            continue
        yield ReleaseLease(lease)


def _bid_for(pod: Object, ask: Ask, max_price: str) -> dict[str, Any]:
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
        "spec": {
            "gpus": ask.gpus,
            "maxPrice": ask.max_price or max_price,
            **({"pool": ask.pool} if ask.pool else {}),
        },
    }
