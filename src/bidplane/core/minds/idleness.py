"""
Leases that are held and do nothing: since when, why they count as idle, what that has cost.

No single signal shows it. The GPUs' counters must be idle over a whole window of the pool
(`core/leases/idle`), or no pod is on the lease. Counters that do not report make nothing idle.
"""

from __future__ import annotations

from bidplane.api.money import SECONDS_PER_HOUR, format_credits
from bidplane.api.times import parse_or_zero
from bidplane.core.gate.fleet import FleetLease


def idle_seconds(lease: FleetLease, now: float) -> float:
    """Return for how long a lease's GPUs have done nothing; 0 while they work or are unknown."""
    return _elapsed(lease.idle_since, now)


def waste_seconds(lease: FleetLease, now: float) -> float:
    """Return for how long a lease has been idle by either signal; 0 if it is not."""
    return max(idle_seconds(lease, now), _elapsed(lease.unused_since, now))


def waste_cost(lease: FleetLease, now: float) -> int:
    """Return the micro-credits that a lease has cost since it is idle, at its rent now."""
    return round(lease.rent * waste_seconds(lease, now) / SECONDS_PER_HOUR)


def idle_evidence(lease: FleetLease, now: float) -> tuple[str, ...]:
    """Return why a lease counts as idle, and what that costs."""
    lines: list[str] = []
    if lease.idle_since:
        lines.append(f"GPU counters: no work since {lease.idle_since}")
    if lease.unused_since:
        lines.append(f"no pod is on it since {lease.unused_since}")
    if lines:
        lines.append(
            f"cost since then: {format_credits(waste_cost(lease, now))} credits at"
            f" {format_credits(lease.rent)} credits per hour"
        )
    return tuple(lines)


def _elapsed(since: str, now: float) -> float:
    moment = parse_or_zero(since) if since else 0
    return max(0.0, now - moment) if moment else 0.0
