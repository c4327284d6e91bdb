"""The price that each pod offers now: its own, its agent's, or that of the agent's strategy."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bidplane.api import labels
from bidplane.api.agent import Strategy
from bidplane.api.kinds import Object
from bidplane.api.money import GPU_WEIGHT, MICRO, format_credits, parse_credits
from bidplane.api.objects import name_of
from bidplane.api.reading import Bid
from bidplane.api.shape import part_units
from bidplane.api.times import parse_rfc3339
from bidplane.core.bidding import pacing
from bidplane.core.bidding.asks import WORK_SECONDS, PodAsk
from bidplane.core.bidding.pacing import Pace, PacedOffer
from bidplane.core.bidding.strategy import StrategyInput, offer
from bidplane.core.devices.chain import CHAIN, UNIT_WEIGHT, block_size
from bidplane.core.market.pricing.metering import reprice as worth_repricing
from bidplane.core.scheduling.observed import (
    PlaneSnapshot,
    ask_or_none,
    bid_of,
    is_pending,
)
from bidplane.core.scheduling.operations import DeleteBid, Operation, PriceBid

# The exchange sets the price of their bids in each round.
_PRICED_BY_EXCHANGE = (Strategy.MANUAL, Strategy.STEADY)
_UNKNOWN_PRICE = MICRO  # while no pool is known, when no price could win


def is_paced(snapshot: PlaneSnapshot) -> bool:
    """Return whether the offers of pods may change over time while nothing else does."""
    return snapshot.strategy not in _PRICED_BY_EXCHANGE and any(map(is_pending, snapshot.pods))


def is_instant(snapshot: PlaneSnapshot, ask: PodAsk) -> bool:
    """
    Return whether a pod rather pays a pool's float price than waits for a round.

    The pod's annotation decides; else a pod that is urgent or has a fixed price does. A strategy
    that saves by waiting does not.
    """
    if ask.instant:
        return ask.instant == "true"
    saves_by_waiting = snapshot.strategy in (Strategy.THRIFTY, Strategy.DEADLINE, Strategy.PACED)
    return ask.urgent or bool(ask.max_price) or not saves_by_waiting


def offers_of(snapshot: PlaneSnapshot, pending: list[Object]) -> dict[str, PacedOffer]:
    """
    Return, by pod, the offer that it makes now.

    Pods are taken one after the other, the oldest first.
    """
    offers: dict[str, PacedOffer] = {}
    for pod in sorted(pending, key=lambda pod: (_creation_stamp(pod), name_of(pod))):
        ask = ask_or_none(pod)
        if ask is None or not ask.gpus:
            continue
        offers[pod["metadata"]["uid"]] = _offer_of(snapshot, pod, ask)
    return offers


def reprice_bid(
    snapshot: PlaneSnapshot, ask: PodAsk, bid: Bid, offer_now: PacedOffer
) -> Iterator[Operation]:
    """Yield the new price of a waiting bid, or its deletion, where the pod's offer has changed."""
    if ask.max_price and bid.spec.max_price != ask.max_price:
        yield PriceBid(bid, ask.max_price)  # its author changed it while the pod waits
    if ask.max_price or snapshot.strategy in _PRICED_BY_EXCHANGE:
        return
    current_price, price = parse_credits(bid.spec.max_price or "0"), offer_now.price
    if price == 0:
        # The bid is the only record of a spent budget, so it stays; the exchange explains on it.
        if offer_now.reason != pacing.SPENT:
            yield DeleteBid(bid)
    elif worth_repricing(current_price, price) or (
        price > current_price and price == _gpu_hour_value(snapshot, ask)
    ):
        yield PriceBid(bid, format_credits(price), pace_text(offer_now))


def pace_text(offer_now: PacedOffer) -> str:
    """Return the state of the pod's pacing as the text of a bid's annotation; "" if it has none."""
    return msgspec.json.encode(offer_now.pace).decode() if offer_now.pace is not None else ""


def _pace_of(bid: Bid | None) -> Pace:
    """Read the state of a pod's pacing from its bid."""
    text = bid.annotations.get(labels.PACE, "") if bid is not None else ""
    try:
        return msgspec.json.decode(text, type=Pace) if text else Pace()
    except msgspec.MsgspecError:  # its owner wrote other text there
        return Pace()


def _offer_of(snapshot: PlaneSnapshot, pod: Object, ask: PodAsk) -> PacedOffer:
    """Return the offer that a pod makes now."""
    if ask.max_price:
        return PacedOffer(price=parse_credits(ask.max_price), reason="the pod's own price")
    if snapshot.strategy in _PRICED_BY_EXCHANGE:
        return PacedOffer(price=_gpu_hour_value(snapshot, ask), reason="the agent's price")
    wish = StrategyInput(
        value=_gpu_hour_value(snapshot, ask),
        weight=_weight(ask, bid_of(snapshot, pod)),
        since=_milliseconds(_creation_stamp(pod)) or round(1000 * snapshot.now),
        work_seconds=ask.work_seconds or WORK_SECONDS,
        deadline=_milliseconds(ask.deadline),
    )
    if ask.budget:
        wish = _with_budget(wish, ask, bid_of(snapshot, pod))
    return offer(snapshot.strategy, wish, now=round(1000 * snapshot.now))


def _with_budget(wish: StrategyInput, ask: PodAsk, bid: Bid | None) -> StrategyInput:
    """Return the input with the pod's budget, and its progress as the exchange reports it."""
    status = bid.status if bid is not None else None
    return msgspec.structs.replace(
        wish,
        budget=parse_credits(ask.budget),
        spent=parse_credits((status.spent if status is not None else "") or "0"),
        ran_seconds=status.ran_seconds if status is not None else 0,
        pace=_pace_of(bid),
    )


def _creation_stamp(obj: Object) -> str:
    stamp: str = obj["metadata"].get("creationTimestamp", "")
    return stamp


def _gpu_hour_value(snapshot: PlaneSnapshot, ask: PodAsk) -> int:
    """Return a GPU-hour's worth to a pod without a price: the most it offers in any pool."""
    return max(snapshot.default_prices(ask.pool), default=_UNKNOWN_PRICE)


def price_text(snapshot: PlaneSnapshot, ask: PodAsk, offer_now: PacedOffer) -> str:
    """Return the `maxPrice` of a new bid; "" where the exchange sets it, by pool or by wallet."""
    if not ask.max_price and snapshot.strategy is Strategy.STEADY:
        return ""
    if not ask.max_price and snapshot.strategy is Strategy.MANUAL:
        prices = snapshot.default_prices(ask.pool)
        return format_credits(min(prices)) if len(prices) == 1 else ""
    return format_credits(offer_now.price)


def _weight(ask: PodAsk, bid: Bid | None) -> int:
    """Return the weight of an ask; a MIG instance counts as a whole GPU."""
    if units := part_units(ask.share):
        return UNIT_WEIGHT * units
    if bid.spec.spread if bid is not None else not ask.one_link:
        return GPU_WEIGHT * ask.gpus
    blocks = bid.spec.blocks if bid is not None else 1
    return GPU_WEIGHT * _gpus_sold(ask.gpus, bid, blocks)


def _gpus_sold(gpus: int, bid: Bid | None, blocks: int = 1) -> int:
    """
    Return how many GPUs a block of `gpus` is sold as.

    The pool's chain decides, and the exchange reports it on every bid it has seen; before that, the
    default chain does.
    """
    status = bid.status if bid is not None else None
    sold = 0 if status is None or status.share_sold else status.gpus_sold // blocks
    return max(gpus, sold) if sold else block_size(gpus, CHAIN) or gpus


def _milliseconds(stamp: str) -> int:
    return round(1000 * parse_rfc3339(stamp)) if stamp else 0
