"""
Leases that are held and do nothing: since when, why they count as idle, what that has cost.

No single signal shows it. The GPUs' counters must be idle over a whole window of the pool
(`core/leases/idle`), no pod is on the lease, or nobody has sent its service a request. Counters
that do not report make nothing idle, and neither does a service with a request that waits or is in
flight, or with a queue that is not known.
"""

from __future__ import annotations

from bidplane.api.money import SECONDS_PER_HOUR, format_credits
from bidplane.api.times import parse_or_zero
from bidplane.core.gate.fleet import FleetEndpoint, FleetLease, FleetState

_QUIET_SECONDS = 60.0  # without a request: the next one may be on its way


def service_of(lease: FleetLease, fleet: FleetState) -> FleetEndpoint | None:
    """Return the Endpoint whose pods are on a lease."""
    for endpoint in fleet.endpoints:
        if endpoint.agent == lease.agent and lease.name in endpoint.leases:
            return endpoint
    return None


def idle_seconds(lease: FleetLease, now: float, service: FleetEndpoint | None = None) -> float:
    """Return for how long a lease's GPUs have done nothing; 0 while they work or are unknown."""
    if service is not None and service.queue != 0:
        return 0.0
    return _elapsed(lease.idle_since, now)


def waste_seconds(lease: FleetLease, now: float, service: FleetEndpoint | None = None) -> float:
    """Return for how long a lease has been idle by any signal; 0 if it is not."""
    if service is None:
        return max(idle_seconds(lease, now), _elapsed(lease.unused_since, now))
    if service.queue != 0:
        return 0.0
    unused = _elapsed(service.last_request, now)
    if unused < _QUIET_SECONDS:
        unused = 0.0
    return max(idle_seconds(lease, now, service), _elapsed(lease.unused_since, now), unused)


def waste_cost(lease: FleetLease, now: float, service: FleetEndpoint | None = None) -> int:
    """Return the micro-credits that a lease has cost since it is idle, at its rent now."""
    return round(lease.rent * waste_seconds(lease, now, service) / SECONDS_PER_HOUR)


def idle_evidence(
    lease: FleetLease, now: float, service: FleetEndpoint | None = None
) -> tuple[str, ...]:
    """Return why a lease counts as idle, and what that costs."""
    lines: list[str] = []
    if lease.idle_since:
        lines.append(f"GPU counters: no work since {lease.idle_since}")
    if lease.unused_since:
        lines.append(f"no pod is on it since {lease.unused_since}")
    if service is not None and waste_seconds(lease, now, service):
        last = (
            f"the last was at {service.last_request}" if service.last_request else "there was none"
        )
        lines.append(f"Endpoint {service.service}: no request waits or is in flight; {last}")
    if lines:
        lines.append(
            f"cost since then: {format_credits(waste_cost(lease, now, service))} credits at"
            f" {format_credits(lease.rent)} credits per hour"
        )
    return tuple(lines)


def _elapsed(since: str, now: float) -> float:
    moment = parse_or_zero(since) if since else 0
    return max(0.0, now - moment) if moment else 0.0
