"""The market in numbers, for Prometheus: read from the last round and the ledger when asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from bidplane.api.money import MICRO, parse_credits
from bidplane.exchange.service import Exchange
from bidplane.ledger.ledger import Ledger


class ExchangeMetrics:
    """A collector."""

    def __init__(self, exchange: Exchange, ledger: Ledger) -> None:
        self._exchange, self._ledger = exchange, ledger

    def collect(self) -> Iterator[Metric]:
        yield _gauge(
            "bidplane_ledger_sequence", "Commits of the ledger.", self._ledger.head.sequence
        )
        yield _gauge(
            "bidplane_round", "The number of the last recorded round.", self._ledger.last_round
        )
        yield _gauge(
            "bidplane_round_seconds", "How long the last round took.", self._exchange.last_seconds
        )
        yield _gauge(
            "bidplane_agents_left_out",
            "Agents that take no part in rounds because their rows cannot be used.",
            len(self._exchange.notes),
        )
        yield self._leases()
        yield self._credits()
        yield from self._market()

    def _leases(self) -> Metric:
        leases = GaugeMetricFamily("bidplane_leases", "Live leases.", labels=["pool", "phase"])
        live = self._ledger.live_leases()
        counts = Counter((lease.pool, lease.phase.value) for lease in live)
        for (pool, phase), count in counts.items():
            leases.add_metric([pool, phase], count)
        return leases

    def _credits(self) -> Metric:
        credits = GaugeMetricFamily(
            "bidplane_credits",
            "Credits in accounts of a kind; all together are 0.",
            labels=["kind"],
        )
        sums: Counter[str] = Counter()
        for account in self._ledger.accounts():
            sums[account.kind.value] += account.posted
        for kind, total in sums.items():
            credits.add_metric([kind], total / MICRO)
        return credits

    def _market(self) -> Iterator[Metric]:
        report = self._exchange.last
        bids = GaugeMetricFamily("bidplane_bids", "Bids of the last round.", labels=["phase"])
        devices = GaugeMetricFamily("bidplane_pool_devices", "GPUs for sale.", labels=["pool"])
        leased = GaugeMetricFamily("bidplane_pool_leased", "GPUs that are leased.", labels=["pool"])
        price = GaugeMetricFamily(
            "bidplane_pool_price_credits", "Credits per GPU-hour for one more.", labels=["pool"]
        )
        if report is not None:
            for phase, count in Counter(s.phase.value for s in report.bids.values()).items():
                bids.add_metric([phase], count)
            for name, pool in report.pools.items():
                devices.add_metric([name], pool.devices)
                leased.add_metric([name], pool.leased)
                if pool.price:
                    price.add_metric([name], parse_credits(pool.price) / MICRO)
        yield from (bids, devices, leased, price)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
