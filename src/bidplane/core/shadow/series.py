"""Pods with GPUs, put together from the points of a Prometheus, window after window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bidplane.core.shadow import queries
from bidplane.core.shadow.model import Gap, ShadowPod
from bidplane.core.shadow.owners import owner_of

Labels = Mapping[str, str]
_THERE_SECONDS = 300.0  # a pod that was seen this shortly before the end is there at the end


def pod_name(labels: Labels) -> tuple[str, str]:
    """Return the namespace and name of the pod that a series is about; "" for none."""
    if labels.get("exported_pod"):
        return labels.get("exported_namespace", ""), labels["exported_pod"]
    return labels.get("namespace", ""), labels.get("pod", "")


def holder_name(labels: Labels) -> tuple[str, str]:
    """
    Return the namespace and name of the pod that holds a device of DCGM's; "" for none. Without
    `exported_pod` a device that nobody holds may carry the exporter's own pod.
    """
    namespace, name = pod_name(labels)
    if not labels.get("exported_pod") and "dcgm" in name:
        return "", ""
    return namespace, name


@dataclass
class _Pod:
    """The facts about one pod so far; times in seconds, 0 for unknown."""

    namespace: str
    name: str
    gpus: int = 0
    created: float = 0.0
    scheduled: float = 0.0
    completed: float = 0.0
    seen_first: float = 0.0  # as the holder of a device
    seen_last: float = 0.0
    owner: str = ""


class PodHistory:
    """Pods with GPUs, as windows of a Prometheus tell of them, from the oldest on."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str, str], _Pod] = {}  # by namespace, name and uid
        self._by_name: dict[tuple[str, str], list[_Pod]] = {}
        self._series: set[str] = set()  # that had points

    def __repr__(self) -> str:
        return f"<PodHistory {len(self._pods)} pods>"

    def __len__(self) -> int:
        return len(self._pods)

    def has_series(self, metric: str) -> bool:
        return metric in self._series

    def names(self) -> frozenset[tuple[str, str]]:
        return frozenset(self._by_name)

    def requested(self, labels: Labels, gpus: float) -> None:
        self._series.add(queries.REQUESTS)
        pod = self._pod(labels)
        pod.gpus = max(pod.gpus, int(gpus))

    def timed(self, metric: str, labels: Labels, moment: float) -> None:
        """Note a time of a pod: its creation, scheduling or completion."""
        self._series.add(metric)
        pod = self._pod(labels)
        if metric == queries.CREATED:
            pod.created = moment
        elif metric == queries.SCHEDULED:
            pod.scheduled = moment
        else:
            pod.completed = max(pod.completed, moment)

    def seen(self, labels: Labels, moment: float) -> None:
        pod = self._pod(labels)
        pod.seen_last = max(pod.seen_last, moment)

    def owned(self, labels: Labels) -> None:
        self._series.add(queries.OWNER)
        pod = self._pod(labels)
        kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
        pod.owner = owner_of(kind, name, pod=pod.name)

    def held(self, namespace: str, name: str, *, devices: int, begin: float, end: float) -> None:
        """Note a pod that asked for no integers, and under whose name DCGM saw devices."""
        self._pod({"namespace": namespace, "pod": name})
        for pod in self._by_name[namespace, name]:
            pod.gpus = max(pod.gpus, devices)
        pod.seen_first = min(pod.seen_first or begin, begin)
        pod.seen_last = max(pod.seen_last, end)

    def pods(self, *, end: float) -> list[ShadowPod]:
        """Return the pods, as they are when the window ends."""
        return sorted(
            (self._shadow_pod(pod, end) for pod in self._pods.values() if pod.gpus > 0),
            key=lambda pod: (pod.created, pod.namespace, pod.name),
        )

    def gaps(self) -> list[Gap]:
        """Return the series that had no points, and what that costs."""
        return [
            Gap(source=metric, cost=cost)
            for metric, cost in _COSTS.items()
            if metric not in self._series
        ]

    def _pod(self, labels: Labels) -> _Pod:
        """The pod that a series is about; without a uid, the newest of that name."""
        namespace, name = pod_name(labels)
        of_name = self._by_name.setdefault((namespace, name), [])
        uid = labels.get("uid", "")
        if not uid and of_name:
            return of_name[-1]
        key = namespace, name, uid
        if key not in self._pods:
            self._pods[key] = _Pod(namespace, name)
            of_name.append(self._pods[key])
        return self._pods[key]

    def _shadow_pod(self, pod: _Pod, end: float) -> ShadowPod:
        is_there = pod.seen_last >= end - _THERE_SECONDS and not pod.completed
        ended = None if is_there else min(pod.completed or pod.seen_last, end)
        scheduled: float | None = pod.scheduled or pod.seen_first or None
        if scheduled is None and queries.SCHEDULED not in self._series:
            scheduled = pod.created or None
        return ShadowPod(
            namespace=pod.namespace,
            name=pod.name,
            owner=pod.owner or f"Pod/{pod.name}",
            gpus=pod.gpus,
            created=pod.created or scheduled or pod.seen_last,
            scheduled=scheduled,
            ended=ended,
        )


_COSTS = {
    queries.REQUESTS: "only pods under whose name DCGM saw a GPU are known; those that waited in"
    " vain are not",
    queries.CREATED: "how long pods waited is unknown",
    queries.SCHEDULED: "how long pods waited is unknown; GPUs count as held from a pod's creation",
    queries.COMPLETED: "a pod that finishes counts as holding its GPUs until it is deleted, unless"
    " none has finished",
    queries.OWNER: "each pod counts as an owner of its own",
}
