"""Why a bid lost, in one sentence an agent can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bidplane.api.bid import BidReason
from bidplane.api.money import format_credits
from bidplane.core.market.model import Ask, Lost, Won

_ONE_LOT: Mapping[str, int] = {}


def explain(loss: Lost) -> str:
    said = _explain(loss)
    return f"{said} ({loss.withheld})" if loss.withheld else said


def _explain(loss: Lost) -> str:
    offered = format_credits(loss.price)
    to_win = "" if loss.price_to_win is None else format_credits(loss.price_to_win)
    block = _gpus(loss.gpus, loss.share) if loss.share else f"block of {_gpus(loss.gpus)}"
    if loss.by_lot and loss.reason in _OF_SEVERAL:
        return _of_several(loss, offered, to_win)
    match loss.reason:
        case BidReason.OUTBID:
            return f"{offered} was not enough; {to_win} would have won"
        case BidReason.BELOW_RESERVE if to_win:
            return f"{offered} is below what {loss.lot} sells for; {to_win} would have won"
        case BidReason.BELOW_RESERVE:
            return (
                f"{offered} is below what {loss.lot} sells for, and no price would have won now:"
                f" no {block} can be freed"
            )
        case BidReason.NO_FREE_BLOCK:
            return (
                f"no price would have won now: no {block} in {loss.lot} is free"
                " or can be freed; the bid stands"
            )
        case BidReason.WALLET_TOO_SMALL:
            return (
                f"the wallet is {format_credits(loss.short)} credits short of what this bid must"
                " hold; fund it, bid less, or wait for its refill"
            )
        case BidReason.LARGER_THAN_EVERY_DOMAIN:
            return (
                "no link domain is that large"
                f" (blocks of up to {_gpus(loss.largest)} are sold, each inside one domain);"
                " ask for less"
            )
        case BidReason.NO_MACHINE_HAS_ALL:
            return (
                "no machine has all of what it asks for, which must be in one; ask for less, or"
                " for other GPUs"
            )
        case BidReason.CONSTRAINT_NOT_SOLD:
            return NO_WHOLE_DOMAIN
        case BidReason.SHAPE_NOT_SOLD:
            return "the pool does not sell GPUs in that part; ask for whole GPUs, or another pool"
        case BidReason.NO_SUCH_POOL:
            return "there is no such pool; name another, or none to let the exchange choose"
        case BidReason.NO_DEVICES:
            return "nothing is for sale there yet: no node has published a device for the pool"
        case reason:
            return str(reason)


_OF_SEVERAL = (BidReason.OUTBID, BidReason.BELOW_RESERVE, BidReason.NO_FREE_BLOCK)


def _of_several(loss: Lost, offered: str, to_win: str) -> str:
    """Of a bid for GPUs of several lots, or for several in one machine: all of them or none."""
    one = " in one machine" if loss.one_node else ""
    all_of_it = f"{_each(loss.by_lot)}{one}, all or none"
    taken = _each({lot: loss.by_lot[lot] for lot in loss.missing})
    if loss.reason is BidReason.BELOW_RESERVE:
        less = f"{offered} is below what {_listed(list(loss.by_lot))} sell for together"
        return (
            f"{less}; {to_win} would have won" if to_win else f"{less}, and {taken} cannot be had"
        )
    if to_win:
        not_enough = f"{offered} was not enough for {all_of_it}: {taken} went to others"
        return f"{not_enough}; {to_win} would have won"
    return f"no price would have won {all_of_it}, now: {taken} cannot be freed; the bid stands"


def _each(by_lot: Mapping[str, int]) -> str:
    return _listed([f"{_gpus(count)} in {lot}" for lot, count in by_lot.items()])


def _listed(words: Sequence[str]) -> str:
    return " and ".join((*([", ".join(words[:-1])] if words[:-1] else ()), *words[-1:]))


def where(one: Won | Lost) -> str:
    """The lot; or all of them."""
    return " + ".join(one.by_lot) or one.lot


def explained_win(ask: Ask, won: Won) -> str:
    return explain_win(ask.asked, won.gpus, won.price, won.lot, won.share, by_lot=won.by_lot)


NO_WHOLE_DOMAIN = (
    "wholeDomain: its link domains are not of one size, or none that it sells as a block; ask for a"
    " number of GPUs, or the pool's owner to add that size to its chain"
)


def explain_win(
    asked: int,
    sold: int,
    price: int,
    lot: str,
    share: str = "",
    *,
    by_lot: Mapping[str, int] = _ONE_LOT,
) -> str:
    """`by_lot`: of several lots, or pools, how many of each."""
    surplus = f" (asked for {asked})" if asked and sold != asked else ""
    what = _each(by_lot) if by_lot else f"{_gpus(sold, share)}{surplus} in {lot}"
    also = surplus if by_lot else ""
    return f"won {what}{also} at {format_credits(price)} per GPU-hour"


IDLE = "idle: no incumbent weight"
_BREACHED = "breached: a device of it, or its node, is gone; no rent runs, giving it back is free"


def explain_standing(*, idle: bool, breached: bool) -> str:
    """What there is to say of a running lease; "" of one that is as it should be."""
    return "; ".join(filter(None, (_BREACHED if breached else "", IDLE if idle else "")))


def explain_move(gpus: int, price: int, lot: str) -> str:
    """Of what was kept for who made room for another."""
    what = f"{_gpus(gpus)} in {lot}, kept for it when its lease was moved"
    return f"goes on with {what}, at {format_credits(price)} per GPU-hour"


def explain_sale(sold: int, price: int, lot: str, share: str = "") -> str:
    """Of what was bought from a float, between two rounds."""
    bought = _gpus(sold, share)
    return f"bought {bought} in {lot} at once, at its instant price of {format_credits(price)}"


def _gpus(count: int, share: str = "") -> str:
    if share:
        times = f"{count} × " if count != 1 else ""
        return f"{times}{share} of a GPU" if "/" in share else f"{times}{share}"
    return "1 GPU" if count == 1 else f"{count} GPUs"
