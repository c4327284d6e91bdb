"""
One Endpoint as one of several activators serves it.

It sends and holds like a single one. But only the leader writes the demand, for all of them: the
others report what they hold, and whether they agree to a proposal to sleep; the rules are
`core.activation.joining`'s. Nothing is sent before the first report is written, so that the leader
knows of whoever sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from bidplane.activator.applications import Applications
from bidplane.activator.endpoints import REPORT_SECONDS, LiveEndpoint, Upstream
from bidplane.activator.load import asks_for_others
from bidplane.api.endpoint import ActivatorReport, Demand
from bidplane.api.reading import Endpoint
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.core.activation import joining
from bidplane.core.activation.joining import Step
from bidplane.http.proxy.request import ProxiedRequest

_ASKED = "Asked"


class ActivatorGroup(Protocol):
    """The activators, of which this is one."""

    @property
    def name(self) -> str: ...

    @property
    def leads(self) -> bool: ...

    @property
    def life(self) -> str:
        """An identifier of this process; an earlier one of its name had another."""
        ...

    @property
    def is_joined(self) -> bool:
        """True once the others can see that this one is alive."""
        ...

    def counts(self, name: str, life: str) -> bool:
        """Return False once that life of an activator is known to be over."""
        ...

    @property
    def size(self) -> int:
        """The number of activators that there are to be."""
        ...


class JoinedEndpoint(LiveEndpoint):
    """An Endpoint that other activators serve too."""

    def __init__(
        self,
        endpoint: Endpoint,
        pool: Upstream,
        group: ActivatorGroup,
        *,
        now: Callable[[], float],
        changed: Callable[[], None],
        applications: Applications,
    ) -> None:
        self._group = group
        self._is_known = False  # our first report is written
        self._written = ActivatorReport()
        self._proposed: deque[Demand] = deque(maxlen=8)  # that we wrote, or tried to write
        self._wish = 0  # the demand from which our requests are to wake it
        self._voted, self._agreed = 0, False
        super().__init__(endpoint, pool, now=now, changed=changed, applications=applications)
        changed()

    # What is read, and what is written.

    def update(self, endpoint: Endpoint) -> None:
        before, self.endpoint = self.status.demand, endpoint
        written = self.status.demand
        if written is not None and (
            not self._group.leads or joining.is_of_another(before, written, self._proposed)
        ):
            self._follow(written)
        self._answer()
        super().update(endpoint)
        self.holds.most = max(1, endpoint.spec.max_held // self._group.size)
        if self._group.leads:
            self._lead()

    def _follow(self, demand: Demand) -> None:
        """Take the demand that a leader wrote."""
        before, self.demand = self.demand, demand
        if demand.number != before.number:
            self.stop()
            self._since = parse_rfc3339(demand.since) if demand.since else self._now()
            self._pod_at, self._sleep_asked, self._wish = 0.0, False, 0
            if not demand.awake and len(self.holds):
                self._demand_wake()
        elif self._wish and self._refused_seconds():
            self._wish = 0
            for request, _ in self.holds.since():
                self.holds.remove(request)
                self._refuse_wake(request, self._refused_seconds())

    def report(self) -> ActivatorReport:
        """Return our part of the traffic, as it is now."""
        empty = ActivatorReport(
            life=self._group.life,
            last_request=self._last_request(),
            holds=len(self.holds),
            in_flight=self._used_in_flight(self._loop_now(), self._window),
            wakes=self._wish,
            answers=self._voted,
            agrees=self._agreed,
        )
        return self._loaded(empty)

    def demand_to_write(self) -> Demand | None:
        """Return the demand that a leader is to write, judged by the newest reports; or None."""
        if not self._group.leads:
            return None
        demand = self.demand
        match self._next_step():
            case Step.PROPOSE:
                reason = _ASKED if self._sleep_asked else "Idle"
                proposal = demand.proposal + 1
                demand = msgspec.structs.replace(demand, proposal=proposal, proposes=reason)
            case Step.WITHDRAW:
                demand = msgspec.structs.replace(demand, proposes="")
            case Step.SLEEP:
                demand = self._next_demand(awake=False, reason=demand.proposes)
            case Step.WAIT:
                pass
        if demand == self.status.demand and self.cold_start == self.status.cold_start:
            return None
        self._proposed.append(demand)
        return demand

    def written(self, report: ActivatorReport, demand: Demand | None) -> None:
        """Note what the host has now."""
        self._written, self._is_known = report, True
        if demand is not None and demand.number >= self.demand.number:
            self._follow(demand)
        self._answer()
        super().update(self.endpoint)

    @property
    def last_report(self) -> ActivatorReport:
        """The report that the host has."""
        return self._written

    # The leader.

    def _reports(self) -> list[ActivatorReport]:
        reports = self.status.activators
        return joining.counted_reports(reports, self._group.name, self._group.counts)

    def _next_step(self) -> Step:
        return joining.next_step(
            self.demand,
            self.report(),
            self._reports(),
            is_quiet=self._is_idle(self._now(), self._loop_now()),
            now=self._now(),
            window=0 if self._sleep_asked else self._window,
        )

    def _lead(self) -> None:
        """Take the next step for all."""
        if not self.demand.awake:
            wishes = joining.asks_to_wake(self.demand, self.status.activators.values())
            if (wishes and not self._refused_seconds() and not self._take_wake()) or (
                len(self.holds) and not self._refused_seconds()
            ):
                self.want(awake=True, reason="Request")
            return
        if self._next_step() is not Step.WAIT:
            self._changed()

    # Everybody.

    def _answer(self) -> None:
        """Answer an open proposal, once; who agrees sends nothing from then on."""
        if not self.demand.proposes or self._voted == self.demand.proposal:
            return
        self._voted = self.demand.proposal
        by_person = self.demand.proposes == _ASKED
        self._agreed = joining.may_sleep(
            holds=len(self.holds),
            in_flight=self._used_in_flight(self._loop_now(), 0 if by_person else self._window),
            idle_seconds=self._now() - self._last_use,
            window=0 if by_person else self._window,
        )
        if self._agreed:
            self.stop()
        self._changed()

    @property
    def _may_send(self) -> bool:
        agreed = self._agreed and self._voted == self.demand.proposal
        return self._is_known and not (self.demand.proposes and agreed)

    @property
    def _window(self) -> float:
        """The seconds without use after which it sleeps, or a start is given up."""
        spec = self.endpoint.spec
        if self._open or self.status.failed or self.demand.proposes:
            return spec.idle_seconds
        return max(spec.idle_seconds, spec.hold_seconds)

    def _is_idle(self, now: float, loop_now: float) -> bool:
        if self._sleep_asked:  # what is in flight elsewhere is asked for by the proposal
            quiet = not len(self.holds) and not self._used_in_flight(loop_now, 0)
            return quiet and self._has_no_jobs()
        return super()._is_idle(now, loop_now)

    def wake(self) -> None:
        if self._group.leads:
            super().wake()

    def sleep(self) -> None:
        if self._group.leads:
            super().sleep()

    def want(self, *, awake: bool, reason: str) -> None:
        if self._group.leads:
            super().want(awake=awake, reason=reason)

    def _demand_wake(self) -> None:
        if self._group.leads:
            super()._demand_wake()
        elif self._wish != self.demand.number:
            self._wish = self.demand.number
            self._changed()

    def _take_wake(self) -> int:
        if not self._group.leads:
            return self._refused_seconds()  # the leader counts
        wait = super()._take_wake()
        if wait:
            until = rfc3339(self._now() + wait)
            self.demand = msgspec.structs.replace(self.demand, next_wake=until)
            self._changed()
        return wait

    def _refused_seconds(self) -> int:
        """Return the seconds until a request may wake it again."""
        until = parse_rfc3339(self.demand.next_wake) if self.demand.next_wake else 0.0
        return max(0, round(until - self._now()))

    def _hold(self, request: ProxiedRequest) -> None:
        super()._hold(request)
        if not self._written.holds and len(self.holds):
            self._changed()  # a proposal ends with the first request that is held

    def _opened(self) -> None:
        super()._opened()
        if not self._group.leads:  # the leader's measurement counts
            self.cold_start = self.status.cold_start

    def _report(self, loop_now: float) -> None:
        self._changed()

    def _decide(self, now: float, loop_now: float) -> None:
        report, previous = self.report(), self._written
        due = now - self._reported_at >= REPORT_SECONDS and report != previous
        ended = (previous.in_flight and not report.in_flight) or (
            previous.holds and not report.holds
        )
        if due or ended or asks_for_others(self.endpoint.spec, previous, report):
            self._reported_at = now
            self._changed()
        if self._group.leads:
            joined = joining.joined(self.demand, report, self._reports())
            if asks_for_others(self.endpoint.spec, self.demand, joined) or due:
                self.demand = joined
            if self.demand != self.status.demand:
                self._changed()
            self._lead()
