"""
Leases that are held and do nothing: since when, why they count as idle, what that has cost.

No single signal shows it, so they are joined: an Endpoint's requests, its application's own queue,
the GPUs' counters over a whole window of the pool (`core/leases/idle`), and whether the owner has a
pod on it. Counters that do not report make nothing idle, and neither does a service with a request
that waits or is in flight. Where requests or the queue are not known, it is in doubt.
"""

from __future__ import annotations

import msgspec

from bidplane.api.money import SECONDS_PER_HOUR, format_credits
from bidplane.api.times import parse_or_zero
from bidplane.core.gate.fleet import FleetEndpoint, FleetLease, FleetState
from bidplane.core.leases.idle import BUSY_PERCENT

_QUIET_SECONDS = 60.0  # without a request: the next one may be on its way
_MOST_PODS = 3  # that are named
_MOST_REASON = 200  # characters of what an application answered


class Idleness(msgspec.Struct, frozen=True, kw_only=True):
    """The signals about one lease, joined."""

    seconds: float  # for so long it has done nothing, as far as is known; 0: it is in use
    doubt: str = ""  # why that is not certain
    signals: tuple[str, ...] = ()  # each that was joined, with what it says

    @property
    def is_idle(self) -> bool:
        return self.seconds > 0 and not self.doubt


def service_of(lease: FleetLease, fleet: FleetState) -> FleetEndpoint | None:
    """Return the Endpoint whose pods are on a lease."""
    for endpoint in fleet.endpoints:
        if endpoint.agent == lease.agent and lease.name in endpoint.leases:
            return endpoint
    return None


def counter_seconds(lease: FleetLease, now: float) -> float:
    """Return for how long a lease's GPUs have done nothing; 0 while they work or are unknown."""
    return _elapsed(lease.idle_since, now)


def idleness_of(lease: FleetLease, fleet: FleetState, now: float) -> Idleness:
    """Join all that is known of a lease's use."""
    service = service_of(lease, fleet)
    seconds = max(counter_seconds(lease, now), _elapsed(lease.unused_since, now))
    common = (_counters(lease), _owner(lease, fleet))
    busy = _busy_now(lease)
    if service is None:
        return Idleness(
            seconds=seconds, doubt=busy, signals=("requests: it serves no Endpoint", *common)
        )
    signals = (_requests(service), queue_signal(service), *common)
    if service.queue:
        return Idleness(seconds=0.0, signals=signals)
    if service.queue is None:
        return Idleness(seconds=seconds, doubt=_requests(service), signals=signals)
    unused = _elapsed(service.last_request, now)
    if unused >= _QUIET_SECONDS:
        seconds = max(seconds, unused)
    return Idleness(seconds=seconds, doubt=service.own_work[:_MOST_REASON] or busy, signals=signals)


def idle_cost(lease: FleetLease, seconds: float) -> int:
    """Return the micro-credits that a lease costs in so many seconds, at its rent now."""
    return round(lease.rent * seconds / SECONDS_PER_HOUR)


def cost_evidence(lease: FleetLease, seconds: float) -> str:
    return (
        f"cost since then: {format_credits(idle_cost(lease, seconds))} credits at"
        f" {format_credits(lease.rent)} credits per hour"
    )


def queue_signal(service: FleetEndpoint) -> str:
    """Return what is known of the work that an Endpoint's application has of its own."""
    if not service.own_queue:
        return "application's queue: no spec.idle, so requests are all its work"
    if service.own_work:
        return f"application's queue: {service.own_work[:_MOST_REASON]}"
    return "application's queue: empty when it was asked, before it slept"


def _requests(service: FleetEndpoint) -> str:
    subject = f"requests of Endpoint {service.service or service.name}"
    if service.queue is None:
        cause = "warmPath is direct" if service.past_us else "no activator reports"
        return f"{subject}: unknown, {cause}"
    if service.queue:
        return f"{subject}: {service.holds} wait, {service.in_flight} are in flight"
    last = f"the last was at {service.last_request}" if service.last_request else "there was none"
    return f"{subject}: none waits or is in flight; {last}"


def _busy_now(lease: FleetLease) -> str:
    """Return that its GPUs work; "" if they do not, or are idle over a window but for a moment."""
    if lease.idle_since or lease.busy_percent is None or lease.busy_percent < BUSY_PERCENT:
        return ""
    return f"GpuBusy: a GPU works {lease.busy_percent:.0f} % of the time"


def _counters(lease: FleetLease) -> str:
    if lease.idle_since:
        return f"GPU counters: no work since {lease.idle_since}"
    if lease.busy_percent is not None:
        return f"GPU counters: no whole window without work; {lease.busy_percent:.0f} % now"
    return "GPU counters: no whole window without work, or no report"


def _owner(lease: FleetLease, fleet: FleetState) -> str:
    pods = [pod.name for pod in fleet.pods if pod.agent == lease.agent and pod.lease == lease.name]
    owner = f"owner: agent {lease.agent}"
    if lease.agent not in {agent.name for agent in fleet.agents}:
        owner += ", which is gone"
    if pods:
        more = f" and {len(pods) - _MOST_PODS} more" if len(pods) > _MOST_PODS else ""
        return f"{owner}; on it: pod {', '.join(pods[:_MOST_PODS])}{more}"
    since = f" since {lease.unused_since}" if lease.unused_since else ""
    return f"{owner}; no pod is on it{since}"


def _elapsed(since: str, now: float) -> float:
    moment = parse_or_zero(since) if since else 0
    return max(0.0, now - moment) if moment else 0.0
