"""
Packing pods with parts of GPUs onto a cluster, one at a time, for good: the openb experiment.

Nodes start empty. Pods arrive in an order drawn from a seed, then more are drawn from the
same list until 1.3 times the cluster's GPUs have been asked for; what fits nowhere is
dropped. The figure is the share of all GPU time that nobody got. (The rules are those of
the FGD paper's simulator; the policies are written anew from what they are described to do.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidplane.bench.report import Result, less, progress, ratio_at_least
from bidplane.core.chain import fraction_share
from bidplane.sim.traces import openb

GPU = 1000  # milli
WIDEST = 8  # GPUs of a node
RATIO = 1.3
SEEDS = (42, 43, 44, 45, 46)
COARSE = 20  # milli; losses closer than that are equal
STEP = 10  # milli; what is left of a GPU is valued in such steps

Array = NDArray[Any]


class Pod(NamedTuple):
    cpu: int
    memory: int
    gpus: int
    milli: int  # of each
    models: tuple[str, ...] = ()  # () is any

    @property
    def asked(self) -> int:
        return self.gpus * self.milli

    @property
    def is_part(self) -> bool:
        return self.gpus == 1 and self.milli < GPU


class Node(NamedTuple):
    cpu: int
    memory: int
    gpus: int
    model: str


def read(folder: Path) -> tuple[list[Node], list[Pod]]:
    nodes = [Node(n.cpu, n.memory, n.gpus, n.model) for n in openb.read_nodes(folder)]
    pods = [
        Pod(
            pod.cpu,
            pod.memory,
            pod.gpus,
            min(GPU, pod.milli) if pod.gpus else 0,
            tuple(sorted(pod.models)) if pod.gpus else (),
        )
        for pod in openb.read_pods(folder)
    ]
    return nodes, pods


def draw(seed: int, *, nodes: int = 60, pods: int = 400) -> tuple[list[Node], list[Pod]]:
    """A small cluster of the same kind, for those who have no data."""
    dice = np.random.default_rng(seed)
    kinds = [(96_000, 393_216, 8, "A"), (64_000, 262_144, 4, "B"), (48_000, 131_072, 2, "C")]
    made = [Node(*kinds[i]) for i in dice.choice(3, nodes, p=[0.4, 0.3, 0.3])]
    parts = [120, 250, 310, 460, 500, 570, 640, 810, 900, GPU, GPU, GPU]
    wanted = []
    for _ in range(pods):
        gpus = int(dice.choice([0, 1, 2, 4, 8], p=[0.13, 0.83, 0.02, 0.01, 0.01]))
        milli = int(dice.choice(parts)) if gpus == 1 else GPU * (gpus > 0)
        cpu = int(dice.choice([2, 4, 6, 8, 11])) * 1000 * max(1, gpus)
        wanted.append(Pod(cpu, cpu // 1000 * 2048, gpus, milli))
    return made, wanted


class Cluster:
    """What is left of each node. Their order is drawn: ties go to the first."""

    def __init__(self, nodes: Sequence[Node], order: Sequence[int]) -> None:
        ordered = [nodes[i] for i in order]
        self.cpu = np.array([n.cpu for n in ordered], dtype=np.int64)
        self.memory = np.array([n.memory for n in ordered], dtype=np.int64)
        self.model = np.array([n.model for n in ordered])
        self.gpu = np.full((len(ordered), WIDEST), -1, dtype=np.int64)  # -1: there is none
        for i, node in enumerate(ordered):
            self.gpu[i, : node.gpus] = GPU
        self.total = GPU * sum(n.gpus for n in ordered)
        self.used = 0
        self.changed: list[int] = []  # nodes, in the order they were taken from

    def fits(self, pod: Pod, at: Array) -> Array:
        ok = (self.cpu[at] >= pod.cpu) & (self.memory[at] >= pod.memory)
        if pod.gpus:
            ok &= (self.gpu[at] >= pod.milli).sum(1) >= pod.gpus
            if pod.models:
                ok &= np.isin(self.model[at], pod.models)
        return ok

    def take(self, node: int, devices: Sequence[int], pod: Pod) -> None:
        self.cpu[node] -= pod.cpu
        self.memory[node] -= pod.memory
        for device in devices:
            self.gpu[node, device] -= pod.milli
        short = min(self.cpu[node], self.memory[node], *self.gpu[node][list(devices)], GPU)
        if short < 0 or len(devices) != pod.gpus:
            raise RuntimeError(f"{pod} does not fit on {devices} of node {node}")
        self.used += pod.asked
        self.changed.append(node)


class FirstFit:
    """The first node that has room, and on it the fullest GPU."""

    name = "first fit"

    def __init__(self, cluster: Cluster, pods: Sequence[Pod]) -> None:
        self.cluster = cluster
        self._known: dict[Pod, tuple[Array, int]] = {}

    def sold(self, pod: Pod) -> Pod:
        """What is handed out for what is asked for."""
        return pod

    def place(self, pod: Pod) -> tuple[int, list[int]] | None:
        scores = self._scores(pod)
        node = int(np.argmax(scores))
        if scores[node] == -np.inf:
            return None
        return node, self.devices(node, pod)

    def score(self, pod: Pod, at: Array) -> Array:
        """Larger is better; only of nodes that have room."""
        return np.zeros(len(at))

    def devices(self, node: int, pod: Pod) -> list[int]:
        row = self.cluster.gpu[node]
        if pod.is_part:
            return [int(np.argmin(np.where(row >= pod.milli, row, GPU + 1)))]
        return [int(d) for d in np.flatnonzero(row == GPU)[: pod.gpus]] if pod.gpus else []

    def _scores(self, pod: Pod) -> Array:
        """Scored once per kind of pod; then only where something was taken since."""
        cluster = self.cluster
        scores, seen = self._known.get(pod, (np.full(len(cluster.cpu), -np.inf), -1))
        at = np.arange(len(cluster.cpu)) if seen < 0 else np.unique(cluster.changed[seen:])
        if len(at):
            at = at.astype(np.int64)
            ok = cluster.fits(pod, at)
            scores[at[~ok]] = -np.inf
            if ok.any():
                scores[at[ok]] = self.score(pod, at[ok])
        self._known[pod] = scores, len(cluster.changed)
        return scores


class FGD(FirstFit):
    """
    Fragmentation gradient descent: to where the GPU time that the usual pods could not use
    grows least. Its scores are whole numbers from 0 to 100.
    """

    name = "FGD"

    def __init__(self, cluster: Cluster, pods: Sequence[Pod]) -> None:
        super().__init__(cluster, pods)
        self._usual = usual(pods)

    def score(self, pod: Pod, at: Array) -> Array:
        return self._by_device(pod, at)[0]

    def devices(self, node: int, pod: Pod) -> list[int]:
        if pod.is_part:
            return [int(self._by_device(pod, np.array([node]))[1][0])]
        return super().devices(node, pod)

    def _by_device(self, pod: Pod, at: Array) -> tuple[Array, Array]:
        """The score of each node, and the device that gives it."""
        cpu, gpu, model = self.cluster.cpu[at], self.cluster.gpu[at], self.cluster.model[at]
        before = self._lost(cpu, gpu, model)
        best, chosen = np.full(len(at), -np.inf), np.zeros(len(at), dtype=np.int64)
        if not pod.is_part:
            after = gpu.copy()
            free = after == GPU
            after[free & (np.cumsum(free, 1) <= pod.gpus)] = 0
            return _whole(before - self._lost(cpu - pod.cpu, after, model)), chosen
        for device in range(WIDEST):
            rows = np.flatnonzero(gpu[:, device] >= pod.milli)
            if len(rows):
                after = gpu[rows].copy()
                after[:, device] -= pod.milli
                lost = self._lost(cpu[rows] - pod.cpu, after, model[rows])
                score = _whole(before[rows] - lost)
                better = score > best[rows]
                best[rows[better]], chosen[rows[better]] = score[better], device
        return best, chosen

    def _lost(self, cpu: Array, gpu: Array, model: Array) -> Array:
        """GPU milli that a pod of the usual kinds, drawn by how usual, could not use."""
        left = np.maximum(gpu, 0)
        all_left = left.sum(1).astype(float)
        lost = np.zeros(len(cpu))
        for pod, share in self._usual:
            if not pod.gpus:
                lost += share * all_left
                continue
            fit = gpu >= pod.milli
            able = (fit.sum(1) >= pod.gpus) & (cpu >= pod.cpu)
            if pod.models:
                able &= np.isin(model, pod.models)
            lost += share * np.where(able, np.where(fit, 0, left).sum(1), all_left)
        return lost


def _whole(gained: Array) -> Array:
    scores: Array = np.floor(100 / (1 + np.exp(-gained / GPU)))
    return scores


def usual(pods: Sequence[Pod]) -> list[tuple[Pod, float]]:
    """The kinds that make up 95 % of the pods, with their shares."""
    kinds = Counter(pod._replace(memory=0) for pod in pods)
    chosen: list[tuple[Pod, int]] = []
    for kind, count in kinds.most_common():
        if sum(n for _, n in chosen) >= 0.95 * len(pods):
            break
        chosen.append((kind, count))
    total = sum(count for _, count in chosen)
    return [(kind, count / total) for kind, count in chosen]


class Leftovers(FirstFit):
    """
    Ours: to the GPU whose leftover loses least of its worth.

    What is left of a GPU is worth what pods to come will make of it: `waste` says how much
    of it is expected to stay unused if it goes to whoever fits next, again and again. A
    node without CPU for its GPUs strands them.
    """

    name = "leftovers"

    def __init__(self, cluster: Cluster, pods: Sequence[Pod]) -> None:
        super().__init__(cluster, pods)
        self._waste = waste(pods)
        per_gpu = [1000 * pod.cpu / pod.asked for pod in pods if pod.gpus]
        self._cpu_per_gpu = float(np.median(per_gpu)) if per_gpu else 1.0

    def score(self, pod: Pod, at: Array) -> Array:
        gpu = self.cluster.gpu[at]
        left = np.maximum(gpu, 0).sum(1)
        cpu = self.cluster.cpu[at]
        lost = self._stranded(cpu - pod.cpu, left - pod.asked) - self._stranded(cpu, left)
        if pod.is_part:
            lost = lost + self._losses(gpu, pod).min(1)
        # In coarse steps: among the nearly equal the first node wins, which fills nodes up.
        score: Array = -np.floor(lost / COARSE)
        return score

    def devices(self, node: int, pod: Pod) -> list[int]:
        if pod.is_part:
            return [int(np.argmin(self._losses(self.cluster.gpu[node : node + 1], pod)[0]))]
        return super().devices(node, pod)

    def _losses(self, gpu: Array, pod: Pod) -> Array:
        """By device: how much more waste is to be expected."""
        fit = gpu >= pod.milli
        before = self._waste[np.maximum(gpu, 0) // STEP]
        after = self._waste[np.where(fit, gpu - pod.milli, 0) // STEP]
        losses: Array = np.where(fit, after - before, np.inf)
        return losses

    def _stranded(self, cpu: Array, left: Array) -> Array:
        stranded: Array = np.maximum(0.0, left - 1000.0 * cpu / self._cpu_per_gpu)
        return stranded


def waste(pods: Sequence[Pod]) -> Array:
    """By what is left of a GPU, in steps: how much of it is expected to stay unused."""
    sizes = Counter(-(-pod.milli // STEP) for pod in pods if pod.gpus == 1)
    wasted = np.zeros(GPU // STEP + 1)
    for room in range(1, len(wasted)):
        fitting = [(wasted[room - size], count) for size, count in sizes.items() if size <= room]
        total = sum(count for _, count in fitting)
        wasted[room] = sum(w * count for w, count in fitting) / total if total else room * STEP
    return wasted


class Exchange(FirstFit):
    """
    As the exchange sells parts (`core.placement`): halves, quarters and eighths, on the fullest
    GPU that is cut already and has room, else on the tightest node; whole GPUs there, too.
    """

    name = "exchange"

    def sold(self, pod: Pod) -> Pod:
        if not pod.is_part:
            return pod
        try:
            share = Fraction(fraction_share(str(Fraction(pod.milli, GPU))))
        except ValueError:  # more than a half
            share = Fraction(1)
        return pod._replace(milli=int(GPU * share))

    def score(self, pod: Pod, at: Array) -> Array:
        gpu = self.cluster.gpu[at]
        tightest: Array = -(gpu == GPU).sum(1).astype(float)
        if not pod.is_part:
            return tightest if pod.gpus else super().score(pod, at)
        fullest = _cut(gpu, pod).min(1)
        score: Array = np.where(fullest < GPU, GPU - fullest, tightest)
        return score

    def devices(self, node: int, pod: Pod) -> list[int]:
        fullest = _cut(self.cluster.gpu[node], pod)
        if pod.is_part and fullest.min() < GPU:
            return [int(np.argmin(fullest))]
        return [int(d) for d in np.flatnonzero(self.cluster.gpu[node] == GPU)[: pod.gpus]]


def _cut(gpu: Array, pod: Pod) -> Array:
    """What is left of GPUs that are cut and have room; of others, all."""
    left: Array = np.where((gpu >= pod.milli) & (gpu < GPU), gpu, GPU)
    return left


class Packed(NamedTuple):
    """In percent of the cluster's GPUs."""

    unallocated: float  # what nobody got
    unasked: float  # the same, and what was handed out beyond what was asked for


def pack(nodes: Sequence[Node], pods: Sequence[Pod], policy: type[FirstFit], seed: int) -> Packed:
    dice = np.random.default_rng(seed)
    cluster = Cluster(nodes, dice.permutation(len(nodes)).tolist())
    arriving = [pods[i] for i in dice.permutation(len(pods))]
    asked, most = sum(pod.asked for pod in pods), RATIO * cluster.total
    while asked > most:  # a list that asks for more is thinned
        asked -= arriving.pop(int(dice.integers(len(arriving)))).asked
    while True:
        pod = pods[int(dice.integers(len(pods)))]
        if asked + pod.asked > most:
            break
        asked += pod.asked
        arriving.append(pod)
    chosen = policy(cluster, pods)
    served = 0
    for pod in arriving:
        sold = chosen.sold(pod)
        seat = chosen.place(sold)
        if seat is not None:
            cluster.take(*seat, sold)
            served += pod.asked
    return Packed(100 * (1 - cluster.used / cluster.total), 100 * (1 - served / cluster.total))


def results(*, quick: bool, data: Path | None) -> tuple[list[Result], str]:
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
    policies = (Leftovers, Exchange, FGD, FirstFit)
    todo = [(policy, seed) for policy in policies for seed in seeds]
    found: dict[str, list[Packed]] = {policy.name: [] for policy in policies}
    for policy, seed in progress("packing", todo, total=len(todo)):
        found[policy.name].append(pack(nodes, pods, policy, seed))
    means = {name: Packed(*np.mean(packed, axis=0).tolist()) for name, packed in found.items()}
    rows = {
        "packing: unallocated GPU, parts as sold": means[Exchange.name].unallocated,
        "packing: GPU nobody asked for, parts as sold": means[Exchange.name].unasked,
        "packing: unallocated GPU, parts of any size": means[Leftovers.name].unallocated,
    }
    return [
        less(
            metric,
            "%",
            ours,
            peer=means[peer.name].unallocated,
            peer_name=peer.name,
            aim=ratio_at_least(1.0) if peer is FGD else None,
        )
        for metric, ours in rows.items()
        for peer in (FGD, FirstFit)
    ], how
