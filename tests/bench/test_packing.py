"""Packing: nothing is handed out twice, and FGD is what it says it is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.bench import packing
from bidplane.bench.packing import (
    FGD,
    GPU,
    ExchangePacking,
    FirstFit,
    Leftovers,
    PackedCluster,
    PackedNode,
    PackedPod,
    served,
)
from bidplane.core.devices.chain import FRACTIONS, PARTS, Block
from bidplane.core.devices.placement import PlacementError, Shelf, place


def one(gpus: int = 2, cpu: int = 64_000) -> PackedCluster:
    return PackedCluster([PackedNode(cpu, 10**6, gpus, "A")], [0])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize("policy", [FirstFit, FGD, Leftovers, ExchangePacking])
def test_no_policy_hands_out_more_than_there_is(policy: type[FirstFit], seed: int) -> None:
    nodes, pods = packing.draw(seed, nodes=8, pods=60)
    # `Cluster.take` raises for anything that does not fit.
    percent = served(nodes, pods, policy, seed)
    assert 40 < percent <= 100
    assert percent == served(nodes, pods, policy, seed)


def test_taking_what_is_not_there_raises() -> None:
    cluster = one()
    pod = PackedPod(1000, 1, 1, 600)
    cluster.take(0, [0], pod)
    with pytest.raises(RuntimeError, match="does not fit"):
        cluster.take(0, [0], pod)
    with pytest.raises(RuntimeError, match="does not fit"):
        cluster.take(0, [], pod)


def test_fgd_scores_what_the_usual_pods_could_no_longer_use() -> None:
    """By hand: two GPUs, one usual pod of a half. Taking 600 of a GPU loses the other 400."""
    half = PackedPod(1000, 0, 1, 500)
    fgd = FGD(one(), [half])
    at = np.array([0])
    assert fgd.score(PackedPod(1000, 0, 1, 500), at)[0] == 50  # nothing is lost: 100 / (1 + e⁰)
    assert fgd.score(PackedPod(1000, 0, 1, 600), at)[0] == math.floor(100 / (1 + math.exp(0.4)))
    # All the CPU: no pod could use any of the 2,000 − 500 that are left.
    assert fgd.score(PackedPod(64_000, 0, 1, 500), at)[0] == math.floor(100 / (1 + math.exp(1.5)))


def test_a_leftover_is_wasted_as_far_as_nothing_fits_it() -> None:
    table = packing.waste([PackedPod(1, 1, 1, 400)])
    assert table[GPU // packing.STEP] == 200  # 400 + 400
    assert table[80] == 0
    assert table[39] == 390
    both = packing.waste([PackedPod(1, 1, 1, 400), PackedPod(1, 1, 1, 600)])
    # Half the time 600 comes first, then 400 fits; else 400, then 400 or 600.
    assert both[GPU // packing.STEP] == pytest.approx(0.5 * 0 + 0.5 * (0.5 * 200 + 0.5 * 0))


def test_parts_go_where_they_fill_up() -> None:
    pods = [PackedPod(1000, 0, 1, 400), PackedPod(1000, 0, 1, 600)]
    cluster = one(gpus=2)
    policy = Leftovers(cluster, pods)
    cluster.take(0, [1], pods[1])
    assert policy.place(pods[0]) == (0, [1])


def test_what_fits_nowhere_is_dropped() -> None:
    cluster = one(gpus=1)
    for policy in (FirstFit, FGD, Leftovers):
        assert (
            policy(cluster, [PackedPod(1000, 0, 1, 500)]).place(PackedPod(1000, 0, 2, GPU)) is None
        )
        assert policy(cluster, []).place(PackedPod(1000, 0, 1, GPU, ("B",))) is None


def test_files_are_read_as_they_are_published(tmp_path: Path) -> None:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n"
    )
    (tmp_path / "openb_pod_list_default.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
        "p0,12000,16384,1,460,V100|P100,0,10\np1,1,1,0,0,,5,5\n"
    )
    nodes, pods = packing.read(tmp_path)
    assert nodes == [PackedNode(64000, 262144, 2, "P100")]
    assert pods == [PackedPod(12000, 16384, 1, 460, ("P100", "V100")), PackedPod(1, 1, 0, 0)]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    wanted=st.lists(st.sampled_from([60, 200, 250, 470, 500, 810, 1000, 2000, 4000]), max_size=25),
)
def test_parts_are_packed_as_the_exchange_places_them(sizes: list[int], wanted: list[int]) -> None:
    cluster = PackedCluster(
        [PackedNode(10**9, 10**9, size, "A") for size in sizes], range(len(sizes))
    )
    policy = ExchangePacking(cluster, [])
    for milli in wanted:
        pod = PackedPod(1, 1, max(1, milli // GPU), min(milli, GPU))
        seat = policy.place(pod)
        block = Block(0, share=f"{pod.milli / GPU}") if pod.is_part else Block(pod.gpus)
        try:
            placed = place(shelves(cluster), [("w", block)], FRACTIONS)["w"]
        except PlacementError:
            assert seat is None
            continue
        assert seat is not None
        node, devices = seat
        assert placed.domain == f"{node}"
        assert placed.devices == tuple(f"{node}/{device}" for device in devices)
        cluster.take(node, devices, pod)


def shelves(cluster: PackedCluster) -> list[Shelf]:
    domains = []
    for node, row in enumerate(cluster.gpu.tolist()):
        free_by_device = {
            f"{node}/{device}": milli for device, milli in enumerate(row) if milli >= 0
        }
        free = tuple(device for device, milli in free_by_device.items() if milli == GPU)
        cut = {
            device: {PARTS: (0, milli * 2400 // GPU)}
            for device, milli in free_by_device.items()
            if milli < GPU
        }
        domains.append(Shelf(f"{node}", free, cut=cut))
    return domains


def test_what_is_served_is_what_was_asked_for() -> None:
    nodes, pods = [PackedNode(64_000, 10**6, 2, "A")], [PackedPod(1000, 1, 1, 400)] * 8
    # Two of 400 to a GPU, and 200 that nobody gets.
    for policy in (ExchangePacking, Leftovers):
        assert served(nodes, pods, policy, 1) == pytest.approx(80.0)


def test_cpu_in_proportion_stands_in_nobodys_way() -> None:
    nodes, pods = [PackedNode(1000, 10**6, 2, "A")], [PackedPod(1000, 1, 1, 500)] * 8
    assert served(nodes, pods, ExchangePacking, 1) == pytest.approx(25.0)
    pods = packing.with_cpu_in_proportion(pods)
    assert served(nodes, pods, ExchangePacking, 1) == pytest.approx(100.0)
