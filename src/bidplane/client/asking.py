"""Bids from a caller's wishes, and quotes from the public prices. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Literal, TypedDict, get_args

import msgspec

from bidplane.api import labels
from bidplane.api.bid import BidSpec
from bidplane.api.http.exchange import PoolPrice, Prices, Wallet
from bidplane.api.kinds import BID, Object
from bidplane.api.manifests import manifest
from bidplane.api.money import SECONDS_PER_HOUR, format_credits, parse_credits, parse_price
from bidplane.core.devices.chain import block_size
from bidplane.errors import UserError

# The present link width: a card that fell back to x4 is not x16.
_X16 = (
    '"pcieLinkWidth" in device.attributes["bidplane.dev"] &&'
    ' device.attributes["bidplane.dev"].pcieLinkWidth == 16'
)

_NVLINK = (
    '"nvlinksPerPeer" in device.attributes["bidplane.dev"] &&'
    ' device.attributes["bidplane.dev"].nvlinksPerPeer > 0'
)

# How the GPUs of one bid are linked: all in one link domain, by any link; by NVLink; by full-width
# PCIe; or not at all.
Link = Literal["domain", "nvlink", "x16", "any"]
Price = str | float | int | Decimal


class GpuPreferences(TypedDict, total=False):
    """The optional properties of the GPUs in a bid, besides their number and price."""

    link: Link
    pool: str
    share: str
    selector: str
    deadline: str
    name: str


class Quote(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    The price that a pool would ask now. An estimate from the public prices: the round decides, and
    a winner never pays more than it offered.
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
    """Format a price as the API writes it; raises `UserError` for what is no price."""
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
) -> Object:
    """The manifest of a Bid; raises `UserError` for impossible wishes."""
    if gpus < 1:
        raise UserError(f"gpus must be 1 or more, not {gpus}")
    if link not in get_args(Link):
        raise UserError(f"link must be one of {', '.join(get_args(Link))}, not {link!r}")
    required = {"x16": _X16, "nvlink": _NVLINK if gpus > 1 else ""}.get(link, "")
    if required:
        selector = f"({selector}) && {required}" if selector else required
    is_held = hold_seconds is not None
    spec = BidSpec(
        gpus=gpus,
        max_price=price_text(max_price),
        # A block is sold inside one link domain, unless the bid says that any GPUs will do.
        spread=link == "any" and gpus > 1,
        pool=pool,
        share=share,
        selector=selector,
        deadline=deadline,
        instant=is_held and gpus == 1,  # a program waits for it, so sell it between rounds
    )
    notes = dict(annotations or {})
    if is_held:
        notes |= {labels.HOLD_SECONDS: str(hold_seconds), labels.HOLD_BEAT: "0"}
    return manifest(BID, name, spec, annotations=notes)


def quotes(prices: Prices, wallet: Wallet, *, gpus: int, pool: str = "") -> list[Quote]:
    """
    Quotes for `gpus` GPUs, the cheapest first.

    A quote is for one block in one link domain, of the chain's next size up, if any pool sells
    blocks that large; else for GPUs anywhere.
    """
    if gpus < 1:
        raise UserError(f"gpus must be 1 or more, not {gpus}")
    candidates = [price for price in prices.pools if _is_named(price, pool)]
    blocks = {price.pool: block_size(gpus, price.chain) for price in candidates}
    is_block = any(blocks.values())
    offers = [
        (price, blocks[price.pool] or gpus)
        for price in candidates
        if _sells(price, blocks[price.pool] if is_block else gpus, is_block)
    ]
    if not offers:
        pools = ", ".join(f"{p.pool} ({p.devices})" for p in prices.pools) or "none"
        in_domain = " in one link domain" if is_block else ""
        subject = f"pool {pool!r} has" if pool else "no pool has"
        negation = "no " if pool else ""
        withheld = "; ".join(price.withheld for price in candidates if price.withheld)
        when = f" now ({withheld})" if withheld else ""
        raise UserError(f"{subject} {negation}{gpus} GPUs{in_domain}{when}; the pools are: {pools}")
    available = parse_credits(wallet.available)
    quotes_by_pool = [
        _quote(price, gpus, size, available, linked=is_block) for price, size in offers
    ]
    return sorted(
        quotes_by_pool, key=lambda quote: (parse_credits(quote.cost_per_hour), quote.pool)
    )


def _is_named(price: PoolPrice, pool: str) -> bool:
    """Return True if `pool` names this price's pool, its group, or any pool ("")."""
    return pool in ("", price.pool, price.pool.partition("/")[0])


def _sells(price: PoolPrice, sold: int | None, is_block: bool) -> bool:
    """Return True if the pool sells blocks, or else separate GPUs, of that size."""
    if sold is None:
        return False
    # Before the first round the links of the pool's GPUs are unknown.
    links_known = bool(price.classes or price.withheld)
    return str(sold) in price.classes if is_block and links_known else price.devices >= sold


def _quote(pool: PoolPrice, gpus: int, sold: int, available: int, *, linked: bool) -> Quote:
    """The quote of one pool, for `sold` GPUs."""
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
