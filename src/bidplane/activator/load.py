"""
The load of one Endpoint, as its demand reports it, and the pods that are to get no new requests.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from bidplane.api.endpoint import EndpointSpec, EndpointStatus
from bidplane.core.activation import scaling
from bidplane.core.activation.joining import Load
from bidplane.http.proxy.pool import Address


class LoadMeter:
    """Counts the requests of one Endpoint."""

    def __init__(self, spec: EndpointSpec, *, now: float) -> None:
        self._window: scaling.RateWindow | None = None
        self.update(spec, now=now)

    def update(self, spec: EndpointSpec, *, now: float) -> None:
        """Take other rules; another window begins anew."""
        rate = spec.target_rate if scaling.is_scaled(spec) else None
        if rate is None:
            self._window = None
        elif self._window is None or self._window.rate != rate:
            self._window = scaling.RateWindow(rate, now=now)

    def count(self, now: float) -> None:
        """Count a request that arrives."""
        if self._window is not None:
            self._window.add(now)

    def fill(self, report: Load, concurrency: int, *, now: float) -> Load:
        """Return a demand, or an activator's report, with the load."""
        window = self._window
        return msgspec.structs.replace(
            report,
            concurrency=concurrency,
            recent=window.total(now) if window is not None else 0,
            whole_window=window is not None and window.is_whole(now),
        )


def asks_for_others(spec: EndpointSpec, reported: Load, current: Load) -> bool:
    """Tell if a load is to be reported at once: it needs other replicas, or a pod is free."""
    if current.drained != reported.drained or current.free_pods != reported.free_pods:
        return True
    return scaling.is_scaled(spec) and (
        scaling.needed(spec, current.concurrency, current.recent)
        != scaling.needed(spec, reported.concurrency, reported.recent)
    )


def follow_drain(
    report: Load, status: EndpointStatus, used: Collection[str], busy: Collection[Address]
) -> Load:
    """
    Return a demand, or an activator's report, with the pods of the drain that serve nothing now.

    `used` are the names of pods that get requests, `busy` the addresses of those in flight.
    """
    drain = status.drain
    if not drain.number or any(pod in drain.pods for pod in used):
        return report  # none, or not followed yet
    working = {b.pod for b in status.backends if (b.address, b.port) in busy}
    free = tuple(pod for pod in drain.pods if pod not in working)
    return msgspec.structs.replace(report, drained=drain.number, free_pods=free)
