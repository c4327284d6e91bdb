"""The use of the GPUs that pods hold, from the pages of their nodes; read when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from bidplane.api.kinds import NODE, POD
from bidplane.api.views import Pod
from bidplane.errors import ApiError
from bidplane.kube.client import KubeClient
from bidplane.telemetry.dcgm import WORK_METRICS
from bidplane.telemetry.model import Counters
from bidplane.telemetry.pages import NodePages, url_of


class PodGpus:
    """Reads the counters of the GPUs that pods of the host hold."""

    def __init__(self, host: KubeClient, pages: NodePages) -> None:
        self._host, self._pages = host, pages

    async def busy_percents(self, namespace: str, pods: Sequence[str]) -> Sequence[float | None]:
        """Return the use of each GPU of the pods; None in the place of a pod without a report."""
        try:
            nodes = {Pod(await self._host.get(POD, name, namespace)).node_name for name in pods}
            urls = {url_of(await self._host.get(NODE, node)) for node in nodes if node}
        except ApiError:
            return (None,)
        counters = await self._pages.read(urls - {""}, only=WORK_METRICS)
        percents: list[float | None] = []
        for name in pods:
            own = [counter for counter in counters if _is_held_by(counter, namespace, name)]
            percents += [_work(counter) for counter in own] or [None]
        return percents


def _is_held_by(counter: Counters, namespace: str, pod: str) -> bool:
    holder = counter.holder
    return holder is not None and (holder.namespace, holder.pod) == (namespace, pod)


def _work(counter: Counters) -> float | None:
    if counter.utilisation_percent is not None:
        return counter.utilisation_percent
    return counter.engine_percent
