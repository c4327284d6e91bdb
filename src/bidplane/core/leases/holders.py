"""
Leases held by a program instead of a pod.

The author of a bid with `bidplane.dev/hold-seconds` holds it for as long as its
`bidplane.dev/hold-beat` changes at least that often. While it is held, its leases count as claimed.
When the beat stops, or the notice of a lease is over, the bid ends and its leases with it: a
program that died pays for one more hold period and nothing after it.

The age of a beat is measured by the reader's own clock, never read from the beat, so that a wrong
clock on the other side neither shortens nor stretches a hold.
"""

from __future__ import annotations

import re

import msgspec

from bidplane.api import labels
from bidplane.api.lease import CLAIMED, Phase
from bidplane.api.reading import Bid, GPULease

SHORTEST, LONGEST = 5, 3600
_WHOLE = re.compile(r"[0-9]{1,4}")


class LastBeat(msgspec.Struct, frozen=True):
    """A beat, and when it was first observed."""

    uid: str
    beat: str
    at: float


class Keep(msgspec.Struct, frozen=True):
    """The hold continues; it is checked again after `look_again` seconds."""

    look_again: float  # seconds


class EndHold(msgspec.Struct, frozen=True):
    """The bid must be ended."""

    reason: str  # HoldExpired | NoticeOver


class MarkClaimed(msgspec.Struct, frozen=True):
    """The lease is ready and must be claimed."""

    lease: GPULease


def hold_seconds(bid: Bid) -> int | None:
    """Return how long the bid is held without a new beat; None if no program holds it."""
    text = bid.annotations.get(labels.HOLD_SECONDS)
    return int(text) if text is not None and problem(text) is None else None


def problem(text: str) -> str | None:
    """Return why a text is not a valid number of hold seconds; None if it is."""
    if _WHOLE.fullmatch(text) and SHORTEST <= int(text) <= LONGEST:
        return None
    return (
        f"metadata.annotations[{labels.HOLD_SECONDS}]: {text!r} is not a number of seconds"
        f" from {SHORTEST} to {LONGEST}"
    )


def see(bid: Bid, previous: LastBeat | None, *, now: float) -> LastBeat:
    """Return the bid's beat with the time at which it was first observed."""
    beat = bid.annotations.get(labels.HOLD_BEAT, "")
    if previous is not None and (previous.uid, previous.beat) == (bid.uid, beat):
        return previous
    return LastBeat(bid.uid, beat, now)


def decide(
    seconds: int, beat: LastBeat, leases: list[GPULease], *, now: float, reclaim_at: float | None
) -> Keep | EndHold | MarkClaimed:
    """
    Return the next step for a held bid.

    `leases` are the host's, of this bid; `reclaim_at` is when the first of them must be free.
    """
    remaining = beat.at + seconds - now
    if remaining <= 0:
        return EndHold("HoldExpired")
    if reclaim_at is not None:
        if now >= reclaim_at:
            return EndHold("NoticeOver")
        remaining = min(remaining, reclaim_at - now)
    for lease in leases:
        if is_claimable(lease):
            return MarkClaimed(lease)
    return Keep(remaining)


def is_claimable(lease: GPULease) -> bool:
    """Return whether a lease is ready and not claimed yet."""
    return (
        lease.phase == Phase.PENDING
        and lease.is_ready
        and lease.condition(CLAIMED) is None
        and not lease.is_deleted
    )
