"""
Leases held by a program instead of a pod.

A bid that says `bidplane.dev/hold-seconds` is held by whoever wrote it, for as long as its
`bidplane.dev/hold-beat` changes at least that often. While it is held, what it wins counts as
claimed. When the beat stops, or the notice of its lease is over, the bid is ended, and with
it the lease: a program that died pays for one hold more, and for nothing after it.

How long a beat has been the same is measured by the reader's own clock, never read from the
beat, so that a wrong clock on the other side neither shortens nor stretches a hold.
"""

from __future__ import annotations

import re

import msgspec

from bidplane.api import labels
from bidplane.api.kinds import Object
from bidplane.api.lease import CLAIMED, Phase

SHORTEST, LONGEST = 5, 3600
_WHOLE = re.compile(r"[0-9]{1,4}")


class Seen(msgspec.Struct, frozen=True):
    """A beat, and when it was first seen."""

    uid: str
    beat: str
    at: float


class Keep(msgspec.Struct, frozen=True):
    look_again: float  # seconds


class End(msgspec.Struct, frozen=True):
    reason: str  # HoldExpired | NoticeOver


class Claim(msgspec.Struct, frozen=True):
    """This lease is ready and waits to be claimed."""

    lease: Object


def hold_seconds(bid: Object) -> int | None:
    """How long the bid is held without a beat; None when no program holds it."""
    text = (bid["metadata"].get("annotations") or {}).get(labels.HOLD_SECONDS)
    return int(text) if text is not None and problem(text) is None else None


def problem(text: str) -> str | None:
    if _WHOLE.fullmatch(text) and SHORTEST <= int(text) <= LONGEST:
        return None
    return (
        f"metadata.annotations[{labels.HOLD_SECONDS}]: {text!r} is not a number of seconds"
        f" from {SHORTEST} to {LONGEST}"
    )


def see(bid: Object, before: Seen | None, *, now: float) -> Seen:
    metadata = bid["metadata"]
    beat = (metadata.get("annotations") or {}).get(labels.HOLD_BEAT, "")
    if before is not None and (before.uid, before.beat) == (metadata["uid"], beat):
        return before
    return Seen(metadata["uid"], beat, now)


def decide(
    seconds: int, seen: Seen, leases: list[Object], *, now: float, reclaim_at: float | None
) -> Keep | End | Claim:
    """`leases` are the host's, of this bid; `reclaim_at` is when the first of them must be free."""
    left = seen.at + seconds - now
    if left <= 0:
        return End("HoldExpired")
    if reclaim_at is not None:
        if now >= reclaim_at:
            return End("NoticeOver")
        left = min(left, reclaim_at - now)
    for lease in leases:
        if is_claimable(lease):
            return Claim(lease)
    return Keep(left)


def is_claimable(lease: Object) -> bool:
    status = lease.get("status") or {}
    return (
        status.get("phase") == Phase.PENDING
        and status.get("ready", True)
        and not any(c["type"] == CLAIMED for c in status.get("conditions") or ())
        and not lease["metadata"].get("deletionTimestamp")
    )
