"""
The explanation of why a pod waits, for programs: the annotation `bidplane.dev/pending`. Pure.

    {"reason": "Outbid", "message": "…", "priceToWinNow": "2.31", "wallet": "41.00",
     "expectedWaitSeconds": 1260, "remedies": [{"action": "raiseMaxPrice", …}]}

`priceToWinNow` is the price that would have won the last round, null when no price would.
`withheld` says that some of the pool is on nodes that take no pods now. `expectedWaitSeconds` is
when the bid would win by its age alone, at today's prices, since waiting raises a bid's rank. It
is null when age is not enough, or when prices are unknown.

Prices move every second, and each update costs a write: an explanation is replaced only by one
that `differs`.
"""

from __future__ import annotations

from typing import Any

from bidplane.api import labels
from bidplane.api.bid import BidReason
from bidplane.api.kinds import Object
from bidplane.api.money import format_credits, parse_credits
from bidplane.api.reading import Bid
from bidplane.core.market.clearing.preemption import AGE_SECONDS, age
from bidplane.core.market.model import ONE

# A price must change by a twentieth, a wait by a quarter, to be worth a write.
_PRICE_PART, _WAIT_PART = 20, 4
_MINUTE = 60


def explanation(
    reason: str, message: str, bid: Bid | None, *, now: float, since: float
) -> dict[str, Any]:
    """Return the explanation of a waiting pod; `since` is when its bid was created."""
    status = bid.status if bid is not None else None
    to_win = (status.price_to_win if status is not None else "") or None
    wallet = (status.wallet if status is not None else "") or None
    withheld = status.withheld if status is not None else ""
    offer = (bid.spec.max_price if bid is not None else "") or None
    return {
        "reason": reason,
        "message": message,
        **({"withheld": withheld} if withheld else {}),
        "priceToWinNow": to_win,
        "wallet": wallet,
        "expectedWaitSeconds": _wait(reason, offer, to_win, waited=now - since),
        "remedies": _remedies(reason, offer, to_win, wallet, bid),
    }


def _wait(reason: str, offer: str | None, to_win: str | None, *, waited: float) -> int | None:
    """Return the seconds until the bid's age makes it win; None if it never does, or is unknown."""
    if reason == "Bidding":
        return 1
    if reason != BidReason.OUTBID or offer is None or to_win is None:
        return None
    offered, required = parse_credits(offer), parse_credits(to_win)
    counted_wait = int(waited) - int(waited) % _MINUTE  # as the exchange counts it
    weight = ONE + age(counted_wait)
    for seconds in range(counted_wait, AGE_SECONDS + _MINUTE, _MINUTE):
        if offered * (ONE + age(seconds)) >= required * weight:
            return max(1, seconds - int(waited))
    return None


def _remedies(
    reason: str, offer: str | None, to_win: str | None, wallet: str | None, bid: Bid | None
) -> list[dict[str, Any]]:
    """Return the actions that could end the wait, the most promising first."""
    raise_price = {
        "action": "raiseMaxPrice",
        "annotation": labels.MAX_PRICE,
        "value": to_win,
    }
    gpus = bid.spec.asked if bid is not None else 1
    ask_for_fewer = [{"action": "askForFewerGPUs", "now": gpus}] if gpus > 1 else []
    wait = {"action": "wait"}
    match reason:
        case BidReason.OUTBID | BidReason.BELOW_RESERVE:
            return [*([raise_price] if to_win else []), *ask_for_fewer, wait]
        case BidReason.NO_FREE_BLOCK:
            return [*ask_for_fewer, wait]
        case BidReason.WALLET_TOO_SMALL:
            cost_per_hour = format_credits(parse_credits(offer) * gpus) if offer else ""
            fund_wallet = {"action": "fundWallet", "has": wallet, "costPerHour": cost_per_hour}
            return [
                fund_wallet,
                *ask_for_fewer,
                {"action": "lowerMaxPrice", "annotation": labels.MAX_PRICE},
            ]
        case BidReason.LARGER_THAN_EVERY_DOMAIN | BidReason.NO_MACHINE_HAS_ALL if ask_for_fewer:
            return ask_for_fewer
        case BidReason.DEADLINE_PASSED:
            return [{"action": "setDeadline", "annotation": labels.DEADLINE}]
        case "AgentSuspended":
            return [{"action": "resumeAgent"}]
        case "Bidding" | "Won" | "WaitingForGang" | BidReason.DEVICE_TAKEN:
            return [wait]
    return [{"action": "changePod"}]


def differs(new: Object, old: Object | None) -> bool:
    """Return whether a new explanation is different enough to be written."""
    if old is None or any(new.get(key) != old.get(key) for key in ("reason", "withheld")):
        return True
    if [r["action"] for r in new["remedies"]] != [r["action"] for r in old.get("remedies") or ()]:
        return True
    return (
        _amount_moved(new["priceToWinNow"], old.get("priceToWinNow"))
        or _amount_moved(new["wallet"], old.get("wallet"))
        or _wait_moved(new["expectedWaitSeconds"], old.get("expectedWaitSeconds"))
    )


def _amount_moved(new: str | None, old: str | None) -> bool:
    """Return whether an amount of credits changed by enough to be written."""
    if new is None or old is None:
        return new != old
    old_amount = parse_credits(old)
    return abs(parse_credits(new) - old_amount) * _PRICE_PART > old_amount


def _wait_moved(new: int | None, old: int | None) -> bool:
    """Return whether an expected wait changed by enough to be written."""
    if new is None or old is None:
        return new != old
    return abs(new - old) * _WAIT_PART > max(old, _MINUTE)
