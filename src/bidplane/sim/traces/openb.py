"""
Alibaba's openb cluster: nodes with GPUs of several models, pods with parts of a GPU.

Read as jobs, a pod runs from its creation to its deletion, and a part counts as a whole GPU. The
packing of parts is measured by `bidplane bench traces`, one pod after another.
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


class TraceNode(NamedTuple):
    """A node of the trace."""

    cpu: int  # milli
    memory: int  # MiB
    gpus: int
    model: str


class TracePod(NamedTuple):
    """A pod of the trace."""

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


def _list(folder: Path, pattern: str, preferred_name: str) -> Path:
    """The file that matches the pattern; of several, the one with the preferred name."""
    files = sorted(folder.glob(pattern))
    preferred = [path for path in files if preferred_name in path.name]
    if not files or (len(files) > 1 and len(preferred) != 1):
        raise UserError(
            f"{folder} has {len(files)} lists {pattern}; leave one, or one {preferred_name!r}"
        )
    return preferred[0] if preferred else files[0]


def read_nodes(folder: Path) -> list[TraceNode]:
    path = _list(folder, _NODES, "gpu_node")
    nodes = []
    for location, row in rows(path, ["cpu_milli", "memory_mib", "gpu", "model"]):
        cpu, memory, gpus = _integers(row, location, ("cpu_milli", "memory_mib", "gpu"))
        nodes.append(TraceNode(cpu, memory, gpus, row["model"]))
    if not nodes:
        raise UserError(f"{path} has no node in it")
    return nodes


def read_pods(folder: Path) -> list[TracePod]:
    integer_columns = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
    times = ("creation_time", "deletion_time")
    path = _list(folder, _PODS, "default")
    pods = []
    for location, row in rows(path, ["name", *integer_columns, "gpu_spec", *times]):
        cpu, memory, gpus, milli = _integers(row, location, integer_columns)
        arrives, ends = _integers(row, location, times)
        if ends < arrives:
            raise UserError(f"{location}: the pod ends before it begins: a negative duration")
        models = tuple(filter(None, row["gpu_spec"].split("|")))
        pods.append(TracePod(row["name"], cpu, memory, gpus, milli, models, arrives, ends))
    if not pods:
        raise UserError(f"{path} has no pod in it")
    return pods


def _integers(row: Mapping[str, str], location: str, names: Sequence[str]) -> list[int]:
    return [int(number(row[name], location, name)) for name in names]


def read(folder: Path) -> Trace:
    """Read the trace as jobs and nodes."""
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
    description = f"openb: {len(jobs)} pods with GPUs on {len(nodes)} nodes, parts as whole GPUs"
    return Trace(jobs, description, tuple(n.gpus for n in nodes), tuple(n.model for n in nodes))
