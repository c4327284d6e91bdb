"""The operations that the scheduler can plan."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bidplane.api.kinds import Draft, Kind, Object
from bidplane.api.reading import Bid, GPULease
from bidplane.core.scheduling.podclaims import AllocateClaim, MakeClaim, ReleaseClaim


class CreateBid(msgspec.Struct, frozen=True):
    """Create a pod's bid."""

    pod: Object
    bid: Draft


class PriceBid(msgspec.Struct, frozen=True):
    """Change the price of a bid, as the agent's strategy requires now."""

    bid: Bid
    max_price: str
    pace: str = ""  # the strategy's state, stored with the bid


class DeleteBid(msgspec.Struct, frozen=True):
    """Delete a bid."""

    bid: Bid


class BindPod(msgspec.Struct, frozen=True):
    """Bind a pod to a node."""

    pod: Object
    node: str


class ReleaseLease(msgspec.Struct, frozen=True):
    """Give a lease back."""

    lease: GPULease


class Explain(msgspec.Struct, frozen=True):
    """Explain on the pod why it is pending."""

    pod: Object
    reason: str
    message: str
    bid: Bid | None = None  # the pod's or its gang's bid, if there is one


class TellGroup(msgspec.Struct, frozen=True):
    """Write the state of a PodGroup's pods into its status."""

    kind: Kind
    group: Object
    status: Mapping[str, int | str]


Operation = (
    CreateBid
    | PriceBid
    | DeleteBid
    | BindPod
    | ReleaseLease
    | Explain
    | TellGroup
    | MakeClaim
    | AllocateClaim
    | ReleaseClaim
)


def explain_waiting(pod: Object, bid: Bid, lease: GPULease | None) -> Explain:
    """Explain a pod that waits for its bid or for the GPUs it won."""
    if lease is not None and not lease.is_ready:
        return Explain(pod, "Won", "won; waiting for the GPUs' last holder to leave", bid)
    if bid.status is None:
        return Explain(pod, "Bidding", "the bid waits for its first round", bid)
    return Explain(pod, bid.status.reason.value, bid.status.message, bid)
