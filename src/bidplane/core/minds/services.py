"""
The rules about Endpoints: pre-warm before use that is likely, let sleep where it is not, retry.

A service is worth keeping warm for ten minutes if its use in them is likely enough: what they cost
at the market's price must be less than the cold start's worth times the probability. Without a
rhythm in its history nothing is pre-warmed, and what was pre-warmed and not used is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from bidplane.api.endpoint import EndpointPhase
from bidplane.api.gate.action import Action, ActionKind
from bidplane.api.gate.proposal import ProposalPhase
from bidplane.api.money import SECONDS_PER_HOUR, format_credits
from bidplane.api.times import parse_or_zero
from bidplane.core.gate.actions import SURE, UNSURE
from bidplane.core.gate.endpoint_effects import AWAKE, device_price, list_price
from bidplane.core.gate.fleet import FleetEndpoint, FleetState
from bidplane.core.minds.idleness import queue_signal
from bidplane.core.minds.observation import REST_SECONDS, Intention, Observation
from bidplane.core.minds.recurrence import BIN_SECONDS, Likelihood
from bidplane.core.minds.tracking import MARGIN_SECONDS, QUIET_SECONDS

ON_CALL = "on-call"  # the person that is paged


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    # A cold start is worth as much as its devices cost in so many hours at the list price.
    cold_start_hours: float = 0.68
    least_probability: float = 0.2  # however cheap devices are
    sure_probability: float = 0.35
    sure_times: int = 2  # that use began in the same rhythm
    hold_seconds: float = 1200.0  # warm, then a pre-warmed service that nobody used sleeps again
    quiet_seconds: float = QUIET_SECONDS  # without a request, before a service is let sleep
    retries: int = 5
    retry_seconds: float = 5.0  # doubled each time
    most_retry_seconds: float = 180.0


DEFAULT_SERVICES = ServiceSettings()


def least_probability(
    fleet: FleetState,
    settings: ServiceSettings = DEFAULT_SERVICES,
    *,
    seconds: float = BIN_SECONDS,
) -> float:
    """Return the probability of use from which keeping a service warm for so long pays."""
    least = settings.least_probability * seconds / BIN_SECONDS
    usual = list_price(fleet)
    if not usual:
        return least
    pays = device_price(fleet) / usual * seconds / (settings.cold_start_hours * SECONDS_PER_HOUR)
    return max(least, pays)


def try_seconds(endpoint: FleetEndpoint, likely: Likelihood, settings: ServiceSettings) -> float:
    """
    Return for how long a pre-warming in vain holds its devices: until silence shows that use does
    not come, where it would have come early; else for ten minutes.
    """
    silence = endpoint.cold_start_seconds + MARGIN_SECONDS + settings.quiet_seconds
    return min(BIN_SECONDS, silence + likely.late * (BIN_SECONDS - settings.quiet_seconds))


def prewarm(observation: Observation, settings: ServiceSettings) -> Iterator[Intention]:
    """Yield the pre-warming of services that sleep, and are likely to be used soon."""
    for endpoint in observation.fleet.endpoints:
        likely = observation.likely.get(endpoint.uid)
        if likely is None or not likely.is_ahead:
            continue
        seconds = try_seconds(endpoint, likely, settings)
        least = least_probability(observation.fleet, settings, seconds=seconds)
        if likely.probability < least:
            continue
        if endpoint.awake or endpoint.phase is not EndpointPhase.ASLEEP:
            continue
        if _was_in_vain(observation, endpoint, settings.hold_seconds):
            continue
        is_sure = (
            likely.probability >= settings.sure_probability and likely.times >= settings.sure_times
        )
        yield Intention(
            action=endpoint_action(
                ActionKind.PREWARM_ENDPOINT, endpoint, SURE if is_sure else UNSURE
            ),
            reason=likely.reason,
            evidence=_worth(endpoint, observation.fleet, likely, least),
        )


def _worth(
    endpoint: FleetEndpoint, fleet: FleetState, likely: Likelihood, least: float
) -> tuple[str, ...]:
    price = device_price(fleet) * endpoint.gpus * endpoint.replicas
    ten_minutes = price * BIN_SECONDS // SECONDS_PER_HOUR
    return (
        f"use in ten minutes: {likely.probability:.0%} likely; it pays from {least:.0%}",
        f"ten minutes warm: {format_credits(ten_minutes)} credits at"
        f" {format_credits(price)} credits per hour",
        f"its last cold start took {endpoint.cold_start_seconds:.0f} s",
    )


def _was_in_vain(observation: Observation, endpoint: FleetEndpoint, hold: float) -> bool:
    """Return True if it was pre-warmed a short time ago, and nobody has used it since."""
    last_use = parse_or_zero(endpoint.last_request) if endpoint.last_request else 0
    return any(
        past.action.kind is ActionKind.PREWARM_ENDPOINT
        and past.action.uid == endpoint.uid
        and past.phase is ProposalPhase.APPLIED
        and past.created + hold > observation.at
        and past.created > last_use
        for past in observation.proposals
    )


def let_sleep(observation: Observation, settings: ServiceSettings) -> Iterator[Intention]:
    """Yield the sleep of services that nobody uses, nor is likely to, and of unused pre-warmings"""
    least = least_probability(observation.fleet, settings)
    for endpoint in observation.fleet.endpoints:
        likely = observation.likely.get(endpoint.uid)
        if likely is None or not endpoint.awake or endpoint.phase is not EndpointPhase.READY:
            continue
        if endpoint.queue != 0:  # also if it is unknown
            continue
        if endpoint.not_idle and endpoint.own_work:  # it was asked, and is busy or does not say
            continue
        awake_for = observation.at - parse_or_zero(endpoint.since)
        unused_for = observation.at - parse_or_zero(endpoint.last_request)
        was_used = unused_for < awake_for
        unlikely = likely.probability < least
        if was_used and unused_for >= settings.quiet_seconds and unlikely:
            reason = f"nobody uses it; use in ten minutes is {likely.probability:.0%} likely"
        elif not was_used and _is_prewarmed(observation, endpoint):
            # From here on it is warm, and was expected to be used.
            warm_for = awake_for - endpoint.cold_start_seconds - MARGIN_SECONDS
            if warm_for < settings.quiet_seconds or not (
                unlikely or warm_for >= settings.hold_seconds
            ):
                continue
            reason = f"it was pre-warmed {awake_for / 60:.0f} minutes ago and nobody has used it"
        else:
            continue
        yield Intention(
            action=endpoint_action(ActionKind.SLEEP_ENDPOINT, endpoint),
            reason=reason,
            evidence=(
                "requests: none waits, none is in flight; the last one was at"
                f" {endpoint.last_request or 'no time known'}",
                queue_signal(endpoint),
                f"keeping it warm pays from {least:.0%}; {likely.reason}",
                f"its window would end {endpoint.idle_seconds} s after the last request",
            ),
        )


def _is_prewarmed(observation: Observation, endpoint: FleetEndpoint) -> bool:
    """Return True if it was the pilot that had it woken."""
    past = [
        proposal
        for proposal in observation.proposals
        if proposal.action.uid == endpoint.uid
        and proposal.action.kind is ActionKind.PREWARM_ENDPOINT
        and proposal.phase is ProposalPhase.APPLIED
    ]
    return endpoint.reason == "Asked" and bool(past)


def retry_failed(observation: Observation, settings: ServiceSettings) -> Iterator[Intention]:
    """Yield the retry of rollouts that failed; after the last one, the page of a person."""
    for endpoint in observation.fleet.endpoints:
        if not endpoint.failure or endpoint.phase not in AWAKE:
            continue
        action = endpoint_action(ActionKind.RETRY_ROLLOUT, endpoint)
        tries = _tries(observation, action)
        if observation.at < _due(tries, settings):
            continue
        if len(tries) >= settings.retries:
            yield from _page(observation, endpoint, len(tries))
            continue
        yield Intention(
            action=action,
            reason=f"its pods fail: try {len(tries) + 1} of {settings.retries}",
            evidence=(f"Endpoint {endpoint.name}: {endpoint.failure[:200]}",),
        )


def next_retry(observation: Observation, settings: ServiceSettings = DEFAULT_SERVICES) -> float:
    """Return when the next retry of a failed rollout is due, or its page; 0 if none is."""
    dues = [
        _due(tries, settings)
        for endpoint in observation.fleet.endpoints
        if endpoint.failure and endpoint.phase in AWAKE
        if (tries := _tries(observation, endpoint_action(ActionKind.RETRY_ROLLOUT, endpoint)))
    ]
    return min((due for due in dues if due > observation.at), default=0.0)


def _tries(observation: Observation, action: Action) -> list[float]:
    """Return when a rollout was retried lately, the first time first."""
    return sorted(
        past.created
        for past in observation.proposals
        if past.action == action and past.created + REST_SECONDS > observation.at
    )


def _due(tries: Sequence[float], settings: ServiceSettings) -> float:
    """Return when the next try is due: at once, then after a delay that doubles each time."""
    if not tries:
        return 0.0
    delay = settings.retry_seconds * float(2 ** len(tries))
    return tries[-1] + min(settings.most_retry_seconds, delay)


def _page(observation: Observation, endpoint: FleetEndpoint, tries: int) -> Iterator[Intention]:
    text = f"{endpoint.agent}/{endpoint.service}: its pods fail after {tries} retries"
    action = Action(kind=ActionKind.PAGE_PERSON, name=ON_CALL, value=text[:200])
    for past in observation.proposals:
        if past.action == action and past.created + REST_SECONDS > observation.at:
            return
    yield Intention(
        action=action,
        reason="what the pilot may try has been tried",
        evidence=(f"Endpoint {endpoint.name}: {endpoint.failure[:200]}",),
    )


def endpoint_action(kind: ActionKind, endpoint: FleetEndpoint, value: str = "") -> Action:
    return Action(
        kind=kind,
        namespace=endpoint.namespace,
        name=endpoint.name,
        uid=endpoint.uid,
        value=value,
    )
