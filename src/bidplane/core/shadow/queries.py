"""
PromQL for the past of pods with GPUs: kube-state-metrics for pods and nodes, DCGM for use.

All of it is asked in windows of bounded length. A window of a range selector is a millisecond short
of it: Prometheus 2 includes both its ends, Prometheus 3 only the later, and a sample on the border
would count in two steps of one and in one of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

REQUESTS = "kube_pod_container_resource_requests"
CREATED = "kube_pod_created"
SCHEDULED = "kube_pod_status_scheduled_time"
COMPLETED = "kube_pod_completion_time"
OWNER = "kube_pod_owner"
ALLOCATABLE = "kube_node_status_allocatable"
ENGINE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"  # a ratio
UTILISATION = "DCGM_FI_DEV_GPU_UTIL"  # percent
PERCENT = {ENGINE: 100.0, UTILISATION: 1.0}  # of one unit of each
TIMES = (CREATED, SCHEDULED, COMPLETED)
# Where Prometheus keeps the target's labels, kube-state-metrics' own are renamed to exported_….
_POD = "namespace, pod, uid, exported_namespace, exported_pod"
_DEVICE = "namespace, pod, exported_namespace, exported_pod, UUID, GPU_I_ID, Hostname"
_LAST_SEEN_STEP = 60  # seconds
_NAMES_LENGTH = 1500  # characters of names in one query, which goes into a URL


def pods_with_gpus(resource: str, seconds: int) -> str:
    """The GPUs that each pod requested, summed over its containers."""
    most = f"max by ({_POD}, container) (max_over_time({_requests(resource)}[{_window(seconds)}]))"
    return f"sum by ({_POD}) ({most})"


def last_seen(resource: str, seconds: int) -> str:
    """The time of the newest sample of each pod."""
    window = f"[{seconds}s:{_LAST_SEEN_STEP}s]"
    return f"max by ({_POD}) (max_over_time(timestamp({_requests(resource)}){window}))"


def time_of(metric: str, resource: str, seconds: int) -> str:
    """A time of each pod with GPUs."""
    return f"max by ({_POD}) (max_over_time({metric}[{_window(seconds)}])) {_of(resource, seconds)}"


def owners(resource: str, seconds: int) -> str:
    """The controller of each pod with GPUs, in the labels `owner_kind` and `owner_name`."""
    labels = f"{_POD}, owner_kind, owner_name"
    return (
        f"max by ({labels}) (max_over_time({OWNER}[{_window(seconds)}])) {_of(resource, seconds)}"
    )


def time_of_named(metric: str, names: str, seconds: int) -> str:
    """A time of each pod of these names, which `named` has put together."""
    return f"max by ({_POD}) ({_named_points(metric, names, seconds)})"


def owners_of_named(names: str, seconds: int) -> str:
    labels = f"{_POD}, owner_kind, owner_name"
    return f"max by ({labels}) ({_named_points(OWNER, names, seconds)})"


def named(pods: Iterable[str]) -> Iterator[str]:
    """Yield regular expressions that match these pods, each short enough for one query."""
    names: list[str] = []
    for pod in sorted(set(pods)):
        names.append(re.escape(pod).replace("\\", "\\\\"))
        if sum(map(len, names)) > _NAMES_LENGTH:
            yield "|".join(names)
            names = []
    if names:
        yield "|".join(names)


def offered(resource: str, seconds: int) -> str:
    """The GPUs that each node offers."""
    chosen = f'{ALLOCATABLE}{{resource="{series_resource(resource)}"}}'
    return f"max by (node) (max_over_time({chosen}[{_window(seconds)}]))"


def busiest(metric: str, step: int) -> str:
    """The largest value of each device in a step."""
    return f"max by ({_DEVICE}) (max_over_time({metric}[{_window(step)}]))"


def series_resource(resource: str) -> str:
    """The name that kube-state-metrics gives to a resource: nvidia_com_gpu."""
    return re.sub(r"[^A-Za-z0-9]", "_", resource)


def _requests(resource: str) -> str:
    return f'{REQUESTS}{{resource="{series_resource(resource)}"}}'


def _of(resource: str, seconds: int) -> str:
    requested = f"max_over_time({_requests(resource)}[{_window(seconds)}])"
    return f"and on ({_POD}) {requested}"


def _window(seconds: int) -> str:
    return f"{1000 * seconds - 1}ms"


def _named_points(metric: str, names: str, seconds: int) -> str:
    return " or ".join(
        f'max_over_time({metric}{{{label}=~"{names}"}}[{_window(seconds)}])'
        for label in ("pod", "exported_pod")
    )
