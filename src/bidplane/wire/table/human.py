"""Durations as kubectl writes them: `45s`, `5m10s`, `3h7m`, `2d4h`, `3y20d`."""

from __future__ import annotations

from bidplane.api.times import parse_rfc3339

UNKNOWN = "<unknown>"


def duration(seconds: float) -> str:
    """Return a duration in at most two units, the second only while it matters."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 10:
        return _pair(minutes, "m", whole % 60, "s")
    if minutes < 3 * 60:
        return f"{minutes}m"
    hours = whole // 3600
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if hours < 192:
        return _pair(days, "d", hours % 24, "h")
    if hours < 24 * 365 * 2:
        return f"{days}d"
    if hours < 24 * 365 * 8:
        return _pair(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _pair(large: int, unit: str, small: int, small_unit: str) -> str:
    return f"{large}{unit}{small}{small_unit}" if small else f"{large}{unit}"


def age(timestamp: object, now: float) -> str:
    """Return how long ago an RFC 3339 time was."""
    then = seconds(timestamp)
    return UNKNOWN if then is None else duration(now - then)


def seconds(timestamp: object) -> float | None:
    if not isinstance(timestamp, str) or not timestamp:
        return None
    try:
        return parse_rfc3339(timestamp)
    except ValueError:
        return None
