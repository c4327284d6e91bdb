"""
The rent that a running lease owes so far.

A meter counts price × weight × seconds, exactly, through changes of price; weight is in
fractions of a GPU in which every part and MIG's sevenths are whole (`GPU_WEIGHT`). It becomes
micro-credits only when it is read. So the sum of all bills is the total rounded up
once, however often the price changed or the bill was settled, and however small the share.
"""

from __future__ import annotations

from typing import NamedTuple

from bidplane.api.money import GPU_WEIGHT, SECONDS_PER_HOUR

MINIMUM_SECONDS = 10  # charged even if the lease is given back at once
# A price is written down at an epoch's end, and between only when it has moved by more
# than this part of itself: a price that drifts each second is not worth a write each second.
REPRICE_PART = 32


MICRO_CREDIT = GPU_WEIGHT * SECONDS_PER_HOUR  # of what a meter counts


class Meter(NamedTuple):
    metered: int  # price × weight × seconds since the last bill; below zero: paid ahead
    until: int  # milliseconds: time up to here is counted

    def run(self, to: int, *, price: int, weight: int) -> Meter:
        """The meter at `to`. A second that has started is counted whole."""
        seconds = max(0, -(-(to - self.until) // 1000))
        return Meter(self.metered + price * weight * seconds, self.until + 1000 * seconds)

    @property
    def balance(self) -> int:
        """Micro-credits owed, rounded up; below zero, what is still paid ahead."""
        return -(-self.metered // MICRO_CREDIT)

    @property
    def due(self) -> int:
        return max(0, self.balance)

    def billed(self, amount: int) -> Meter:
        """The meter after `amount` was billed. What rounding took too much is carried as credit."""
        return Meter(self.metered - amount * MICRO_CREDIT, self.until)


def cover_seconds(epoch_seconds: int, notice_seconds: int) -> int:
    """
    The time that a hold lasts at the highest price: an epoch, and always the notice with two rounds
    to spare, so that rent during the notice is held before the notice is given.
    """
    return max(epoch_seconds, reserve_seconds(notice_seconds) + 2, MINIMUM_SECONDS)


def reserve_seconds(notice_seconds: int) -> int:
    """The time that a hold must still cover: the notice and one late round."""
    return notice_seconds + 2


def charged_price(*, stay: int, win: int, most: int, in_first_epoch: bool) -> int:
    """
    The price time is charged at: what staying costs in this round; in the first epoch
    never above what was won at, and never above the bid.
    """
    return min(stay, most, win) if in_first_epoch else min(stay, most)


def reprice(now: int, new: int) -> bool:
    """Return True if a price moved enough within an epoch to be recorded."""
    return abs(new - now) * REPRICE_PART > now
