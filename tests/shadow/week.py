"""
A cluster's week, drawn by seed, as its exporters show it; and a referee that counts it.

The referee shares no code with Bidplane. It walks over every step of every device and reads the
single scrapes of the exporters, as the Prometheus has them.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

BEGIN = 1_790_000_100  # on the grid of five minutes, in the middle of a day
HOUR, DAY = 3600, 86_400
KEPT_AFTER = 1800  # seconds for which a finished pod stays in the API


@dataclass
class Pod:
    namespace: str
    name: str
    uid: str
    owner: tuple[str, str]
    gpus: int
    created: int
    seconds: int
    claims: bool = False  # by a ResourceClaim: kube-state-metrics shows no integers of it
    finishes: bool = True  # else it is deleted
    scheduled: int | None = None
    ended: int | None = None
    devices: list[tuple[str, str]] = field(default_factory=list)  # node, uuid
    busy: list[list[tuple[int, int]]] = field(default_factory=list)  # of each device


@dataclass
class Week:
    begin: int
    end: int
    interval: int
    nodes: dict[str, int]
    pods: list[Pod]

    def scrapes(self) -> range:
        return range(self.begin + self.interval, self.end + 1, self.interval)


def draw(seed: int, *, days: int = 7, interval: int = 120, jobs: int = 120) -> Week:
    dice = random.Random(seed)
    begin, end = BEGIN, BEGIN + days * DAY
    nodes = {"node-a": 8, "node-b": 8, "node-c": 4}
    pods = [
        Pod("serving", f"chat-7d9c5b6f4-{name}", f"u-{name}", ("ReplicaSet", "chat-7d9c5b6f4"), 2,
            begin - DAY, 20 * DAY)
        for name in ("aaaaa", "bbbbb")
    ]  # fmt: skip
    # A notebook, which comes back under its own name.
    moment = begin + HOUR
    for number in range(3):
        seconds = int(days * DAY / 4)
        pods.append(Pod("research", "notebook-0", f"n-{number}", ("StatefulSet", "notebook"), 1,
                        moment, seconds, finishes=False))  # fmt: skip
        moment += seconds + HOUR
    for number in range(jobs):
        name, claims = f"train-{number:03}", dice.random() < 0.15
        pods.append(
            Pod(
                dice.choice(["research", "vision"]),
                f"{name}-x7k2p",
                f"j-{number}",
                ("Job", f"nightly-{28_900_000 + number}" if number % 5 == 0 else name),
                dice.choice([1, 1, 1, 2, 4, 8]),
                begin + int(dice.random() * (end - begin - 2 * HOUR)),
                int(min(30 * HOUR, 900 + dice.expovariate(1 / (5 * HOUR)))),
                claims=claims,
                finishes=claims or dice.random() < 0.7,
            )
        )
    _schedule(pods, nodes, end)
    for pod in pods:
        pod.busy = [_busy(dice, pod, end) for _ in pod.devices]
    return Week(begin, end, interval, nodes, pods)


def _schedule(pods: list[Pod], nodes: dict[str, int], end: int) -> None:
    """Give pods devices of one node, the oldest first, as soon as they are free."""
    free = {name: [f"GPU-{name}-{i}" for i in range(count)] for name, count in nodes.items()}
    waiting: list[Pod] = []
    running: list[Pod] = []
    arrivals = sorted(pods, key=lambda pod: pod.created)
    moments = sorted({pod.created for pod in pods})
    while moments:
        now = moments.pop(0)
        for pod in [p for p in running if p.ended is not None and p.ended <= now]:
            running.remove(pod)
            for node, uuid in pod.devices:
                free[node].append(uuid)
        while arrivals and arrivals[0].created <= now:
            waiting.append(arrivals.pop(0))
        for pod in list(waiting):
            roomy = [name for name in sorted(free) if len(free[name]) >= pod.gpus]
            if not roomy:
                continue
            pod.devices = [(roomy[0], free[roomy[0]].pop(0)) for _ in range(pod.gpus)]
            pod.scheduled = now + 7
            ended = pod.scheduled + pod.seconds
            waiting.remove(pod)
            if ended < end - 2 * HOUR:
                pod.ended = ended
                running.append(pod)
                moments = sorted({*moments, ended})


def _busy(dice: random.Random, pod: Pod, end: int) -> list[tuple[int, int]]:
    """Times of work and of nothing in turn; some pods do nothing for most of their life."""
    assert pod.scheduled is not None
    moment, last = pod.scheduled, pod.ended or end
    lazy = dice.random() < 0.3 or not pod.name.startswith("train")
    spans = []
    while moment < last:
        work = int(60 + dice.expovariate(1 / (HOUR if not lazy else 600)))
        spans.append((moment, min(last, moment + work)))
        moment += work + int(30 + dice.expovariate(1 / (600 if not lazy else 5 * HOUR)))
    return spans


# What exporters show


def reading(pod: Pod, number: int, now: int) -> float | None:
    """The utilisation that DCGM shows of one device under the pod's name; None: nothing."""
    if pod.scheduled is None or now < pod.scheduled or (pod.ended and now >= pod.ended):
        return None
    return 85.0 if any(begin <= now < last for begin, last in pod.busy[number]) else 0.0


def shown(pod: Pod, now: int) -> bool:
    """Whether kube-state-metrics shows the pod."""
    if now < pod.created:
        return False
    return pod.ended is None or now < pod.ended + (KEPT_AFTER if pod.finishes else 0)


def openmetrics(week: Week, *, renamed: bool = False, engine: bool = False) -> Iterator[str]:
    """The week as `promtool tsdb create-blocks-from openmetrics` reads it."""
    prefix = "exported_" if renamed else ""
    own = 'namespace="monitoring",pod="exporter-1",' if renamed else ""

    def pod_labels(pod: Pod) -> str:
        return f'{own}{prefix}namespace="{pod.namespace}",{prefix}pod="{pod.name}"'

    metric, unit = (
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.01) if engine else ("DCGM_FI_DEV_GPU_UTIL", 1.0)
    )
    yield f"# TYPE {metric} gauge"
    for pod in week.pods:
        for number, (node, uuid) in enumerate(pod.devices):
            labels = f'{pod_labels(pod)},UUID="{uuid}",Hostname="{node}"'
            for now in week.scrapes():
                value = reading(pod, number, now)
                if value is not None:
                    yield f"{metric}{{{labels}}} {value * unit} {now}"
    yield "# TYPE kube_node_status_allocatable gauge"
    for node, gpus in week.nodes.items():
        for now in week.scrapes():
            label = f'node="{node}",resource="nvidia_com_gpu",unit="integer"'
            yield f"kube_node_status_allocatable{{{label}}} {gpus} {now}"
    for name, value_of, extra in (
        ("kube_pod_created", lambda p, now: p.created, ""),
        ("kube_pod_status_scheduled_time", _scheduled_at, ""),
        ("kube_pod_completion_time", _completed_at, ""),
        ("kube_pod_owner", lambda p, now: 1, "owner"),
        ("kube_pod_container_resource_requests", lambda p, now: p.gpus, "resource"),
    ):
        yield f"# TYPE {name} gauge"
        for pod in week.pods:
            if extra == "resource" and pod.claims:
                continue
            labels = f'{pod_labels(pod)},uid="{pod.uid}"'
            if extra == "owner":
                labels += f',owner_kind="{pod.owner[0]}",owner_name="{pod.owner[1]}"'
            if extra == "resource":
                labels += ',container="main",resource="nvidia_com_gpu",unit="integer"'
            for now in week.scrapes():
                if shown(pod, now) and (value := value_of(pod, now)) is not None:
                    yield f"{name}{{{labels}}} {value} {now}"
    yield "# EOF"


def _scheduled_at(pod: Pod, now: int) -> int | None:
    return pod.scheduled if pod.scheduled is not None and pod.scheduled <= now else None


def _completed_at(pod: Pod, now: int) -> int | None:
    return pod.ended if pod.finishes and pod.ended is not None and pod.ended <= now else None


# The referee


def owner_name(pod: Pod) -> str:
    kind, name = pod.owner
    if kind == "ReplicaSet":
        return "Deployment/" + name[: name.rindex("-")]
    if kind == "Job" and name.startswith("nightly-"):
        return "CronJob/nightly"
    return f"{kind}/{name}"


def last_second(pod: Pod, week: Week) -> int:
    """The end of a pod, as far as its exporters show it."""
    if pod.ended is None:
        return week.end
    if pod.finishes:
        return pod.ended
    return max(now for now in week.scrapes() if shown(pod, now))


def count(week: Week, *, step: int) -> dict[tuple[str, str], dict[str, int]]:
    """The seconds of GPUs by owner: allocated, busy, idle. One step of one device at a time."""
    # DCGM knows a pod by its name only: what a step shows of a name counts for all of that name.
    shows: defaultdict[tuple[str, str, str, int], list[float]] = defaultdict(list)
    for pod in week.pods:
        for number, (_, uuid) in enumerate(pod.devices):
            for now in week.scrapes():
                value = reading(pod, number, now)
                if value is not None:
                    bin_end = -(-now // step) * step
                    shows[pod.namespace, pod.name, uuid, bin_end].append(value)
    seconds: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(
        lambda: {"allocated": 0, "busy": 0, "idle": 0}
    )
    for pod in week.pods:
        if pod.scheduled is None:
            continue
        first, last = max(pod.scheduled, week.begin), last_second(pod, week)
        if last <= first:
            continue
        total = seconds[pod.namespace, owner_name(pod)]
        total["allocated"] += pod.gpus * (last - first)
        for _, uuid in pod.devices:
            for bin_end in range(week.begin + step, week.end + 1, step):
                overlap = min(bin_end, last) - max(bin_end - step, first)
                values = shows.get((pod.namespace, pod.name, uuid, bin_end))
                if overlap > 0 and values:
                    total["busy" if max(values) > 1 else "idle"] += overlap
    return dict(seconds)
