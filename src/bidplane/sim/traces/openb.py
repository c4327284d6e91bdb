"""
Alibaba's openb cluster: nodes with GPUs of several models, pods with parts of a GPU.

Read as jobs, a pod runs from its creation to its deletion, and a part counts as a whole GPU:
how well parts are packed is measured by `bidplane bench traces`, one pod after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bidplane.errors import UserError
from bidplane.sim.traces.lines import number, rows
from bidplane.sim.traces.trace import Trace
from bidplane.sim.workload import Job

_NODES, _PODS = "openb_node_list*.csv", "openb_pod_list*.csv"


class Node(NamedTuple):
    cpu: int  # milli
    memory: int  # MiB
    gpus: int
    model: str


class Pod(NamedTuple):
    name: str
    cpu: int
    memory: int
    gpus: int
    milli: int  # of each GPU
    models: tuple[str, ...]  # that will do; none: all
    arrives: int
    ends: int


def is_openb(folder: Path) -> bool:
    return any(folder.glob(_NODES)) and any(folder.glob(_PODS))


def _list(folder: Path, pattern: str, usual: str) -> Path:
    """Of several lists of one kind, the usual one."""
    found = sorted(folder.glob(pattern))
    named = [path for path in found if usual in path.name]
    if not found or (len(found) > 1 and len(named) != 1):
        raise UserError(f"{folder} has {len(found)} lists {pattern}; leave one, or one {usual!r}")
    return named[0] if named else found[0]


def read_nodes(folder: Path) -> list[Node]:
    path = _list(folder, _NODES, "gpu_node")
    found = []
    for where, row in rows(path, ["cpu_milli", "memory_mib", "gpu", "model"]):
        cpu, memory, gpus = _whole(row, where, ("cpu_milli", "memory_mib", "gpu"))
        found.append(Node(cpu, memory, gpus, row["model"]))
    if not found:
        raise UserError(f"{path} has no node in it")
    return found


def read_pods(folder: Path) -> list[Pod]:
    whole = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
    times = ("creation_time", "deletion_time")
    path = _list(folder, _PODS, "default")
    found = []
    for where, row in rows(path, ["name", *whole, "gpu_spec", *times]):
        cpu, memory, gpus, milli = _whole(row, where, whole)
        arrives, ends = _whole(row, where, times)
        if ends < arrives:
            raise UserError(f"{where}: the pod ends before it begins: a negative duration")
        models = tuple(filter(None, row["gpu_spec"].split("|")))
        found.append(Pod(row["name"], cpu, memory, gpus, milli, models, arrives, ends))
    if not found:
        raise UserError(f"{path} has no pod in it")
    return found


def _whole(row: Mapping[str, str], where: str, names: Sequence[str]) -> list[int]:
    return [int(number(row[name], where, name)) for name in names]


def read(folder: Path) -> Trace:
    nodes = [node for node in read_nodes(folder) if node.gpus]
    models = sorted({node.model for node in nodes})
    pods = sorted((pod for pod in read_pods(folder) if pod.gpus), key=lambda pod: pod.arrives)
    jobs = [
        Job(
            name=pod.name,
            arrives=pod.arrives,
            gpus=pod.gpus,
            seconds=max(1, pod.ends - pod.arrives),
            speeds=dict.fromkeys(pod.models or models, 1.0),
        )
        for pod in pods
    ]
    what = f"openb: {len(jobs)} pods with GPUs on {len(nodes)} nodes, parts as whole GPUs"
    return Trace(jobs, what, tuple(n.gpus for n in nodes), tuple(n.model for n in nodes))
