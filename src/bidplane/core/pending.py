"""
Why a pod waits, for programs: what `bidplane.dev/pending` says. Pure.

    {"reason": "Outbid", "message": "…", "priceToWinNow": "2.31", "wallet": "41.00",
     "expectedWaitSeconds": 1260, "remedies": [{"action": "raiseMaxPrice", …}]}

`priceToWinNow` is what would have won the last round, null when no price would. Where some of
the pool is on nodes that take no pods now, `withheld` says so.
`expectedWaitSeconds` is when the bid would win by its age alone, at today's prices: waiting
raises a bid's rank. It is null when that is not enough, or nothing is known.

Prices move every second, and news that changes nothing costs a write: an explanation is
only replaced by one that `differs`.
"""

from __future__ import annotations

from typing import Any

from bidplane.api import labels
from bidplane.api.bid import BidReason
from bidplane.api.kinds import Object
from bidplane.api.money import format_credits, parse_credits
from bidplane.core.asks import gpus_asked
from bidplane.core.market.model import ONE
from bidplane.core.market.preemption import AGE_SECONDS, age

# How much of a price or a wait must change to be news: a part of twenty, a part of four.
_PRICE_PART, _WAIT_PART = 20, 4
_MINUTE = 60


def explanation(
    reason: str, message: str, bid: Object | None, *, now: float, since: float
) -> dict[str, Any]:
    """`since` is when the bid was made."""
    status = (bid or {}).get("status") or {}
    spec = (bid or {}).get("spec") or {}
    to_win: str | None = status.get("priceToWin") or None
    offer: str | None = spec.get("maxPrice")
    wallet: str | None = status.get("wallet") or None
    withheld: str = status.get("withheld", "")
    return {
        "reason": reason,
        "message": message,
        **({"withheld": withheld} if withheld else {}),
        "priceToWinNow": to_win,
        "wallet": wallet,
        "expectedWaitSeconds": _wait(reason, offer, to_win, waited=now - since),
        "remedies": _remedies(reason, offer, to_win, wallet, spec),
    }


def _wait(reason: str, offer: str | None, to_win: str | None, *, waited: float) -> int | None:
    if reason == "Bidding":
        return 1
    if reason != BidReason.OUTBID or offer is None or to_win is None:
        return None
    have, need = parse_credits(offer), parse_credits(to_win)
    stepped = int(waited) - int(waited) % _MINUTE  # as the exchange counts it
    weight = ONE + age(stepped)
    for seconds in range(stepped, AGE_SECONDS + _MINUTE, _MINUTE):
        if have * (ONE + age(seconds)) >= need * weight:
            return max(1, seconds - int(waited))
    return None


def _remedies(
    reason: str, offer: str | None, to_win: str | None, wallet: str | None, spec: Object
) -> list[dict[str, Any]]:
    raise_price = {
        "action": "raiseMaxPrice",
        "annotation": labels.MAX_PRICE,
        "value": to_win,
    }
    fewer = {"action": "askForFewerGPUs", "now": spec.get("gpus", 0)}
    wait = {"action": "wait"}
    match reason:
        case BidReason.OUTBID | BidReason.BELOW_RESERVE:
            return [*([raise_price] if to_win else []), fewer, wait]
        case BidReason.NO_FREE_BLOCK:
            return [fewer, wait]
        case BidReason.WALLET_TOO_SMALL:
            gpus = gpus_asked(spec)
            hour = format_credits(parse_credits(offer) * gpus) if offer else ""
            fund = {"action": "fundWallet", "has": wallet, "costPerHour": hour}
            return [fund, fewer, {"action": "lowerMaxPrice", "annotation": labels.MAX_PRICE}]
        case BidReason.LARGER_THAN_EVERY_DOMAIN | BidReason.NO_MACHINE_HAS_ALL:
            return [fewer]
        case BidReason.DEADLINE_PASSED:
            return [{"action": "setDeadline", "annotation": labels.DEADLINE}]
        case "AgentSuspended":
            return [{"action": "resumeAgent"}]
        case "Bidding" | "Won" | "WaitingForGang" | BidReason.DEVICE_TAKEN:
            return [wait]
    return [{"action": "changePod"}]


def differs(new: Object, old: Object | None) -> bool:
    """Whether what is new is worth a write."""
    if old is None or any(new.get(key) != old.get(key) for key in ("reason", "withheld")):
        return True
    if [r["action"] for r in new["remedies"]] != [r["action"] for r in old.get("remedies") or ()]:
        return True
    return (
        _moved(new["priceToWinNow"], old.get("priceToWinNow"))
        or _moved(new["wallet"], old.get("wallet"))
        or _waits_otherwise(new["expectedWaitSeconds"], old.get("expectedWaitSeconds"))
    )


def _moved(new: str | None, old: str | None) -> bool:
    if new is None or old is None:
        return new != old
    before = parse_credits(old)
    return abs(parse_credits(new) - before) * _PRICE_PART > before


def _waits_otherwise(new: int | None, old: int | None) -> bool:
    if new is None or old is None:
        return new != old
    return abs(new - old) * _WAIT_PART > max(old, _MINUTE)
