"""The reason that a bid lost, in one sentence an agent can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bidplane.api import labels
from bidplane.api.bid import BidReason
from bidplane.api.money import format_credits
from bidplane.api.shape import part_units
from bidplane.core.market.model import Ask, Lost, Won
from bidplane.core.market.shapes import CONSTRAINT_NOT_SOLD

_ONE_LOT: Mapping[str, int] = {}


def explain(loss: Lost) -> str:
    message = _explain(loss)
    if loss.price_to_win is not None and loss.short and loss.reason in _PRICED:
        message += f" The wallet is {format_credits(loss.short)} short of what that takes"
        message += f"{_for_displaced(loss)}."
    if loss.price_to_win is not None and loss.withheld:
        return f"{message} ({loss.withheld})"
    return message


_PRICED = (BidReason.OUTBID, BidReason.BELOW_RESERVE)


def _for_displaced(loss: Lost) -> str:
    if not loss.compensation:
        return ""
    return (
        f", which includes {format_credits(loss.compensation)} of compensation for leases it"
        " displaces"
    )


_CENT = 10_000


def shown(price: int) -> int:
    """The price in whole cents, for people: rounded up, so that it wins; a small one as it is."""
    return price if price < 10 * _CENT else -(-price // _CENT) * _CENT


def _explain(loss: Lost) -> str:
    offered = format_credits(loss.price)
    to_win = "" if loss.price_to_win is None else format_credits(shown(loss.price_to_win))
    block = _gpus(loss.gpus, loss.share) if loss.share else f"block of {_gpus(loss.gpus)}"
    if loss.by_lot and loss.reason in _OF_SEVERAL:
        return _of_several(loss, offered, to_win)
    match loss.reason:
        case BidReason.OUTBID:
            return (
                f"Outbid: your maximum of {offered} credits per GPU-hour lost to {to_win}."
                f" To win now, {_raise_to(to_win)}."
            )
        case BidReason.BELOW_RESERVE if to_win:
            return (
                f"Your maximum of {offered} credits per GPU-hour is below what {loss.lot} sells"
                f" for. To win now, {_raise_to(to_win)}."
            )
        case BidReason.BELOW_RESERVE:
            return (
                f"Your maximum of {offered} credits per GPU-hour is below what {loss.lot} sells"
                f" for, and no price wins a {block} there now: {_in_the_way(loss)}."
            )
        case BidReason.NO_FREE_BLOCK:
            return (
                f"No price wins a {block} in {loss.lot} now: {_in_the_way(loss)}. The bid stands."
            )
        case BidReason.WALLET_TOO_SMALL:
            return (
                f"The wallet is {format_credits(loss.short)} credits short of what this bid must"
                f" have to win{_for_displaced(loss)}. Fund it, bid less, or wait for its refill."
            )
        case BidReason.BUDGET_SPENT:
            return (
                f"Its budget is {format_credits(loss.short)} credits short of what this bid must"
                f" have to win{_for_displaced(loss)}. Raise the budget, or bid less."
            )
        case BidReason.LARGER_THAN_EVERY_DOMAIN:
            return (
                "it asks for more GPUs than there are, or for more on one link than any link domain"
                f" has (blocks of up to {_gpus(loss.largest)} are sold, each inside one domain);"
                " ask for less"
            )
        case BidReason.NO_MACHINE_HAS_ALL:
            return (
                "no machine has all of what it asks for, which must be in one; ask for less, or"
                " for other GPUs"
            )
        case BidReason.CONSTRAINT_NOT_SOLD:
            return CONSTRAINT_NOT_SOLD
        case BidReason.SELECTS_NOTHING:
            return "no GPU that is sold there has so much memory; ask for less, or for other GPUs"
        case BidReason.SHAPE_NOT_SOLD:
            return "the pool does not sell GPUs in that part; ask for whole GPUs, or another pool"
        case BidReason.NO_SUCH_POOL:
            remedy = f"name one of {_listed(loss.pools)}, or" if loss.pools else "name"
            return f"there is no pool {loss.no_such_pool}; {remedy} none to let the exchange choose"
        case BidReason.NO_DEVICES:
            return "nothing is for sale there yet: no node has published a device for the pool"
        case reason:
            return str(reason)


def _raise_to(price: str) -> str:
    return f"set {labels.MAX_PRICE} to {price}"


def _in_the_way(loss: Lost) -> str:
    own = ""
    if loss.own_leases:
        names = _listed([f"lease-{id}" for id in loss.own_leases])
        own = (
            f"{names} of the same agent {'has' if len(loss.own_leases) == 1 else 'have'} the GPUs,"
            " and an agent's bids do not displace its own leases; end a lease, or mark the bid"
            f" urgent ({labels.URGENCY}: high)"
        )
    reasons = [reason for reason in (own, loss.reserved, loss.withheld) if reason]
    return "; ".join(reasons) or "its GPUs are not in service"


_OF_SEVERAL = (BidReason.OUTBID, BidReason.BELOW_RESERVE, BidReason.NO_FREE_BLOCK)


def _of_several(loss: Lost, offered: str, to_win: str) -> str:
    """
    The sentence for a bid on several lots, or for several sets in one machine: all of them or none.
    """
    in_one_machine = " in one machine" if loss.one_node else ""
    all_of_it = f"{_each(loss.by_lot)}{in_one_machine}, all or none"
    # Where leases of its own agent are in its way, no lot is short of room: all of it is named.
    unavailable = _each({lot: loss.by_lot[lot] for lot in loss.missing or loss.by_lot})
    if loss.reason is BidReason.BELOW_RESERVE:
        lots = _listed(list(loss.by_lot))
        less = f"Your maximum of {offered} credits per GPU-hour is below what {lots} sell for"
        if to_win:
            return f"{less} together. To win now, {_raise_to(to_win)}."
        return f"{less} together, and {unavailable} cannot be had: {_in_the_way(loss)}."
    if to_win:
        return (
            f"Outbid: your maximum of {offered} credits per GPU-hour for {all_of_it}, lost to"
            f" {to_win}; {unavailable} went to others. To win now, {_raise_to(to_win)}."
        )
    return (
        f"No price wins {all_of_it}, now: {unavailable} cannot be had, since {_in_the_way(loss)}."
        " The bid stands."
    )


def _each(by_lot: Mapping[str, int]) -> str:
    return _listed([f"{_gpus(count)} in {lot}" for lot, count in by_lot.items()])


def _listed(names: Sequence[str]) -> str:
    return " and ".join((*([", ".join(names[:-1])] if names[:-1] else ()), *names[-1:]))


def where(outcome: Won | Lost) -> str:
    """The lot of a won or lost ask; of a joint one, all its lots."""
    return " + ".join(outcome.by_lot) or outcome.lot


def explained_win(ask: Ask, won: Won) -> str:
    return explain_win(ask.asked, won.gpus, won.price, won.lot, won.share, by_lot=won.by_lot)


def explain_win(
    requested: int,
    sold: int,
    price: int,
    lot: str,
    share: str = "",
    *,
    by_lot: Mapping[str, int] = _ONE_LOT,
) -> str:
    """The sentence for a win. `by_lot`: of several lots, or pools, how many GPUs of each."""
    surplus = f" (asked for {requested})" if requested and sold != requested else ""
    bought = _each(by_lot) if by_lot else f"{_gpus(sold, share)}{surplus} in {lot}"
    also = surplus if by_lot else ""
    return f"won {bought}{also} at {format_credits(price)} per GPU-hour"


IDLE = "idle: no incumbent weight"
_BREACHED = "breached: a device of it, or its node, is gone; no rent runs, giving it back is free"


def explain_standing(*, idle: bool, breached: bool) -> str:
    """The remarks on a running lease; "" if nothing is wrong with it."""
    return "; ".join(filter(None, (_BREACHED if breached else "", IDLE if idle else "")))


def explain_move(gpus: int, price: int, lot: str) -> str:
    """The sentence for a lease that goes on with the devices reserved for it when it was moved."""
    devices = f"{_gpus(gpus)} in {lot}, kept for it when its lease was moved"
    return f"goes on with {devices}, at {format_credits(price)} per GPU-hour"


def explain_sale(sold: int, price: int, lot: str, share: str = "") -> str:
    """The sentence for a purchase from the float, between two rounds."""
    bought = _gpus(sold, share)
    return f"bought {bought} in {lot} at once, at its instant price of {format_credits(price)}"


def _gpus(count: int, share: str = "") -> str:
    if share:
        times = f"{count} × " if count != 1 else ""
        return f"{times}{share} of a GPU" if part_units(share) else f"{times}{share}"
    return "1 GPU" if count == 1 else f"{count} GPUs"
