"""
Money at the win: a winner pays the compensation it caused and holds its first epoch, out of its
agent's wallet and, if it has one, its budget.

Money is taken when a bid wins, in the order of rank, so bids that lose keep nothing from others
of their agent. A winner that cannot pay is left out, and the round is cleared again without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bidplane.api.bid import BidReason
from bidplane.core.market.model import Ask

# Clearings with one bid, and those it leaves no money for, left out of each. After so many, all
# that are short are left out at once: fewer may win than could, and none without money.
CLEARINGS_MOST = 32


class Purses:
    """The money of agents, and of budgets, while winners pay."""

    def __init__(self, available: Mapping[str, int], budgets: Mapping[str, int]) -> None:
        self._available = dict(available)
        self._budgets = dict(budgets)

    def of(self, ask: Ask) -> int:
        """The most that an ask can still pay."""
        available = self._available.get(ask.agent, 0)
        return min(available, self._budgets.get(ask.budget, 0)) if ask.budget else available

    def pay(self, ask: Ask, amount: int) -> None:
        self._available[ask.agent] = self._available.get(ask.agent, 0) - amount
        if ask.budget:
            self._budgets[ask.budget] = self._budgets.get(ask.budget, 0) - amount

    def reason(self, ask: Ask, amount: int) -> BidReason:
        """The reason that `amount` cannot be paid: the wallet or the budget."""
        if self._available.get(ask.agent, 0) < amount:
            return BidReason.WALLET_TOO_SMALL
        return BidReason.BUDGET_SPENT


class Due(NamedTuple):
    """The money a winner must have: its hold for the first epoch, and compensation."""

    ask: Ask
    hold: int
    compensation: int


class Short(NamedTuple):
    """A winner that cannot pay."""

    due: Due
    reason: BidReason
    missing: int


def charge(dues: Iterable[Due], purses: Purses, *, all_at_once: bool = False) -> list[Short]:
    """
    Let winners, given in rank order, pay. Return those that must be left out: the first that is
    short, and of those after it the ones for whose hold alone its purse has too little; with
    `all_at_once`, everybody that is short.
    """
    short: list[Short] = []
    first: Ask | None = None
    for due in dues:
        ask = due.ask
        available, needed = purses.of(ask), due.hold + due.compensation
        if first is not None and not all_at_once:
            # What those in between pay is not certain; what this purse has left, at most, is.
            if ask.agent == first.agent and due.hold > available:
                short.append(Short(due, purses.reason(ask, due.hold), due.hold - available))
        elif needed <= available:
            purses.pay(ask, needed)
        else:
            first = ask
            short.append(Short(due, purses.reason(ask, needed), needed - available))
    return short
