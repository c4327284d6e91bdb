"""
One Endpoint with its ladder: as any, but an idle one goes down rung by rung.

Where there are several activators an Endpoint has no ladder: `joined`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from bidplane.activator.applications import Applications
from bidplane.activator.endpoints import LiveEndpoint, Upstream
from bidplane.activator.ladder import LadderClimber
from bidplane.api.endpoint import Demand, EndpointStatus
from bidplane.api.idling.ladder import Rung
from bidplane.api.reading import Endpoint
from bidplane.core.activation.traffic import retry_after
from bidplane.core.idling.ladder import SHUT, Event


class LadderEndpoint(LiveEndpoint):
    """An Endpoint on its ladder."""

    def __init__(
        self,
        endpoint: Endpoint,
        pool: Upstream,
        *,
        now: Callable[[], float],
        changed: Callable[[], None],
        applications: Applications,
    ) -> None:
        status = endpoint.status or EndpointStatus()
        self.endpoint = endpoint
        self._keeps_lease = False
        self.ladder = LadderClimber(self, applications, rung=_rung_of(status), now=now)
        super().__init__(endpoint, pool, now=now, changed=changed, applications=applications)

    # The ladder's site.

    def shut(self) -> None:
        """Pass no requests on, until `reopen`."""
        self.stop()

    def reopen(self) -> None:
        """Pass requests on again, to pods that answer."""
        super().update(self.endpoint)

    def demand_pods(self, *, awake: bool, keep_lease: bool, reason: str) -> None:
        """Demand pods, or none, with or without their lease."""
        self._keeps_lease = keep_lease
        super().want(awake=awake, reason=reason)

    @property
    def busy_reason(self) -> str:
        """The reason that its application gave for not being idle."""
        return self._question.reason

    def _idleness_known(self) -> None:
        super()._idleness_known()
        self._changed()

    def report(self) -> None:
        """Write the ladder's status."""
        self._changed()

    # What it does in another way.

    def update(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.ladder.follow(is_answered=self.status.answers == self.demand.number)
        super().update(endpoint)

    def want(self, *, awake: bool, reason: str) -> None:
        if awake:
            self.ladder.handle(Event.USED, reason)
        elif self.ladder.rung is Rung.READY and not self._sleep_asked:
            self.ladder.handle(Event.IDLE)
        elif not self.ladder.is_shut or self._sleep_asked:
            self.ladder.handle(Event.GIVEN_UP, reason)
        self._sleep_asked = False

    def _next_demand(self, *, awake: bool, reason: str) -> Demand:
        demand = super()._next_demand(awake=awake, reason=reason)
        return msgspec.structs.replace(demand, keep_lease=self._keeps_lease)

    @property
    def _may_send(self) -> bool:
        return not self.ladder.is_shut

    @property
    def _is_down(self) -> bool:
        return self.ladder.is_down

    @property
    def _idle_seconds(self) -> int:
        return self.ladder.windows().ready

    def _note_use(self) -> None:
        if self._was_used and not self._in_flight and not len(self.holds):
            self.ladder.arrivals.add(self._now() - self._last_use)
        super()._note_use()

    def _opened(self) -> None:
        self.ladder.handle(Event.ANSWERED)
        super()._opened()

    def _expected_wait(self) -> int:
        since, seconds = self.ladder.rise
        if not seconds or not since:
            return super()._expected_wait()
        waited = self._now() - since
        return retry_after(max(seconds, waited * 1.2), waited)

    def wake(self) -> None:
        super().wake()
        if self.ladder.is_down:
            self.want(awake=True, reason="Asked")

    def _decide(self, now: float, loop_now: float) -> None:
        super()._decide(now, loop_now)
        if self._sleep_asked and self.ladder.rung is Rung.STOPPED:
            self.want(awake=False, reason="Asked")
        if not len(self.holds):
            self.ladder.tick()

    def leave(self) -> None:
        super().leave()
        self.ladder.close()


def _rung_of(status: EndpointStatus) -> Rung:
    """Return the rung of a service that an activator meets when it starts."""
    demand = status.demand
    if demand is None:
        return Rung.STARTING if status.phase != "Asleep" else Rung.RELEASED
    if demand.awake:
        previous = status.ladder.rung if status.ladder is not None else Rung.STARTING
        return previous if previous in SHUT else Rung.STARTING
    return Rung.STOPPED if demand.keep_lease else Rung.RELEASED
