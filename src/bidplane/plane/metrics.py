"""The planes of a server in numbers, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from bidplane.plane.planes import Planes


class PlaneMetrics:
    """A collector."""

    def __init__(self, planes: Planes) -> None:
        self._planes = planes

    def collect(self) -> Iterator[Metric]:
        names = self._planes.names()
        awake = sum(map(self._planes.is_awake, names))
        planes = GaugeMetricFamily("bidplane_planes", "Planes of this server.", labels=["state"])
        planes.add_metric(["awake"], awake)
        planes.add_metric(["asleep"], len(names) - awake)
        yield planes
