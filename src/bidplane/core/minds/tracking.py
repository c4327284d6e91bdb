"""The use of Endpoints as the pilot sees it, tick by tick, counted in bins of ten minutes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from bidplane.api.times import parse_or_zero
from bidplane.core.gate.fleet import FleetEndpoint
from bidplane.core.minds.recurrence import BIN_SECONDS, KEEP_BINS, Likelihood, UseHistory

QUIET_SECONDS = 60.0  # without a request, after which use may be over
MARGIN_SECONDS = 30.0  # before use that is expected, a service is to be warm
_IN_USE = Likelihood(1.0, "it is in use")


class SavedUse(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one service, to be kept over a restart: bins since 1970."""

    first: int
    until: int  # the first bin that was not observed
    bins: tuple[int, ...] = ()
    # Of them, those in which use began, and began late; what an earlier release saved has neither.
    beginnings: tuple[int, ...] = ()
    late: tuple[int, ...] = ()


class EndpointUse:
    def __init__(self, saved: Mapping[str, SavedUse] | None = None) -> None:
        self._history = UseHistory()
        self._until: dict[str, int] = {}  # by service: the bin that is not over yet
        self._used: dict[str, set[int]] = {}  # bins with use that are not counted yet
        self._silent: dict[str, int] = {}  # the bin that began silently, after one with use
        for key, use in (saved or {}).items():
            bins, late, timed = set(use.bins), set(use.late), set(use.beginnings)
            for bin in range(use.first, use.until):
                silent = bin in late if bin in timed else None
                self._history.observe(key, bin, bin in bins, silent=silent)
            self._until[key] = use.until

    def observe(self, endpoints: Iterable[FleetEndpoint], now: float) -> bool:
        """Count what a look at the fleet shows; return True if a bin is over since the last."""
        current, is_over = _bin(now), False
        for endpoint in endpoints:
            used = self._used.setdefault(endpoint.uid, set())
            until = self._until.setdefault(endpoint.uid, current)
            last = parse_or_zero(endpoint.last_request) if endpoint.last_request else 0
            if last and _bin(last) >= until:
                used.add(min(current, _bin(last)))
            if endpoint.queue:
                used.add(current)
            for bin in range(until, current):
                silent = self._silent.get(endpoint.uid) == bin
                self._history.observe(endpoint.uid, bin, bin in used, silent=silent)
                used.discard(bin)
                is_over = True
            self._until[endpoint.uid] = max(until, current)
            if current not in used and now - current * BIN_SECONDS >= QUIET_SECONDS:
                self._silent[endpoint.uid] = current
        return is_over

    def likely(self, endpoints: Iterable[FleetEndpoint], now: float) -> dict[str, Likelihood]:
        """Return how likely each service is used once it could be warm, by its uid."""
        likelihoods: dict[str, Likelihood] = {}
        for endpoint in endpoints:
            current = _bin(now)
            target = _bin(now + endpoint.cold_start_seconds + MARGIN_SECONDS)
            if (
                endpoint.queue
                or current in self._used.get(endpoint.uid, ())
                or self._was_just_used(endpoint, now)
            ):
                likelihoods[endpoint.uid] = _IN_USE
            else:
                silent = self._silent.get(endpoint.uid) == target
                likely = self._history.likelihood(endpoint.uid, target, silent=silent)
                likelihoods[endpoint.uid] = msgspec.structs.replace(
                    likely, is_ahead=target > current
                )
        return likelihoods

    def _was_just_used(self, endpoint: FleetEndpoint, now: float) -> bool:
        """Return True in the first moments of the bin after one with use."""
        service = self._history.services.get(endpoint.uid)
        is_next = service is not None and _bin(now) - service.last <= 1
        return is_next and self._silent.get(endpoint.uid) != _bin(now)

    def saved(self) -> dict[str, SavedUse]:
        return {
            key: SavedUse(
                first=max(service.first, self._until[key] - KEEP_BINS),
                until=self._until[key],
                bins=tuple(sorted(service.bins)),
                beginnings=tuple(sorted(service.beginnings)),
                late=tuple(sorted(service.late)),
            )
            for key, service in self._history.services.items()
        }


def _bin(now: float) -> int:
    return int(now // BIN_SECONDS)
