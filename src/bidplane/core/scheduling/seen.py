"""What the scheduler sees of one plane, and the questions it asks about it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.agent import Strategy
from bidplane.api.kinds import Kind, Object
from bidplane.api.lease import Phase
from bidplane.core.asks import Ask, ask_of
from bidplane.core.claiming import Devices
from bidplane.core.translation import host_name

_ORDER = re.compile(r"order-[0-9a-f]{16}")  # the name an order has in place of a bid's
FINISHED = ("Succeeded", "Failed")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler sees of one plane."""

    pods: list[Object]
    bids: list[Object]
    leases: list[Object]
    nodes: list[Object]
    max_price: str  # for pods that name none
    suspended: bool = False  # the agent keeps everything and spends nothing
    devices: Devices = Devices()
    jobs: Sequence[Object] = ()
    groups: Mapping[Kind, Sequence[Object]] = {}  # PodGroups, of the kinds its pods name
    strategy: Strategy = Strategy.MANUAL  # how those bid
    hourly: int = 0  # micro-credits the agent is granted an hour
    now: float = 0.0


def phase_of(obj: Object) -> str:
    phase: str = (obj.get("status") or {}).get("phase", "")
    return phase


def is_pending(pod: Object) -> bool:
    return (
        not is_bound(pod)
        and not pod["spec"].get("schedulingGates")  # whoever gated it is not ready to pay
        and not pod["metadata"].get("deletionTimestamp")
        and phase_of(pod) not in FINISHED
    )


def is_live_on(pod: Object, node: str) -> bool:
    """Whether the pod still uses the node: bound to it, and not known to have ended."""
    return pod["spec"].get("nodeName") == node and phase_of(pod) not in FINISHED


def is_deleted(obj: Object) -> bool:
    """Whether its end was asked for; it may still be there for a while."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


def name_of(obj: Object) -> str:
    name: str = obj["metadata"]["name"]
    return name


def cut(name: str, length: int) -> str:
    """The beginning of a name, as a name: it ends in a letter or a digit."""
    return name[:length].rstrip("-.")


def bid_name(pod: Object) -> str:
    metadata = pod["metadata"]
    return f"{cut(metadata['name'], 54)}-{metadata['uid'][:8]}"


def gang_bid_name(gang: str) -> str:
    return f"{gang}-gang"


def safe_ask(pod: Object) -> Ask | None:
    try:
        return ask_of(pod)
    except ValueError:
        return None


def bid_of(snapshot: Snapshot, pod: Object) -> Object | None:
    uid = pod["metadata"]["uid"]
    for bid in snapshot.bids:
        if (bid["metadata"].get("labels") or {}).get(labels.POD_UID) == uid:
            return bid
    return None


def named_bid(snapshot: Snapshot, namespace: str, name: str) -> Object | None:
    for bid in snapshot.bids:
        metadata = bid["metadata"]
        if (metadata["namespace"], metadata["name"]) == (namespace, name):
            return None if is_deleted(bid) else bid
    return None


def on_host(bid: Object) -> str:
    return host_name(bid["metadata"]["namespace"], bid["metadata"]["name"])


def lease_of(snapshot: Snapshot, bid: Object) -> Object | None:
    """The lease a bid won. Found by name, which is there before the bid's status is."""
    name = on_host(bid)
    for lease in snapshot.leases:
        if lease["spec"]["bid"]["name"] == name and is_held(lease):
            return lease
    return None


def blocks_of(snapshot: Snapshot, bid: Object) -> list[Object]:
    """The leases a bid has won, a gang's block by block, whatever became of them."""
    name, uid = on_host(bid), (bid.get("status") or {}).get("lease", "")
    found = [
        lease
        for lease in snapshot.leases
        if lease["spec"]["bid"]["name"] == name
        # A gang's next bid has the same name: its status says which of the leases are its.
        and (not uid or lease["metadata"]["name"].startswith(uid))
    ]
    return sorted(found, key=lambda lease: lease["spec"].get("part", 0))


def is_order(name: str) -> bool:
    """Whether what is named so was bought over HTTP, without a bid."""
    return _ORDER.fullmatch(name) is not None


def is_by_hand(bid: Object) -> bool:
    return not {labels.POD_UID, labels.GANG} & set(bid["metadata"].get("labels") or {})


def is_held(lease: Object) -> bool:
    return phase_of(lease) in (Phase.PENDING, Phase.ACTIVE) and not is_deleted(lease)


def is_used(snapshot: Snapshot, lease: Object) -> bool:
    return any(is_live_on(pod, lease["metadata"]["name"]) for pod in snapshot.pods)


def can_take(snapshot: Snapshot, lease: Object) -> bool:
    name = lease["metadata"]["name"]
    node = next((node for node in snapshot.nodes if node["metadata"]["name"] == name), None)
    if node is None or node["spec"].get("taints"):
        return False
    return not any(is_live_on(pod, name) for pod in snapshot.pods)
