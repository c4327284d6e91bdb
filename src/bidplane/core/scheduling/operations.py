"""What the scheduler can want done."""

from __future__ import annotations

from typing import Any

import msgspec

from bidplane.api.kinds import Kind, Object
from bidplane.core.claiming import AllocateClaim, MakeClaim, ReleaseClaim


class CreateBid(msgspec.Struct, frozen=True):
    pod: Object
    bid: dict[str, Any]


class PriceBid(msgspec.Struct, frozen=True):
    """Offer another price, as the agent's strategy has it now."""

    bid: Object
    max_price: str
    pace: str = ""  # what the strategy wants to remember with it


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


class TellGroup(msgspec.Struct, frozen=True):
    """Say in a PodGroup's status how its pods are."""

    kind: Kind
    group: Object
    status: dict[str, Any]


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


def why_waiting(pod: Object, bid: Object, lease: Object | None) -> Explain:
    status = bid.get("status") or {}
    if lease is not None and not lease.get("status", {}).get("ready", True):
        return Explain(pod, "Won", "won; waiting for the GPUs' last holder to leave", bid)
    if not status:
        return Explain(pod, "Bidding", "the bid waits for its first round", bid)
    return Explain(pod, status["reason"], status["message"], bid)
