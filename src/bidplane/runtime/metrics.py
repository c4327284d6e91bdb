"""Prometheus metrics of a process; its parts add their own collectors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SAMPLE_SECONDS = 0.5
_DELAYS = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10)


class MetricsCollector(Protocol):
    """A source of metrics, read at each scrape."""

    def collect(self) -> Iterable[Metric]: ...


class ProcessMetrics:
    def __init__(self, *, version: str) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        build = Gauge(
            "bidplane_build_info", "The version that runs.", ["version"], registry=registry
        )
        build.labels(version).set(1)
        self.requests = Counter(
            "bidplane_http_requests", "Requests answered.", ["method", "code"], registry=registry
        )
        self._delay = Histogram(
            "bidplane_event_loop_delay_seconds",
            "How much later than asked for the event loop comes back, sampled twice a second.",
            buckets=_DELAYS,
            registry=registry,
        )

    def add(self, collector: MetricsCollector) -> None:
        self._registry.register(collector)

    def page(self) -> bytes:
        return generate_latest(self._registry)

    async def sample(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Measure the delay of the event loop, until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            started = now()
            await sleep(_SAMPLE_SECONDS)
            self._delay.observe(max(0.0, now() - started - _SAMPLE_SECONDS))
