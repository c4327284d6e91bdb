"""Times as Kubernetes writes them (RFC 3339), both ways. Nothing here reads a clock."""

from __future__ import annotations

import functools
from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """Format as a metav1.Time: whole seconds, UTC."""
    return _format_seconds(int(seconds))


@functools.lru_cache(maxsize=16)  # every write needs it, mostly for the same second
def _format_seconds(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_ms(milliseconds: int) -> str:
    """Format a time of the ledger, which is in milliseconds; "" for 0: it has not happened."""
    return rfc3339(milliseconds / 1000) if milliseconds else ""


def rfc3339_micro(seconds: float) -> str:
    """Format as a metav1.MicroTime."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_rfc3339(text: str) -> float:
    """
    Return seconds since the epoch. Raise ValueError for text that is not a time, or has no zone:
    such a time means another moment on every machine.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone")
    return moment.timestamp()


def parse_or_zero(text: str) -> int:
    """Return whole seconds since the epoch; 0 for text that is not a time."""
    try:
        return int(parse_rfc3339(text))
    except ValueError:
        return 0
