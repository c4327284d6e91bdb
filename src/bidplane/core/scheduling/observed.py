"""The scheduler's snapshot of one plane, and questions about the objects in it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.agent import Strategy
from bidplane.api.kinds import Kind, Object
from bidplane.api.lease import Phase
from bidplane.api.money import parse_credits
from bidplane.api.objects import has_ended, is_deleted
from bidplane.api.reading import Bid, GPULease
from bidplane.core.bidding.asks import PodAsk, ask_of
from bidplane.core.hosting.translation import host_name
from bidplane.core.market.pricing.reserve import default_price
from bidplane.core.scheduling.podclaims import Devices


class PlaneSnapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The objects of one plane that the scheduler plans with, and its agent's settings."""

    pods: Sequence[Object]
    bids: Sequence[Bid]
    leases: Sequence[GPULease]
    nodes: Sequence[Object]
    # The host's names of bids that cannot be read; what they won is left alone.
    unreadable_bids: frozenset[str] = frozenset()
    max_price: str = ""  # the agent's, for pods without one; "": from the list price
    priority: int = 1
    list_prices: Mapping[str, int] = {}  # by pool, micro-credits
    suspended: bool = False  # the agent keeps its objects and spends nothing
    devices: Devices = Devices()
    jobs: Sequence[Object] = ()
    groups: Mapping[Kind, Sequence[Object]] = {}  # PodGroups of the kinds that its pods name
    strategy: Strategy = Strategy.MANUAL  # for the prices of its pods' bids
    now: float = 0.0

    def default_prices(self, pool: str) -> set[int]:
        """
        Return the prices that a pod without its own offers: one, or one per pool it may enter.
        """
        if self.max_price:
            return {parse_credits(self.max_price)}
        listed = [self.list_prices[pool]] if pool in self.list_prices else self.list_prices.values()
        return {default_price(self.priority, price) for price in listed}

    # Indexes: a plan looks up objects for each of hundreds of pods.

    @functools.cached_property
    def bids_by_pod(self) -> dict[str, Bid]:
        """The bids of pods, by the pod's uid."""
        by_uid: dict[str, Bid] = {}
        for bid in self.bids:
            uid = bid.labels.get(labels.POD_UID)
            if uid is not None:
                by_uid.setdefault(uid, bid)
        return by_uid

    @functools.cached_property
    def bids_by_name(self) -> dict[tuple[str, str], Bid]:
        return {(bid.namespace, bid.name): bid for bid in self.bids}

    @functools.cached_property
    def leases_by_bid(self) -> dict[str, list[GPULease]]:
        """The leases, by the host's name of the bid that won them."""
        by_bid: dict[str, list[GPULease]] = {}
        for lease in self.leases:
            by_bid.setdefault(lease.spec.bid.name, []).append(lease)
        return by_bid

    @functools.cached_property
    def nodes_by_name(self) -> dict[str, Object]:
        return {node["metadata"]["name"]: node for node in self.nodes}

    @functools.cached_property
    def used_nodes(self) -> frozenset[str]:
        """The nodes whose GPUs are used by a pod that has not ended."""
        live = (pod for pod in self.pods if is_bound(pod) and not has_ended(pod))
        return frozenset(pod["spec"]["nodeName"] for pod in live if wants_gpus(pod))

    @functools.cached_property
    def active_nodes(self) -> frozenset[str]:
        """The nodes of leases that are paid for, on which pods without GPUs may run too."""
        return frozenset(
            lease.name
            for lease in self.leases
            if lease.phase == Phase.ACTIVE and not lease.is_deleted
        )


def wants_gpus(pod: Object) -> bool:
    """Return whether a pod asks for GPUs or devices; one that cannot be read counts as asking."""
    if pod["spec"].get("resourceClaims"):
        return True
    ask = ask_or_none(pod)
    return ask is None or ask.gpus > 0


def is_pending(pod: Object) -> bool:
    """Return whether a pod waits to be scheduled."""
    return (
        not is_bound(pod)
        and not pod["spec"].get("schedulingGates")  # a gated pod is not ready to pay
        and not is_deleted(pod)
        and not has_ended(pod)
    )


def is_live_on(pod: Object, node: str) -> bool:
    """Return whether a pod is bound to the node and has not ended."""
    return pod["spec"].get("nodeName") == node and not has_ended(pod)


def is_bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName"))


def truncate_name(name: str, length: int) -> str:
    """Return the beginning of a name as a valid name: it ends in a letter or a digit."""
    return name[:length].rstrip("-.")


def bid_name(pod: Object) -> str:
    """Return the name of a pod's bid."""
    metadata = pod["metadata"]
    return f"{truncate_name(metadata['name'], 54)}-{metadata['uid'][:8]}"


def gang_bid_name(gang: str) -> str:
    return f"{gang}-gang"


def ask_or_none(pod: Object) -> PodAsk | None:
    """Return the ask of a pod; None if it cannot be read."""
    try:
        return ask_of(pod)
    except ValueError:
        return None


def bid_of(snapshot: PlaneSnapshot, pod: Object) -> Bid | None:
    """Return the bid of a pod, if it has one."""
    return snapshot.bids_by_pod.get(pod["metadata"]["uid"])


def find_bid(snapshot: PlaneSnapshot, namespace: str, name: str) -> Bid | None:
    """Return a bid by its name, unless it is deleted."""
    bid = snapshot.bids_by_name.get((namespace, name))
    return None if bid is None or bid.is_deleted else bid


def host_bid_name(bid: Bid) -> str:
    """Return a bid's name on the host."""
    return host_name(bid.namespace, bid.name)


def lease_of(snapshot: PlaneSnapshot, bid: Bid) -> GPULease | None:
    """Return the lease that a bid won; found by name, which exists before the bid's status."""
    leases = snapshot.leases_by_bid.get(host_bid_name(bid), ())
    return next((lease for lease in leases if lease.is_held), None)


def blocks_of(snapshot: PlaneSnapshot, bid: Bid) -> list[GPULease]:
    """Return the leases that a bid has won, in the order of a gang's blocks, in any phase."""
    won = bid.status.lease if bid.status is not None else ""
    leases = [
        lease
        for lease in snapshot.leases_by_bid.get(host_bid_name(bid), ())
        # A gang's next bid has the same name; its status tells which lease it won.
        if not won or lease.shows(won)
    ]
    return sorted(leases, key=lambda lease: lease.spec.part)


def is_by_hand(bid: Bid) -> bool:
    """Return whether a person or a program wrote the bid, not the scheduler."""
    return labels.POD_UID not in bid.labels and labels.GANG not in bid.labels


def is_used(snapshot: PlaneSnapshot, lease: GPULease) -> bool:
    """Return whether a pod uses the lease's GPUs."""
    return lease.name in snapshot.used_nodes


def is_available(snapshot: PlaneSnapshot, lease: GPULease) -> bool:
    """Return whether a lease's node exists, has no taints, and no pod uses its GPUs."""
    node = snapshot.nodes_by_name.get(lease.name)
    return (
        node is not None
        and not node["spec"].get("taints")
        and lease.name not in snapshot.used_nodes
    )
