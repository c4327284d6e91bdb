"""
Requests that count as use, and requests that may wake a service. Pure.

A wake spends its owner's credits, and whoever knows a URL can send a request. So health checks,
link previews, scanners and preflights wake nothing, and an Endpoint wakes only so often.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from bidplane.api.endpoint import EndpointSpec, WakeRules
from bidplane.api.idling.ladder import SleepKind

_NEVER = frozenset([b"HEAD", b"OPTIONS", b"TRACE"])
# Paths that health checks, browsers and scanners ask every host for.
_PROBED = re.compile(
    rb"/(?:healthz?|readyz|livez|health_check|healthcheck|ping|metrics|favicon\.ico|robots\.txt"
    rb"|sitemap\.xml|apple-touch-icon[^/]*|\.well-known(?:/.*)?|\.env[^/]*|\.git(?:/.*)?"
    rb"|wp-[^/]*(?:/.*)?|xmlrpc\.php|.*\.php|cgi-bin(?:/.*)?|server-status|actuator(?:/.*)?"
    rb"|phpmyadmin(?:/.*)?|\.aws(?:/.*)?|\.DS_Store)",
    re.IGNORECASE,
)
_PROBES = re.compile(
    rb"kube-probe|GoogleHC|ELB-HealthChecker|Prometheus|Blackbox|UptimeRobot|Pingdom|StatusCake"
    rb"|bot\b|crawler|spider|Slackbot|facebookexternalhit|WhatsApp|Discordbot|zgrab|masscan|nmap"
    rb"|nikto|sqlmap|CensysInspect|Expanse|HeadlessChrome-Lighthouse",
    re.IGNORECASE,
)
_BURST = 5.0  # wakes in a row, before the rate counts


def below(path: bytes, prefixes: Iterable[str]) -> bool:
    """Tell if a path is one of the prefixes, or below it."""
    for text in prefixes:
        prefix = text.rstrip("/").encode()
        if path == prefix or path.startswith(prefix + b"/"):
            return True
    return False


def is_probe(method: bytes, path: bytes, user_agent: bytes) -> bool:
    """Tell if a request is a check of the service, and not use of it."""
    return (
        method in _NEVER
        or _PROBED.fullmatch(path) is not None
        or (bool(user_agent) and _PROBES.search(user_agent) is not None)
    )


def counts_as_use(spec: EndpointSpec, method: bytes, path: bytes, user_agent: bytes) -> bool:
    """Tell if a request keeps its service awake."""
    if spec.ignore_paths and below(path, spec.ignore_paths):
        return False
    return not is_probe(method, path, user_agent)


# vLLM's own calls to sleep and wake: whoever may send requests must not make it lose its model.
_GUARDED = frozenset([b"/sleep", b"/wake_up", b"/collective_rpc"])


def is_guarded(spec: EndpointSpec, path: bytes) -> bool:
    """Tell if a path is kept from clients, because it lets the service sleep or wake."""
    sleep = spec.ladder.sleep
    if sleep is None or sleep.kind is not SleepKind.VLLM:
        return False
    return path.rstrip(b"/") in _GUARDED


def wake_problem(spec: EndpointSpec, method: bytes, path: bytes, user_agent: bytes) -> str:
    """Return why a request does not wake a sleeping service; "" if it does."""
    rules: WakeRules = spec.wake
    if method in _NEVER or method.decode("latin-1") not in rules.methods:
        return f"{method.decode('latin-1')} does not wake it"
    if rules.paths and not below(path, rules.paths):
        return "this path does not wake it"
    if not rules.paths and is_probe(method, path, user_agent):
        return "health checks and scanners do not wake it"
    if spec.ignore_paths and below(path, spec.ignore_paths):
        return "this path does not wake it"
    return ""


class WakeBudget:
    """The wakes that an Endpoint has left: a few in a row, and so many an hour."""

    def __init__(self, per_hour: int, *, now: float) -> None:
        self.per_hour = per_hour
        self._tokens = min(_BURST, float(per_hour))
        self._at = now

    def take(self, now: float) -> int:
        """Take one wake and return 0; or return the seconds until there is one."""
        rate = self.per_hour / 3600
        most = min(_BURST, float(self.per_hour))
        self._tokens = min(most, self._tokens + max(0.0, now - self._at) * rate)
        self._at = now
        if self._tokens >= 1 - 1e-9:
            self._tokens -= 1
            return 0
        return max(1, math.ceil((1 - self._tokens) / rate))


def retry_after(expected_seconds: float, waited_seconds: float) -> int:
    """Return the seconds after which a service that is waking is likely to serve."""
    return max(1, math.ceil(expected_seconds - waited_seconds))
