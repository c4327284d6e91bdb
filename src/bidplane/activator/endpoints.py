"""
One Endpoint as the activator serves it.

It is *open* while a pod is known that answers: requests pass at once. Else they wait, are refused
or get the Endpoint's own answer, and the first of them demands a wake, once for all of them. It
closes before it demands sleep, when nothing is in flight and nobody used it for its window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from bidplane.activator import probing, waiting
from bidplane.activator.applications import Applications, IdleQuestion
from bidplane.activator.load import LoadMeter, asks_for_others, follow_drain
from bidplane.activator.refusals import (
    CLOSED,
    refuse,
    refuse_without_fallback,
    retry_after_headers,
)
from bidplane.activator.unanswered import AnswerLimit, give_up
from bidplane.api.endpoint import (
    Demand,
    EndpointPhase,
    EndpointStatus,
    Milestones,
    OnCold,
    Placeholder,
    StaticAnswer,
    WarmPath,
)
from bidplane.api.reading import Endpoint
from bidplane.api.times import parse_rfc3339, rfc3339
from bidplane.core.activation import wakeauth
from bidplane.core.activation.coldstart import cold_start
from bidplane.core.activation.holds import HoldQueue
from bidplane.core.activation.joining import Load
from bidplane.core.activation.routes import StaticRoutes
from bidplane.core.activation.streams import StreamForm, form_of
from bidplane.core.activation.traffic import (
    WakeBudget,
    counts_as_use,
    is_guarded,
    retry_after,
    wake_problem,
)
from bidplane.http.proxy.heads import Headers
from bidplane.http.proxy.pool import Address
from bidplane.http.proxy.request import ProxiedRequest

BEAT_SECONDS = 10.0  # between two heartbeats; the first commits the answer to 200
REPORT_SECONDS = 10.0  # between two reports of the traffic
_UNKNOWN_COLD_START_SECONDS = 30.0


class Upstream(Protocol):
    """The pool of connections to pods."""

    def forward(self, request: ProxiedRequest, address: Address) -> None: ...

    def forget(self, address: Address) -> None: ...


class LiveEndpoint:
    """An Endpoint with its pods, its requests and its demand."""

    def __init__(
        self,
        endpoint: Endpoint,
        pool: Upstream,
        *,
        now: Callable[[], float],
        changed: Callable[[], None],
        applications: Applications,
    ) -> None:
        """`now` is the time of day; `changed` is called when the demand is to be written."""
        self._pool, self._now, self._changed = pool, now, changed
        self.endpoint = endpoint
        self._question = IdleQuestion(applications, now=now, answered=self._idleness_known)
        self.holds: HoldQueue[ProxiedRequest] = HoldQueue(endpoint.spec.max_held)
        self._streams: dict[ProxiedRequest, StreamForm] = {}  # held ones that were begun
        self._in_flight: dict[ProxiedRequest, Address] = {}
        self._uncounted: set[ProxiedRequest] = set()  # of all, those that are no use of it
        self._open: dict[Address, str] = {}  # pods that answer, with their names
        self._probes: dict[Address, asyncio.Task[None]] = {}
        self._turn = 0
        self._budget = WakeBudget(endpoint.spec.wake.per_hour, now=now())
        self._unanswered = AnswerLimit()
        self._statics = StaticRoutes(endpoint.spec, ())
        self._load = LoadMeter(endpoint.spec, now=now())
        self._pod_at = 0.0  # when the pod of this cold start had an address
        status = endpoint.status or EndpointStatus()
        previous = status.demand
        self.cold_start = status.cold_start
        self.demand = previous or Demand(
            number=1,
            awake=status.phase is not EndpointPhase.ASLEEP,
            since=rfc3339(now()),
            reason="Found",
        )
        self._since = parse_rfc3339(self.demand.since) if self.demand.since else now()
        # What was used before we started is not known: a window begins now.
        self._last_use = now()
        self._was_used = False  # since we started
        self._sleep_asked = False
        self._reported_at = 0.0
        if previous is None:
            changed()
        self.update(endpoint)

    def __repr__(self) -> str:
        return (
            f"<LiveEndpoint {self.endpoint.name} {'open' if self._open else 'closed'}, demand"
            f" {self.demand.number} {'awake' if self.demand.awake else 'asleep'}, held"
            f" {len(self.holds)}, in flight {len(self._in_flight)}>"
        )

    @property
    def status(self) -> EndpointStatus:
        return self.endpoint.status or EndpointStatus()

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    @property
    def _may_send(self) -> bool:
        """False while no pod is to be used, whatever the host says."""
        return True

    def _loop_now(self) -> float:
        return asyncio.get_running_loop().time()

    # What the host says.

    def update(self, endpoint: Endpoint) -> None:
        """Take a new version of the Endpoint: other pods, another phase, other rules."""
        if endpoint.spec.wake.per_hour != self._budget.per_hour:
            self._budget = WakeBudget(endpoint.spec.wake.per_hour, now=self._now())
        self._load.update(endpoint.spec, now=self._now())
        self._statics = StaticRoutes(endpoint.spec, (endpoint.status or EndpointStatus()).hosts)
        self.endpoint = endpoint
        self.holds.most = endpoint.spec.max_held
        status = self.status
        answered = status.answers == self.demand.number and self.demand.awake
        backends = {
            (backend.address, backend.port): backend
            for backend in (status.backends if answered and self._may_send else ())
            if backend.pod not in status.drain.pods
        }
        for address in [a for a in (*self._open, *self._probes) if a not in backends]:
            self._close(address)
        for address, backend in backends.items():
            # Without a path of its own, the probe trusts the pod's.
            may_probe = bool(endpoint.spec.probe_path) or backend.ready
            if may_probe and address not in self._open and address not in self._probes:
                if not self._pod_at:
                    self._pod_at = self._now()
                self._probes[address] = asyncio.get_running_loop().create_task(
                    self._probe(address, backend.pod)
                )
        if answered and status.failed:
            self._refuse_held()
        if endpoint.spec.always_awake and not self.demand.awake and self.demand.reason != "Asked":
            self.want(awake=True, reason="Always")

    async def _probe(self, address: Address, pod: str) -> None:
        spec = self.endpoint.spec
        host = self.status.host or address[0]
        await probing.wait_until_answering(address, spec.probe_path, host)
        del self._probes[address]
        first = not self._open
        self._open[address] = pod
        if first:
            self._opened()

    def _opened(self) -> None:
        """Note the cold start, if this was one, and pass on every held request."""
        now = self._now()
        if self.demand.reason == "Request" and self._pod_at:
            milestones = self.status.milestones
            if milestones.number != self.demand.number:
                milestones = Milestones()
            self.cold_start = cold_start(
                milestones, since=self._since, probed=self._pod_at, answered=now
            )
            self._changed()
        self._pod_at = 0.0
        self._last_use = now  # one window at least, also when nobody waited so long
        while len(self.holds):
            request, since = self.holds.pop()
            request.added = _cold_headers(now - since)
            self._streams.pop(request, None)
            self._forward(request)
        self._report(asyncio.get_running_loop().time())

    def _close(self, address: Address) -> None:
        self._open.pop(address, None)
        task = self._probes.pop(address, None)
        if task is not None:
            task.cancel()
        self._pool.forget(address)

    def stop(self) -> None:
        """Use no pods any more."""
        for address in [*self._open, *self._probes]:
            self._close(address)

    def leave(self) -> None:
        """Ask and tell the application nothing any more."""
        self._question.close()

    def close(self) -> None:
        """Serve no longer: the Endpoint is gone."""
        self.stop()
        self.leave()
        for request, _ in self.holds.since():
            self.holds.remove(request)
            refuse(request, 503, "its Endpoint was deleted\n", CLOSED)

    # Requests.

    def dispatch(self, request: ProxiedRequest) -> None:
        """Pass a request on, or hold it, or answer it."""
        head = request.head
        agent = head.header(b"user-agent")
        if is_guarded(self.endpoint.spec, head.path):
            refuse(request, 403, "this path puts the service to sleep: clients may not use it\n")
            return
        static = self._statics.find(head.host, head.path, head.headers)
        if static is not None and (static.always or not self._open):
            request.answer(static.status, static.body, _given_headers(static))
            return
        if static is None and counts_as_use(self.endpoint.spec, head.method, head.path, agent):
            self._note_use()
        else:
            self._uncounted.add(request)
        if static is None:
            self._load.count(self._now())
        request.on_end = self._ended
        if self._open:
            request.added = _WARM
            self._forward(request)
        else:
            self._cold(request)

    def _note_use(self) -> None:
        self._last_use, self._was_used, self._sleep_asked = self._now(), True, False

    def _forward(self, request: ProxiedRequest) -> None:
        addresses = list(self._open)
        self._turn += 1
        address = addresses[self._turn % len(addresses)]
        self._in_flight[request] = address
        request.on_unreachable = self._unreachable
        self._pool.forward(request, address)

    def _fall_back_when_due(self, now: float) -> None:
        """Send those that waited for too long to the fallback, if it serves."""
        fallback = self.endpoint.spec.fallback
        if fallback is None or not self.status.fallbacks:
            return
        for request, since in self.holds.since():
            if now - since < fallback.after_seconds:
                break
            self.holds.remove(request)
            self._fall_back(request, now - since)

    def _fall_back(self, request: ProxiedRequest, waited: float) -> None:
        backends = self.status.fallbacks
        self._turn += 1
        backend = backends[self._turn % len(backends)]
        address = (backend.address, backend.port)
        self._streams.pop(request, None)
        request.added = _cold_headers(waited)
        self._in_flight[request] = address
        request.on_unreachable = refuse_without_fallback
        self._pool.forward(request, address)

    def _unreachable(self, request: ProxiedRequest, reason: str) -> None:
        """Nothing was sent: the pod is probed again, and the request goes elsewhere, or waits."""
        address = self._in_flight.pop(request, None)
        if address in self._open:
            pod = self._open[address]
            self._close(address)
            self._probes[address] = asyncio.get_running_loop().create_task(
                self._probe(address, pod)
            )
        if self._open:
            self._forward(request)
        else:
            self._hold(request)

    def _ended(self, request: ProxiedRequest) -> None:
        if self._in_flight.pop(request, None) is None:
            self.holds.remove(request)
            self._streams.pop(request, None)
        elif request not in self._uncounted:
            self._last_use = self._now()
        self._uncounted.discard(request)

    def _cold(self, request: ProxiedRequest) -> None:
        spec, head = self.endpoint.spec, request.head
        status = self.status
        if status.phase is EndpointPhase.REFUSED:
            refuse(request, 503, f"{status.reason}: {status.message}\n", CLOSED)
            return
        if self._is_down and not self._may_wake(request):
            return
        if status.failed and status.answers == self.demand.number:
            if spec.fallback is not None and status.fallbacks:
                self._fall_back(request, 0.0)
            else:
                refuse(request, 503, self._failure(), retry_after_headers(10))
            return
        expected = self._expected_wait()
        if spec.on_cold is OnCold.REJECT:
            text = f"the service is waking: try again in {expected} seconds\n"
            refuse(request, 503, text, retry_after_headers(expected))
        elif spec.on_cold is OnCold.PLACEHOLDER and spec.placeholder is not None:
            headers = [*_given_headers(spec.placeholder), *retry_after_headers(expected)]
            request.answer(
                spec.placeholder.status,
                spec.placeholder.body,
                [*headers, (b"Cache-Control", b"no-store")],
            )
        elif waiting.is_navigation(
            head.header(b"accept"),
            head.header(b"sec-fetch-mode"),
            head.header(waiting.WAITING_HEADER),
        ):
            self._show_page(request, expected)
        else:
            self._hold(request)

    @property
    def _is_down(self) -> bool:
        """True if a request is needed for it to wake."""
        return not self.demand.awake

    def _may_wake(self, request: ProxiedRequest) -> bool:
        """Demand a wake; or answer why this request does not wake the service."""
        head = request.head
        problem = wake_problem(
            self.endpoint.spec, head.method, head.path, head.header(b"user-agent")
        )
        if problem:
            refuse(request, 503, f"the service is asleep, and {problem}\n", retry_after_headers(30))
            return False
        if refusal := self._token_refusal(request):
            challenge = (b"WWW-Authenticate", b"Bearer")
            refuse(request, 401, f"the service is asleep, and {refusal}\n", [*CLOSED, challenge])
            return False
        wait = self._take_wake()
        if wait:
            self._refuse_wake(request, wait)
            return False
        self._demand_wake()
        return True

    def _token_refusal(self, request: ProxiedRequest) -> str:
        """Return why a request's token does not wake the service; "" if it does."""
        rules = self.endpoint.spec.wake
        if rules.auth is None:
            return ""
        token = wakeauth.token_of(
            request.head.header(b"authorization"), request.head.header(wakeauth.HEADER)
        )
        return wakeauth.refusal(rules, self.endpoint.uid, self.status.wake_digest, token)

    def _take_wake(self) -> int:
        """Take a wake of those that it may have; or return the seconds until there is one."""
        return self._budget.take(self._now())

    def _refuse_wake(self, request: ProxiedRequest, wait: int) -> None:
        refuse(
            request,
            429,
            f"the service is asleep, and was woken {self._budget.per_hour} times within an"
            f" hour, as often as its Endpoint allows: try again in {wait} seconds\n",
            retry_after_headers(wait),
        )

    def _demand_wake(self) -> None:
        """Demand a wake for the requests that come."""
        self.want(awake=True, reason="Request")

    def _show_page(self, request: ProxiedRequest, expected: int) -> None:
        waited = round(self._now() - self._since)
        page = waiting.page(
            request.head.host.decode("latin-1"),
            self.status.message,
            expected=expected + waited,
            waited=waited,
        )
        headers = [(b"Content-Type", b"text/html; charset=utf-8"), (b"Cache-Control", b"no-store")]
        request.answer(503, page, [*headers, *retry_after_headers(expected)])

    def _hold(self, request: ProxiedRequest) -> None:
        if self.holds.add(request, self._now()):
            request.await_backend()
            return
        expected = self._expected_wait()
        refuse(
            request,
            429,
            f"the service is waking, and {self.holds.most} requests wait for it already: try again"
            f" in {expected} seconds\n",
            retry_after_headers(expected),
        )

    def _expected_wait(self) -> int:
        """Return the seconds until the service is likely to answer."""
        last = self.cold_start
        total = last.total / 1000 if last is not None and last.total else 0.0
        waited = self._now() - self._since
        # One that takes longer than ever is expected to take as long again.
        expected = max(total or _UNKNOWN_COLD_START_SECONDS, waited * 1.2)
        return retry_after(expected, waited)

    def _failure(self) -> str:
        return f"the service cannot start: {self.status.reason}: {self.status.message}\n"

    def _refuse_held(self) -> None:
        has_fallback = self.endpoint.spec.fallback is not None and self.status.fallbacks
        for request, since in self.holds.since():
            self.holds.remove(request)
            if has_fallback:
                self._fall_back(request, self._now() - since)
                continue
            refuse(request, 503, self._failure(), retry_after_headers(10))

    # The demand.

    def want(self, *, awake: bool, reason: str) -> None:
        """Demand that the service is awake, or asleep; from then on no pod is used until then."""
        self._since, self._pod_at = self._now(), 0.0
        self.demand = self._next_demand(awake=awake, reason=reason)
        self._sleep_asked = False
        self.stop()
        self._changed()

    def _next_demand(self, *, awake: bool, reason: str) -> Demand:
        return Demand(
            number=self.demand.number + 1,
            awake=awake,
            since=rfc3339(self._now()),
            reason=reason,
            last_request=self._last_request(),
            proposal=self.demand.proposal,
        )

    def _last_request(self) -> str:
        return rfc3339(self._last_use) if self._was_used else self.demand.last_request

    def wake(self) -> None:
        """Wake by request of a person, and stay for a window."""
        self._last_use = self._now()
        if not self.demand.awake:
            self.want(awake=True, reason="Asked")

    def sleep(self) -> None:
        """Sleep as soon as nothing is in flight."""
        self._sleep_asked = True
        self.tick(asyncio.get_running_loop().time())

    def tick(self, loop_now: float) -> None:
        """Do what is due: heartbeats, holds that took too long, sleep, a report."""
        now = self._now()
        spec = self.endpoint.spec
        for request in self.holds.pop_expired(now, spec.hold_seconds):
            waited = f"the service did not wake within {spec.hold_seconds} seconds"
            reason = f": {self.status.message}" if self.status.message else ""
            self._streams.pop(request, None)
            refuse(request, 504, f"{waited}{reason}\n", retry_after_headers(self._expected_wait()))
        self._fall_back_when_due(now)
        for request in self._unanswered.expired(self._in_flight, spec.response_seconds, loop_now):
            give_up(request, spec.response_seconds)
        self._beat(now)
        self._decide(now, loop_now)

    def _decide(self, now: float, loop_now: float) -> None:
        """Let it sleep, or report the traffic, if it is time."""
        if self._is_idle(now, loop_now):
            self.want(awake=False, reason="Asked" if self._sleep_asked else "Idle")
        elif now - self._reported_at >= REPORT_SECONDS or asks_for_others(
            self.endpoint.spec, self.demand, self._loaded(self.demand)
        ):
            self._reported_at = now
            self._report(loop_now)

    def _beat(self, now: float) -> None:
        for request, since in self.holds.since():
            form = self._streams.get(request)
            if form is None and now - since >= BEAT_SECONDS:
                form = self._begin_stream(request, now - since)
            if form is not None:
                request.write_stream(form.beat)

    def _begin_stream(self, request: ProxiedRequest, waited: float) -> StreamForm | None:
        head = request.head
        if not request.is_complete or head.is_old:
            return None
        form = form_of(
            self.endpoint.spec.heartbeat,
            head.path,
            accept=head.header(b"accept"),
            content_type=head.header(b"content-type"),
            body=b"".join(request.buffered),
        )
        if form is not None:
            self._streams[request] = form
            lines = [b"Content-Type: text/event-stream", b"Cache-Control: no-cache"]
            request.start_stream([*lines, *_cold_headers(waited)], form.error)
        return form

    def _is_idle(self, now: float, loop_now: float) -> bool:
        """Tell if the service is awake, and nobody has used it for its window."""
        if not self.demand.awake or len(self.holds):
            return False
        if self._sleep_asked:
            return not self._used_in_flight(loop_now, 0) and self._has_no_jobs()
        if self._stays_awake(now):
            return False
        if self._open and self.endpoint.spec.warm_path is WarmPath.DIRECT:
            return False  # most of its requests do not pass here
        window = self._idle_seconds
        if not self._open and not self.status.failed:
            # It is still starting; but not for ever, if nobody waits any more.
            window = max(window, self.endpoint.spec.hold_seconds)
        # A WebSocket counts as use while something passes.
        if now - self._last_use < window or self._used_in_flight(loop_now, window):
            return False
        return self._has_no_jobs()

    def _has_no_jobs(self) -> bool:
        """Tell if its application has no work of its own; what does not answer yet has none."""
        return not self._open or self._question.is_idle(self.endpoint)

    @property
    def _idle_seconds(self) -> int:
        return self.endpoint.spec.idle_seconds

    def _idleness_known(self) -> None:
        """Sleep at once if its application has nothing to do."""
        self.tick(self._loop_now())

    def _stays_awake(self, now: float) -> bool:
        """Tell if its rules keep it awake without use."""
        spec, created = self.endpoint.spec, self.endpoint.creation_timestamp
        if spec.always_awake or not spec.initial_seconds or not created:
            return spec.always_awake
        return now - parse_rfc3339(created) < spec.initial_seconds

    def _used_in_flight(self, loop_now: float, window: float) -> int:
        return sum(
            1
            for request in self._in_flight
            if request not in self._uncounted
            and (
                request.backend is None
                or not request.backend.tunnel
                or loop_now - request.backend.active_at < window
            )
        )

    def _loaded(self, report: Load) -> Load:
        """Return a demand, or an activator's report, with the load that there is now."""
        concurrency = len(self._in_flight) + len(self.holds)
        loaded = self._load.fill(report, concurrency, now=self._now())
        used, busy = set(self._open.values()), set(self._in_flight.values())
        return follow_drain(loaded, self.status, used, busy)

    def _report(self, loop_now: float) -> None:
        report = msgspec.structs.replace(
            self._loaded(self.demand),
            last_request=self._last_request(),
            holds=len(self.holds),
            in_flight=self._used_in_flight(loop_now, self.endpoint.spec.idle_seconds),
        )
        if report != self.demand:
            self.demand = report
            self._changed()


_WARM = [b"X-KEDA-HTTP-Cold-Start: false"]


def _cold_headers(waited: float) -> list[bytes]:
    return [b"X-KEDA-HTTP-Cold-Start: true", b"Bidplane-Cold-Start-Seconds: %.3f" % waited]


def _given_headers(answer: Placeholder | StaticAnswer) -> Headers:
    fields = {"Content-Type": answer.content_type, **answer.headers}
    return [(name.encode(), text.encode("latin-1")) for name, text in fields.items()]
