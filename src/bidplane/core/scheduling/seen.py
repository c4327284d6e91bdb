"""What the scheduler sees of one plane, and the questions it asks about it."""

from __future__ import annotations

import functools
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


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
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

    # Found by what is asked for: of a plane with hundreds of pods, everything is asked of each.

    @functools.cached_property
    def bids_by_pod(self) -> dict[str, Object]:
        found: dict[str, Object] = {}
        for bid in self.bids:
            uid = (bid["metadata"].get("labels") or {}).get(labels.POD_UID)
            if uid is not None:
                found.setdefault(uid, bid)
        return found

    @functools.cached_property
    def bids_by_name(self) -> dict[tuple[str, str], Object]:
        return {(bid["metadata"]["namespace"], bid["metadata"]["name"]): bid for bid in self.bids}

    @functools.cached_property
    def leases_by_bid(self) -> dict[str, list[Object]]:
        """By the bid's name on the host."""
        found: dict[str, list[Object]] = {}
        for lease in self.leases:
            found.setdefault(lease["spec"]["bid"]["name"], []).append(lease)
        return found

    @functools.cached_property
    def nodes_by_name(self) -> dict[str, Object]:
        return {node["metadata"]["name"]: node for node in self.nodes}

    @functools.cached_property
    def used_nodes(self) -> frozenset[str]:
        """The nodes on which a pod is that is not known to have ended."""
        live = (pod for pod in self.pods if is_bound(pod) and phase_of(pod) not in FINISHED)
        return frozenset(pod["spec"]["nodeName"] for pod in live)


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
    return snapshot.bids_by_pod.get(pod["metadata"]["uid"])


def named_bid(snapshot: Snapshot, namespace: str, name: str) -> Object | None:
    bid = snapshot.bids_by_name.get((namespace, name))
    return None if bid is None or is_deleted(bid) else bid


def on_host(bid: Object) -> str:
    return host_name(bid["metadata"]["namespace"], bid["metadata"]["name"])


def lease_of(snapshot: Snapshot, bid: Object) -> Object | None:
    """The lease a bid won. Found by name, which is there before the bid's status is."""
    return next(filter(is_held, snapshot.leases_by_bid.get(on_host(bid), ())), None)


def blocks_of(snapshot: Snapshot, bid: Object) -> list[Object]:
    """The leases a bid has won, a gang's block by block, whatever became of them."""
    name, uid = on_host(bid), (bid.get("status") or {}).get("lease", "")
    found = [
        lease
        for lease in snapshot.leases_by_bid.get(name, ())
        # A gang's next bid has the same name: its status says which of the leases are its.
        if not uid or lease["metadata"]["name"].startswith(uid)
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
    return lease["metadata"]["name"] in snapshot.used_nodes


def can_take(snapshot: Snapshot, lease: Object) -> bool:
    name = lease["metadata"]["name"]
    node = snapshot.nodes_by_name.get(name)
    return node is not None and not node["spec"].get("taints") and name not in snapshot.used_nodes
