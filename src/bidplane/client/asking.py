"""What is asked for, as a Bid; and what it would cost, from the public prices. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypedDict, get_args

import msgspec

from bidplane.api import labels
from bidplane.api.exchange import PoolPrice, Prices, Wallet
from bidplane.api.kinds import BID
from bidplane.api.money import SECONDS_PER_HOUR, format_credits, parse_credits, parse_price
from bidplane.errors import UserError

# As the lanes are trained now: a card that fell back to x4 is not x16.
_X16 = (
    '"pcieLinkWidth" in device.attributes["bidplane.dev"] &&'
    ' device.attributes["bidplane.dev"].pcieLinkWidth == 16'
)

_NVLINK = (
    '"nvlinksPerPeer" in device.attributes["bidplane.dev"] &&'
    ' device.attributes["bidplane.dev"].nvlinksPerPeer > 0'
)

# How the GPUs of one ask are joined: all of one link domain, whichever link that is; by NVLink;
# at full width; or scattered.
Link = Literal["domain", "nvlink", "x16", "any"]
Price = str | float | int | Decimal


class Wish(TypedDict, total=False):
    """What may be said of the GPUs, besides how many and for how much."""

    link: Link
    pool: str
    share: str
    selector: str
    deadline: str
    name: str


class Quote(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    What a pool would ask now. An estimate from the public prices: the round decides, and a
    winner never pays more than it offered.
    """

    pool: str
    gpus: int
    price: str  # credits per GPU-hour
    cost_per_hour: str  # of all of them
    free: int  # GPUs nobody leases; they may be in several link domains
    wins_without_displacing: bool
    wallet_seconds: int  # how long the wallet would pay for it


def price_text(price: Price) -> str:
    """As the API writes it; raises `UserError` for what is no price."""
    try:
        text = format(Decimal(str(price)).quantize(Decimal("0.000001")), "f")
        return format_credits(parse_price(text))
    except (InvalidOperation, ValueError) as error:
        raise UserError(f"{price!r} is not a price in credits per GPU-hour: {error}") from None


def bid(
    name: str,
    *,
    gpus: int,
    max_price: Price,
    link: Link = "domain",
    pool: str = "",
    share: str = "",
    selector: str = "",
    deadline: str = "",
    hold_seconds: int | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    if gpus < 1:
        raise UserError(f"gpus must be 1 or more, not {gpus}")
    if link not in get_args(Link):
        raise UserError(f"link must be one of {', '.join(get_args(Link))}, not {link!r}")
    spec: dict[str, Any] = {"gpus": gpus, "maxPrice": price_text(max_price)}
    needs = {"x16": _X16, "nvlink": _NVLINK if gpus > 1 else ""}.get(link, "")
    if needs:
        selector = f"({selector}) && {needs}" if selector else needs
    # A block is sold inside one link domain, unless the bid says that any GPUs will do.
    if link == "any" and gpus > 1:
        spec["spread"] = True
    more = {"pool": pool, "share": share, "selector": selector, "deadline": deadline}
    spec |= {field: value for field, value in more.items() if value}
    notes = dict(annotations or {})
    if hold_seconds is not None:
        if gpus == 1:
            spec["instant"] = True  # a program waits for it, as a pod does
        notes |= {labels.HOLD_SECONDS: str(hold_seconds), labels.HOLD_BEAT: "0"}
    metadata: dict[str, Any] = {"name": name, **({"annotations": notes} if notes else {})}
    return {
        "apiVersion": BID.api_version,
        "kind": BID.kind,
        "metadata": metadata,
        "spec": spec,
    }


def quotes(prices: Prices, wallet: Wallet, *, gpus: int, pool: str = "") -> list[Quote]:
    """The cheapest first."""
    if gpus < 1:
        raise UserError(f"gpus must be 1 or more, not {gpus}")
    chosen = [p for p in prices.pools if pool in ("", p.pool) and p.devices >= gpus]
    if not chosen:
        there = ", ".join(f"{p.pool} ({p.devices})" for p in prices.pools) or "none"
        what = f"pool {pool!r} has no {gpus} GPUs" if pool else f"no pool has {gpus} GPUs"
        raise UserError(f"{what}; the pools are: {there}")
    available = parse_credits(wallet.available)
    found = [_quote(p, gpus, available) for p in chosen]
    return sorted(found, key=lambda quote: (parse_credits(quote.cost_per_hour), quote.pool))


def _quote(pool: PoolPrice, gpus: int, available: int) -> Quote:
    free = pool.devices - pool.leased
    price = max(parse_credits(pool.price), parse_credits(pool.base))
    return Quote(
        pool=pool.pool,
        gpus=gpus,
        price=format_credits(price),
        cost_per_hour=format_credits(price * gpus),
        free=free,
        wins_without_displacing=free >= gpus,
        wallet_seconds=available * SECONDS_PER_HOUR // max(1, price * gpus),
    )
