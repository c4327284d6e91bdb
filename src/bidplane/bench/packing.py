"""
Packing pods with parts of GPUs onto a cluster, one at a time, without removal (openb's experiment).

Nodes start empty. Pods arrive in an order drawn from a seed, then more are drawn from the same list
until 1.3 times the cluster's GPUs have been asked for; pods that fit nowhere are dropped. The
figure is the share of the GPUs that is served. A node's CPU is used up as pods request it, which
is the experiment's rule; or it comes in proportion to the GPUs, as a lease has it. (The rules are
those of the FGD paper's simulator; the policies are written anew from their descriptions.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidplane.bench.report import Result, more, progress, ratio_at_least
from bidplane.sim.traces import openb

GPU = 1000  # milli
WIDEST = 8  # GPUs of a node
RATIO = 1.3
SEEDS = (42, 43, 44, 45, 46)
COARSE = 20  # milli; losses closer than that are equal
STEP = 10  # milli; the free part of a GPU is valued in such steps

Array = NDArray[Any]


class PackedPod(NamedTuple):
    """A pod of the experiment."""

    cpu: int
    memory: int
    gpus: int
    milli: int  # of each
    models: tuple[str, ...] = ()  # () is any

    @property
    def requested(self) -> int:
        """The GPU milli it asks for."""
        return self.gpus * self.milli

    @property
    def is_part(self) -> bool:
        return self.gpus == 1 and self.milli < GPU


class PackedNode(NamedTuple):
    """A node of the experiment."""

    cpu: int
    memory: int
    gpus: int
    model: str


def read(folder: Path) -> tuple[list[PackedNode], list[PackedPod]]:
    nodes = [PackedNode(n.cpu, n.memory, n.gpus, n.model) for n in openb.read_nodes(folder)]
    pods = [
        PackedPod(
            pod.cpu,
            pod.memory,
            pod.gpus,
            min(GPU, pod.milli) if pod.gpus else 0,
            tuple(sorted(pod.models)) if pod.gpus else (),
        )
        for pod in openb.read_pods(folder)
    ]
    return nodes, pods


def draw(
    seed: int, *, nodes: int = 60, pods: int = 400
) -> tuple[list[PackedNode], list[PackedPod]]:
    """Draw a small cluster of the same kind, for use without the data."""
    generator = np.random.default_rng(seed)
    kinds = [(96_000, 393_216, 8, "A"), (64_000, 262_144, 4, "B"), (48_000, 131_072, 2, "C")]
    drawn_nodes = [PackedNode(*kinds[i]) for i in generator.choice(3, nodes, p=[0.4, 0.3, 0.3])]
    parts = [120, 250, 310, 460, 500, 570, 640, 810, 900, GPU, GPU, GPU]
    drawn_pods = []
    for _ in range(pods):
        gpus = int(generator.choice([0, 1, 2, 4, 8], p=[0.13, 0.83, 0.02, 0.01, 0.01]))
        milli = int(generator.choice(parts)) if gpus == 1 else GPU * (gpus > 0)
        cpu = int(generator.choice([2, 4, 6, 8, 11])) * 1000 * max(1, gpus)
        drawn_pods.append(PackedPod(cpu, cpu // 1000 * 2048, gpus, milli))
    return drawn_nodes, drawn_pods


class PackedCluster:
    """The free capacity of each node. The nodes' order is drawn: ties go to the first."""

    def __init__(self, nodes: Sequence[PackedNode], order: Sequence[int]) -> None:
        ordered = [nodes[i] for i in order]
        self.cpu = np.array([n.cpu for n in ordered], dtype=np.int64)
        self.memory = np.array([n.memory for n in ordered], dtype=np.int64)
        self.model = np.array([n.model for n in ordered])
        self.gpu = np.full((len(ordered), WIDEST), -1, dtype=np.int64)  # -1: no such GPU
        for i, node in enumerate(ordered):
            self.gpu[i, : node.gpus] = GPU
        self.total = GPU * sum(n.gpus for n in ordered)
        self.used = 0
        self.changed: list[int] = []  # nodes, in the order of allocations

    def fits(self, pod: PackedPod, rows: Array) -> Array:
        """A mask of the nodes that have room for the pod."""
        fitting = (self.cpu[rows] >= pod.cpu) & (self.memory[rows] >= pod.memory)
        if pod.gpus:
            fitting &= (self.gpu[rows] >= pod.milli).sum(1) >= pod.gpus
            if pod.models:
                fitting &= np.isin(self.model[rows], pod.models)
        return fitting

    def take(self, node: int, devices: Sequence[int], pod: PackedPod) -> None:
        """Allocate the pod on these devices."""
        self.cpu[node] -= pod.cpu
        self.memory[node] -= pod.memory
        for device in devices:
            self.gpu[node, device] -= pod.milli
        short = min(self.cpu[node], self.memory[node], *self.gpu[node][list(devices)], GPU)
        if short < 0 or len(devices) != pod.gpus:
            raise RuntimeError(f"{pod} does not fit on {devices} of node {node}")
        self.used += pod.requested
        self.changed.append(node)


class FirstFit:
    """Chooses the first node with room, and on it the fullest GPU."""

    name = "first fit"

    def __init__(self, cluster: PackedCluster, pods: Sequence[PackedPod]) -> None:
        self.cluster = cluster
        self._cached: dict[PackedPod, tuple[Array, int]] = {}

    def place(self, pod: PackedPod) -> tuple[int, list[int]] | None:
        """The node and devices for a pod, or None."""
        scores = self._scores(pod)
        node = int(np.argmax(scores))
        if scores[node] == -np.inf:
            return None
        return node, self.devices(node, pod)

    def score(self, pod: PackedPod, rows: Array) -> Array:
        """The scores of nodes with room; larger is better."""
        return np.zeros(len(rows))

    def devices(self, node: int, pod: PackedPod) -> list[int]:
        """The devices of the node that the pod gets."""
        row = self.cluster.gpu[node]
        if pod.is_part:
            return [int(np.argmin(np.where(row >= pod.milli, row, GPU + 1)))]
        return [int(d) for d in np.flatnonzero(row == GPU)[: pod.gpus]] if pod.gpus else []

    def _scores(self, pod: PackedPod) -> Array:
        """The scores of all nodes: computed once per kind of pod, then only for changed nodes."""
        cluster = self.cluster
        scores, changes_seen = self._cached.get(pod, (np.full(len(cluster.cpu), -np.inf), -1))
        rows = (
            np.arange(len(cluster.cpu))
            if changes_seen < 0
            else np.unique(cluster.changed[changes_seen:])
        )
        if len(rows):
            rows = rows.astype(np.int64)
            fitting = cluster.fits(pod, rows)
            scores[rows[~fitting]] = -np.inf
            if fitting.any():
                scores[rows[fitting]] = self.score(pod, rows[fitting])
        self._cached[pod] = scores, len(cluster.changed)
        return scores


class FGD(FirstFit):
    """
    Fragmentation gradient descent: chooses where the GPU capacity that typical pods could not use
    grows least. Its scores are whole numbers from 0 to 100.
    """

    name = "FGD"

    def __init__(self, cluster: PackedCluster, pods: Sequence[PackedPod]) -> None:
        super().__init__(cluster, pods)
        self._typical = typical_pods(pods)

    def score(self, pod: PackedPod, rows: Array) -> Array:
        return self._by_device(pod, rows)[0]

    def devices(self, node: int, pod: PackedPod) -> list[int]:
        if pod.is_part:
            return [int(self._by_device(pod, np.array([node]))[1][0])]
        return super().devices(node, pod)

    def _by_device(self, pod: PackedPod, nodes: Array) -> tuple[Array, Array]:
        """The score of each node, and the device that gives it."""
        cpu, gpu, model = (
            self.cluster.cpu[nodes],
            self.cluster.gpu[nodes],
            self.cluster.model[nodes],
        )
        before = self._lost(cpu, gpu, model)
        best, chosen = np.full(len(nodes), -np.inf), np.zeros(len(nodes), dtype=np.int64)
        if not pod.is_part:
            after = gpu.copy()
            free = after == GPU
            after[free & (np.cumsum(free, 1) <= pod.gpus)] = 0
            return _rounded_score(before - self._lost(cpu - pod.cpu, after, model)), chosen
        for device in range(WIDEST):
            rows = np.flatnonzero(gpu[:, device] >= pod.milli)
            if len(rows):
                after = gpu[rows].copy()
                after[:, device] -= pod.milli
                lost = self._lost(cpu[rows] - pod.cpu, after, model[rows])
                score = _rounded_score(before[rows] - lost)
                better = score > best[rows]
                best[rows[better]], chosen[rows[better]] = score[better], device
        return best, chosen

    def _lost(self, cpu: Array, gpu: Array, model: Array) -> Array:
        """The GPU milli that a typical pod, drawn by frequency, could not use."""
        free = np.maximum(gpu, 0)
        all_free = free.sum(1).astype(float)
        lost = np.zeros(len(cpu))
        for pod, share in self._typical:
            if not pod.gpus:
                lost += share * all_free
                continue
            fit = gpu >= pod.milli
            able = (fit.sum(1) >= pod.gpus) & (cpu >= pod.cpu)
            if pod.models:
                able &= np.isin(model, pod.models)
            lost += share * np.where(able, np.where(fit, 0, free).sum(1), all_free)
        return lost


def _rounded_score(gained: Array) -> Array:
    """FGD's score of a gain: a whole number from 0 to 100."""
    scores: Array = np.floor(100 / (1 + np.exp(-gained / GPU)))
    return scores


def typical_pods(pods: Sequence[PackedPod]) -> list[tuple[PackedPod, float]]:
    """The kinds that make up 95 % of the pods, with their shares."""
    kinds = Counter(pod._replace(memory=0) for pod in pods)
    chosen: list[tuple[PackedPod, int]] = []
    for kind, count in kinds.most_common():
        if sum(n for _, n in chosen) >= 0.95 * len(pods):
            break
        chosen.append((kind, count))
    total = sum(count for _, count in chosen)
    return [(kind, count / total) for kind, count in chosen]


class Leftovers(FirstFit):
    """
    Our policy: chooses the GPU whose free part loses least of its value.

    The free part of a GPU is worth what later pods will use of it: `waste` is the part that is
    expected to stay unused if pods are packed first fit from then on. A node without CPU for its
    GPUs strands them.
    """

    name = "leftovers"

    def __init__(self, cluster: PackedCluster, pods: Sequence[PackedPod]) -> None:
        super().__init__(cluster, pods)
        self._waste = waste(pods)
        per_gpu = [1000 * pod.cpu / pod.requested for pod in pods if pod.gpus]
        self._cpu_per_gpu = float(np.median(per_gpu)) if per_gpu else 1.0

    def score(self, pod: PackedPod, rows: Array) -> Array:
        gpu = self.cluster.gpu[rows]
        free = np.maximum(gpu, 0).sum(1)
        cpu = self.cluster.cpu[rows]
        lost = self._stranded(cpu - pod.cpu, free - pod.requested) - self._stranded(cpu, free)
        if pod.is_part:
            lost = lost + self._losses(gpu, pod).min(1)
        # In coarse steps: among nearly equal nodes the first wins, which fills nodes up.
        score: Array = -np.floor(lost / COARSE)
        return score

    def devices(self, node: int, pod: PackedPod) -> list[int]:
        if pod.is_part:
            return [int(np.argmin(self._losses(self.cluster.gpu[node : node + 1], pod)[0]))]
        return super().devices(node, pod)

    def _losses(self, gpu: Array, pod: PackedPod) -> Array:
        """The expected increase of waste, by device."""
        fit = gpu >= pod.milli
        before = self._waste[np.maximum(gpu, 0) // STEP]
        after = self._waste[np.where(fit, gpu - pod.milli, 0) // STEP]
        losses: Array = np.where(fit, after - before, np.inf)
        return losses

    def _stranded(self, cpu: Array, free: Array) -> Array:
        """The GPU milli that the node's CPU cannot serve."""
        stranded: Array = np.maximum(0.0, free - 1000.0 * cpu / self._cpu_per_gpu)
        return stranded


def waste(pods: Sequence[PackedPod]) -> Array:
    """The expected unused part of a GPU, by its free part in steps."""
    sizes = Counter(-(-pod.milli // STEP) for pod in pods if pod.gpus == 1)
    wasted = np.zeros(GPU // STEP + 1)
    for room in range(1, len(wasted)):
        fitting = [(wasted[room - size], count) for size, count in sizes.items() if size <= room]
        total = sum(count for _, count in fitting)
        wasted[room] = sum(w * count for w, count in fitting) / total if total else room * STEP
    return wasted


class ExchangePacking(FirstFit):
    """
    Sells parts as the exchange does (`core.devices.placement`): as large as they are asked for, on
    the fullest partitioned GPU with room, else on the tightest node; whole GPUs there, too.
    """

    name = "exchange"

    def score(self, pod: PackedPod, rows: Array) -> Array:
        gpu = self.cluster.gpu[rows]
        tightest: Array = -(gpu == GPU).sum(1).astype(float)
        if not pod.is_part:
            return tightest if pod.gpus else super().score(pod, rows)
        fullest = _free_on_partitioned(gpu, pod).min(1)
        score: Array = np.where(fullest < GPU, GPU - fullest, tightest)
        return score

    def devices(self, node: int, pod: PackedPod) -> list[int]:
        fullest = _free_on_partitioned(self.cluster.gpu[node], pod)
        if pod.is_part and fullest.min() < GPU:
            return [int(np.argmin(fullest))]
        return [int(d) for d in np.flatnonzero(self.cluster.gpu[node] == GPU)[: pod.gpus]]


def _free_on_partitioned(gpu: Array, pod: PackedPod) -> Array:
    """The free part of partitioned GPUs with room; a whole GPU for all others."""
    free: Array = np.where((gpu >= pod.milli) & (gpu < GPU), gpu, GPU)
    return free


def served(
    nodes: Sequence[PackedNode], pods: Sequence[PackedPod], policy: type[FirstFit], seed: int
) -> float:
    """Pack the pods with a policy. Return the percentage of the GPUs that was asked for and got."""
    generator = np.random.default_rng(seed)
    cluster = PackedCluster(nodes, generator.permutation(len(nodes)).tolist())
    arriving = [pods[i] for i in generator.permutation(len(pods))]
    requested, most = sum(pod.requested for pod in pods), RATIO * cluster.total
    while requested > most:  # a longer list is thinned
        requested -= arriving.pop(int(generator.integers(len(arriving)))).requested
    while True:
        pod = pods[int(generator.integers(len(pods)))]
        if requested + pod.requested > most:
            break
        requested += pod.requested
        arriving.append(pod)
    chosen = policy(cluster, pods)
    for pod in arriving:
        placement = chosen.place(pod)
        if placement is not None:
            cluster.take(*placement, pod)
    return 100 * cluster.used / cluster.total


def with_cpu_in_proportion(pods: Sequence[PackedPod]) -> list[PackedPod]:
    """Return the pods with as much CPU and memory as comes with their GPUs, as a lease has it."""
    return [pod._replace(cpu=0, memory=0) for pod in pods]


def results(*, quick: bool, data: Path | None) -> tuple[list[Result], str]:
    """The results, and a description of the measurement."""
    folder = data / "openb" if data else None
    seeds: tuple[int, ...]
    if folder is not None and openb.is_openb(folder):
        nodes, pods = read(folder)
        if quick:
            nodes, pods = nodes[::8], pods[::8]
        seeds = SEEDS[:1] if quick else SEEDS
        part = "an eighth of openb" if quick else "openb"
        how = f"{part}: {len(nodes)} nodes, {len(pods)} pods, seeds {seeds[0]}–{seeds[-1]}"
    else:
        seeds = SEEDS[:2] if quick else SEEDS
        nodes, pods = draw(seeds[0])
        how = f"packing: {len(nodes)} drawn nodes, {len(pods)} drawn pods, {len(seeds)} seeds"
    in_proportion = with_cpu_in_proportion(pods)
    ours, peers = (ExchangePacking, Leftovers), (FGD, FirstFit)
    todo = [
        (cpu, listed, policy, seed)
        for cpu, listed in (("as requested", pods), ("as the GPUs", in_proportion))
        for policy in (*ours, *peers)
        for seed in seeds
        if policy is not Leftovers or listed is pods  # which places by CPU
    ]
    percents: dict[tuple[str, str], list[float]] = {}
    for cpu, listed, policy, seed in progress("packing", todo, total=len(todo)):
        percents.setdefault((cpu, policy.name), []).append(served(nodes, listed, policy, seed))
    means = {key: float(np.mean(values)) for key, values in percents.items()}
    rows = {
        "packing: GPU served as asked, CPU as requested": ("as requested", ExchangePacking.name),
        "packing: the same, placed by waste and CPU": ("as requested", Leftovers.name),
        "packing: GPU served as asked, CPU as the GPUs": ("as the GPUs", ExchangePacking.name),
    }
    return [
        more(
            metric,
            "%",
            means[key],
            peer=means[key[0], peer.name],
            peer_name=peer.name,
            aim=ratio_at_least(1.0) if peer is FGD else None,
        )
        for metric, key in rows.items()
        for peer in peers
    ], how
