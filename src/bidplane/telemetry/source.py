"""The exchange's source of GPU counters: the Prometheus an operator names, else our own nodes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bidplane.api.kinds import Object
from bidplane.api.objects import labels_of
from bidplane.telemetry.dcgm import WORK_METRICS
from bidplane.telemetry.model import Counters
from bidplane.telemetry.pages import NodePages, url_of
from bidplane.telemetry.prometheus import PrometheusReader


class CounterSource:
    """
    Reads what GPUs do. Without a Prometheus, from the pages of nodes with one of `node_labels`: a
    cluster's own kubelets have pages, too, with nothing of GPUs in them.
    """

    def __init__(
        self,
        pages: NodePages,
        *,
        node_labels: Collection[str],
        prometheus: PrometheusReader | None = None,
    ) -> None:
        self._pages, self._node_labels, self._prometheus = pages, node_labels, prometheus

    async def counters(self, nodes: Sequence[Object]) -> Sequence[Counters]:
        if self._prometheus is not None:
            return await self._prometheus.read(only=WORK_METRICS)
        ours = [node for node in nodes if not labels_of(node).keys().isdisjoint(self._node_labels)]
        urls = {url for node in ours if (url := url_of(node))}
        return await self._pages.read(urls, only=WORK_METRICS)

    async def close(self) -> None:
        await self._pages.close()
        if self._prometheus is not None:
            await self._prometheus.close()
