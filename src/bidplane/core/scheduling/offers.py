"""What each pod offers now: its own price, its agent's, or what the agent's strategy says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from bidplane.api import labels
from bidplane.api.agent import Strategy
from bidplane.api.bid import BidPhase
from bidplane.api.kinds import Object
from bidplane.api.lease import Phase
from bidplane.api.money import GPU_WEIGHT, format_credits, parse_credits
from bidplane.core.asks import WORK_SECONDS, Ask, gpus_asked
from bidplane.core.chain import CHAIN, FRACTIONS, block_size
from bidplane.core.market import pacing
from bidplane.core.market.metering import reprice as worth_repricing
from bidplane.core.market.pacing import Offer, Pace
from bidplane.core.market.strategy import Wish, offer
from bidplane.core.scheduling.operations import DeleteBid, Operation, PriceBid
from bidplane.core.scheduling.seen import (
    Snapshot,
    bid_of,
    is_pending,
    lease_of,
    name_of,
    phase_of,
    safe_ask,
)


def is_paced(snapshot: Snapshot) -> bool:
    """Whether what its pods offer may change though nothing else does."""
    return snapshot.strategy is not Strategy.MANUAL and any(map(is_pending, snapshot.pods))


def is_instant(snapshot: Snapshot, ask: Ask) -> bool:
    """
    Whether a pod would rather pay a float's price than wait for a round: as it says itself; else
    if it is urgent, or pays a fixed price. A strategy that saves by waiting waits.
    """
    if ask.instant:
        return ask.instant == "true"
    waits = snapshot.strategy in (Strategy.THRIFTY, Strategy.DEADLINE, Strategy.PACED)
    return ask.urgent or bool(ask.max_price) or not waits


def offers_of(snapshot: Snapshot, pending: list[Object]) -> dict[str, Offer]:
    """
    By pod, what it bids now. One after the other, the oldest first: each counts what those
    before it may cost, and none what those after it may; so two never make way for each other.
    """
    offers: dict[str, Offer] = {}
    promised = _promised(snapshot) if snapshot.strategy is Strategy.STEADY else 0
    for pod in sorted(pending, key=lambda pod: (_created(pod), name_of(pod))):
        ask = safe_ask(pod)
        if ask is None or not ask.gpus:
            continue
        offered = _offer(snapshot, pod, ask, promised)
        offers[pod["metadata"]["uid"]] = offered
        bid = bid_of(snapshot, pod)
        if bid is None or lease_of(snapshot, bid) is None:  # else its lease is counted
            promised += offered.price * _weight(ask, bid) // GPU_WEIGHT
    return offers


def bid_anew(snapshot: Snapshot, ask: Ask, bid: Object, offered: Offer) -> Iterator[Operation]:
    if ask.max_price and bid["spec"]["maxPrice"] != ask.max_price:
        yield PriceBid(bid, ask.max_price)  # its author changed it while it waits
    if ask.max_price or snapshot.strategy is Strategy.MANUAL:
        return
    before, price = parse_credits(bid["spec"]["maxPrice"]), offered.price
    if price == 0:
        # A spent budget is known by the bid alone: it stands, and the exchange says why in vain.
        if offered.reason != pacing.SPENT:
            yield DeleteBid(bid)
    elif worth_repricing(before, price) or (price > before and price == _value(snapshot)):
        yield PriceBid(bid, format_credits(price), pace_text(offered))


def pace_text(offered: Offer) -> str:
    """What a Bid says of its pace, for the next look; "" if it has none."""
    return msgspec.json.encode(offered.pace).decode() if offered.pace is not None else ""


def _pace_of(bid: Object | None) -> Pace:
    text = ((bid or {}).get("metadata", {}).get("annotations") or {}).get(labels.PACE, "")
    try:
        return msgspec.json.decode(text, type=Pace) if text else Pace()
    except msgspec.MsgspecError:  # its owner wrote something else there
        return Pace()


def _offer(snapshot: Snapshot, pod: Object, ask: Ask, promised: int) -> Offer:
    if ask.max_price:
        return Offer(price=parse_credits(ask.max_price), reason="the pod's own price")
    if snapshot.strategy is Strategy.MANUAL:
        return Offer(price=_value(snapshot), reason="the agent's price")
    wish = Wish(
        value=_value(snapshot),
        weight=_weight(ask, bid_of(snapshot, pod)),
        since=_milliseconds(_created(pod)) or round(1000 * snapshot.now),
        work_seconds=ask.work_seconds or WORK_SECONDS,
        deadline=_milliseconds(ask.deadline),
        hourly=snapshot.hourly,
        promised=promised,
        **_progress(snapshot, pod, ask),
    )
    return offer(snapshot.strategy, wish, now=round(1000 * snapshot.now))


def _progress(snapshot: Snapshot, pod: Object, ask: Ask) -> dict[str, Any]:
    """What a pod with a budget has come to, as the exchange says on its bid."""
    if not ask.budget:
        return {}
    bid = bid_of(snapshot, pod)
    status = (bid or {}).get("status") or {}
    return {
        "budget": parse_credits(ask.budget),
        "spent": parse_credits(status.get("spent") or "0"),
        "ran_seconds": status.get("ranSeconds", 0),
        "pace": _pace_of(bid),
    }


def _created(obj: Object) -> str:
    stamp: str = obj["metadata"].get("creationTimestamp", "")
    return stamp


def _value(snapshot: Snapshot) -> int:
    return parse_credits(snapshot.max_price)


def _weight(ask: Ask, bid: Object | None) -> int:
    """56ths of a GPU; of a MIG instance at most as much as a whole one."""
    for leaf in FRACTIONS:
        if leaf.name == ask.share:
            return leaf.weight
    blocks = bid["spec"].get("blocks", 1) if bid else 1
    return GPU_WEIGHT * _sold(ask.gpus, bid, blocks)


def _sold(gpus: int, bid: Object | None, blocks: int = 1) -> int:
    """
    How many GPUs a block for so many is sold as. That is the pool's chain to say, and the
    exchange says it of every bid it has seen; before that, as most pools would.
    """
    status = (bid or {}).get("status") or {}
    known = 0 if status.get("shareSold") else status.get("gpusSold", 0) // blocks
    return max(gpus, known) if known else block_size(gpus, CHAIN) or gpus


def _promised(snapshot: Snapshot) -> int:
    """What the agent's leases may cost an hour, and bids that are no pod's of those that wait."""
    total = 0
    for lease in snapshot.leases:
        if phase_of(lease) != Phase.RELEASED:
            spec = lease["spec"]
            total += parse_credits(spec["maxPrice"]) * spec.get("weight", 0) // GPU_WEIGHT
    for bid in snapshot.bids:
        marks = bid["metadata"].get("labels") or {}
        of_pods = labels.POD_UID in marks or labels.GANG in marks
        if not of_pods and phase_of(bid) in ("", BidPhase.WAITING):
            spec = bid["spec"]
            blocks = spec.get("blocks", 1)
            gpus = _sold(spec["gpus"], bid, blocks) * blocks
            if spec.get("also") or spec.get("oneNode"):
                sold = (bid.get("status") or {}).get("gpusSold", 0)
                gpus = max(gpus_asked(spec), sold)
            total += parse_credits(spec["maxPrice"]) * gpus
    return total


def _milliseconds(stamp: str) -> int:
    return round(1000 * datetime.fromisoformat(stamp).timestamp()) if stamp else 0
