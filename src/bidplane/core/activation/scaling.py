"""
Replicas by traffic: how many an Endpoint needs while it is awake, and which pods go. Pure.

More come at once. Fewer only after a window in which fewer would have sufficed, and only if that
window is known whole: after a restart of whoever measures or decides it begins anew. So the number
does not flap, and it is never below what is in flight needs, within the Endpoint's bounds.

A pod goes in three steps: it *drains* (the activator sends it nothing new), it is *free* (nothing
is in flight to it), it is *removed*. A removed one is never used again, even if replicas are needed
before it is gone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import msgspec

from bidplane.api.endpoint import Demand, Drain, EndpointSpec, TargetRate
from bidplane.api.views import Pod
from bidplane.core.workloads.replicasets import deletion_rank

_STABLE_SECONDS = 300.0  # the longest window before a replica goes


class RateWindow:
    """The requests of a sliding window, counted in steps."""

    def __init__(self, rate: TargetRate, *, now: float) -> None:
        self.rate, self._began = rate, now
        self._steps: deque[tuple[int, int]] = deque()  # number of the step, and its requests

    def __repr__(self) -> str:
        return f"<RateWindow {self.rate.window_seconds} s, {len(self._steps)} steps>"

    def add(self, now: float) -> None:
        step = self._step(now)
        if self._steps and self._steps[-1][0] >= step:
            last, count = self._steps.pop()
            self._steps.append((last, count + 1))
        else:
            self._steps.append((step, 1))

    def total(self, now: float) -> int:
        """Return the number of requests in the window that ends now."""
        first = self._step(now - self.rate.window_seconds)
        while self._steps and self._steps[0][0] <= first:
            self._steps.popleft()
        return sum(count for _, count in self._steps)

    def is_whole(self, now: float) -> bool:
        """Tell if the window began after the counting did."""
        return now - self._began >= self.rate.window_seconds

    def _step(self, now: float) -> int:
        return math.floor(now / self.rate.granularity_seconds)


def bounds(spec: EndpointSpec) -> tuple[int, int]:
    """Return the fewest and the most replicas of an awake Endpoint."""
    return spec.replicas, max(spec.replicas, spec.max_replicas)


def is_scaled(spec: EndpointSpec) -> bool:
    """Tell if the number of replicas follows the traffic."""
    least, most = bounds(spec)
    return most > least and (spec.target_concurrency > 0 or spec.target_rate is not None)


def needed(spec: EndpointSpec, concurrency: int, recent: int) -> int:
    """Return the replicas that a load needs, within the Endpoint's bounds."""
    least, most = bounds(spec)
    count = least
    if spec.target_concurrency:
        count = max(count, -(-concurrency // spec.target_concurrency))
    if spec.target_rate is not None:
        served = spec.target_rate.per_second * spec.target_rate.window_seconds
        count = max(count, -(-recent // served))
    return min(count, most)


class Needs(msgspec.Struct, frozen=True):
    """The replicas that were needed lately: each number with the time until which it was."""

    since: float  # nothing is known of the time before
    now: int  # needed at present
    before: tuple[tuple[float, int], ...] = ()  # the oldest first, numbers falling

    def peak(self) -> int:
        return max((self.now, *(count for _, count in self.before)))


def observe(
    needs: Needs | None, spec: EndpointSpec, demand: Demand | None, *, now: float
) -> Needs | None:
    """Return the needs with the latest report; None if the load is not known."""
    if demand is None or not demand.awake:
        return None
    count = needed(spec, demand.concurrency, demand.recent)
    if needs is None:
        return Needs(now, count)
    since = needs.since if spec.target_rate is None or demand.whole_window else now
    window = stable_seconds(spec)
    recent = [entry for entry in needs.before if entry[1] > needs.now and entry[0] > now - window]
    return Needs(since, count, (*recent, (now, needs.now)))


def stable_seconds(spec: EndpointSpec) -> float:
    """Return the seconds in which fewer replicas must have sufficed before one goes."""
    return min(_STABLE_SECONDS, float(spec.idle_seconds))


def target(spec: EndpointSpec, current: int, needs: Needs | None, *, now: float) -> int:
    """Return the number of replicas to have."""
    least, most = bounds(spec)
    if needs is None:
        return current
    wished = needs.now
    if wished < current:
        is_known = now - needs.since >= stable_seconds(spec)
        wished = max(wished, min(current, needs.peak())) if is_known else current
    return min(max(wished, least), most)


class ScalePlan(msgspec.Struct, frozen=True):
    """The drain to show, the pods to delete, and the replicas to set; None leaves them."""

    drain: Drain
    replicas: int | None = None
    delete: tuple[str, ...] = ()


def plan(
    wished: int, current: int, pods: Sequence[Pod], previous: Drain, demand: Demand | None
) -> ScalePlan:
    """
    Return the next step from `current` replicas to the wished number.

    `pods` are those of the target that are not ending.
    """
    names = {pod.name for pod in pods}
    removed = tuple(name for name in previous.removed if name in names)
    candidates = [pod for pod in pods if pod.name not in removed]
    candidates.sort(key=lambda pod: (pod.name not in previous.pods, deletion_rank(pod.json)))
    surplus = max(0, len(candidates) - wished)
    draining = [pod.name for pod in candidates[:surplus]]
    free: set[str] = set()
    if demand is not None and demand.drained == previous.number:
        free = set(demand.free_pods) & set(previous.pods)
    going = [name for name in draining if name in free]
    fewer = wished + len(draining) - len(going)
    replicas = wished if wished > current else min(current, fewer)
    drain = numbered(previous, (*removed, *draining), (*removed, *going))
    return ScalePlan(drain, replicas if replicas != current else None, removed)


def wait_seconds(spec: EndpointSpec, current: int, needs: Needs | None, *, now: float) -> float:
    """Return the seconds until a replica may go without a further report; 0 if none may."""
    is_decided = target(spec, current, needs, now=now) != current
    if needs is None or is_decided or needs.now >= current or current <= spec.replicas:
        return 0.0
    ends = [at for at, count in needs.before if count > needs.now]
    return max(0.1, max(needs.since, min(ends, default=0.0)) + stable_seconds(spec) - now)


def numbered(previous: Drain, pods: Sequence[str] = (), removed: Sequence[str] = ()) -> Drain:
    """Return a drain; one of other pods has the next number."""
    pods, removed = tuple(sorted(pods)), tuple(sorted(removed))
    return Drain(number=previous.number + (pods != previous.pods), pods=pods, removed=removed)
