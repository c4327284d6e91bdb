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
from bidplane.core.chain import block_size
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
    sold_as: int  # the GPUs that are paid for: where blocks are of 8, 4, 2 and 1, 3 are sold as 4
    linked: bool  # all in one link domain; else it is a quote for GPUs anywhere (link "any")
    price: str  # credits per GPU-hour
    cost_per_hour: str  # of all that are paid for
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
    """
    The cheapest first. As one block, in one link domain, if a pool sells blocks as large: the
    next size up of its chain. Only what is more than that everywhere is quoted as GPUs anywhere.
    """
    if gpus < 1:
        raise UserError(f"gpus must be 1 or more, not {gpus}")
    named = [price for price in prices.pools if _is_named(price, pool)]
    blocks = {price.pool: block_size(gpus, price.chain) for price in named}
    whole = any(blocks.values())
    chosen = [
        (price, blocks[price.pool] or gpus)
        for price in named
        if _sells(price, blocks[price.pool] if whole else gpus, whole)
    ]
    if not chosen:
        there = ", ".join(f"{p.pool} ({p.devices})" for p in prices.pools) or "none"
        linked = " in one link domain" if whole else ""
        what = f"pool {pool!r} has" if pool else "no pool has"
        no = "no " if pool else ""
        away = "; ".join(price.withheld for price in named if price.withheld)
        now = f" now ({away})" if away else ""
        raise UserError(f"{what} {no}{gpus} GPUs{linked}{now}; the pools are: {there}")
    available = parse_credits(wallet.available)
    found = [_quote(price, gpus, sold, available, linked=whole) for price, sold in chosen]
    return sorted(found, key=lambda quote: (parse_credits(quote.cost_per_hour), quote.pool))


def _is_named(price: PoolPrice, pool: str) -> bool:
    return pool in ("", price.pool, price.pool.partition("/")[0])


def _sells(price: PoolPrice, sold: int | None, whole: bool) -> bool:
    if sold is None:
        return False
    # Before the first round nobody knows how its GPUs are linked.
    known = bool(price.classes or price.withheld)
    return str(sold) in price.classes if whole and known else price.devices >= sold


def _quote(pool: PoolPrice, gpus: int, sold: int, available: int, *, linked: bool) -> Quote:
    free = pool.devices - pool.leased
    base = parse_credits(pool.base)
    price = max(parse_credits(pool.classes.get(str(sold), pool.price)), base)
    return Quote(
        pool=pool.pool,
        gpus=gpus,
        sold_as=sold,
        linked=linked,
        price=format_credits(price),
        cost_per_hour=format_credits(price * sold),
        free=free,
        wins_without_displacing=free >= sold and price == base,
        wallet_seconds=available * SECONDS_PER_HOUR // max(1, price * sold),
    )
