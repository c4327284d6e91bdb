"""MIG geometries: what a GPU can be cut into, and what each part costs."""

from __future__ import annotations

import pytest

from bidplane.core.devices.chain import GPU_WEIGHT
from bidplane.core.devices.mig import BadGeometry, Slot, leaves, problem, profiles, weights


def states(names: set[str]) -> set[frozenset[Slot]]:
    """Every way to cut a GPU, the uncut one included, found by adding one slot at a time."""
    known = profiles(80)
    slots = [Slot(name, start) for name in sorted(names) for start in known[name].starts]
    found = {frozenset[Slot]()}
    edge = list(found)
    while edge:
        state = edge.pop()
        for slot in slots:
            more = state | {slot}
            if more not in found and slot not in state and not problem(sorted(more), 80):
                found.add(more)
                edge.append(more)
    return found


def maximal(found: set[frozenset[Slot]]) -> int:
    return sum(not any(state < other for other in found) for state in found)


BASE = {"1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"}


def test_there_are_as_many_layouts_as_the_hardware_has() -> None:
    """Counted by others on the same rules: 298 states, 19 that nothing can be added to."""
    found = states(BASE)
    assert (len(found), maximal(found)) == (298, 19)


def test_and_with_the_profile_of_double_memory() -> None:
    found = states(BASE | {"1g.20gb"})
    assert (len(found), maximal(found)) == (723, 78)


def test_a_part_costs_the_greater_of_its_compute_and_its_memory() -> None:
    weight = weights(80)
    assert weight["7g.80gb"] == GPU_WEIGHT
    assert weight["3g.40gb"] == GPU_WEIGHT // 2  # memory
    assert weight["4g.40gb"] == 9600  # compute: four sevenths
    assert weight["1g.10gb"] == 2400
    assert weight["1g.20gb"] == GPU_WEIGHT // 4


def test_the_parts_of_a_gpu_cost_hardly_more_than_the_whole() -> None:
    weight = weights(80)
    for state in states(BASE):
        total = sum(weight[slot.profile] for slot in state)
        assert total <= GPU_WEIGHT + 1200  # 4g beside 3g: compute of one, memory of the other


def test_a_geometry_becomes_leaves_with_their_own_counts() -> None:
    cut = [Slot("3g.40gb", 4), Slot("2g.20gb", 0), Slot("1g.10gb", 2), Slot("1g.10gb", 3)]
    found = leaves(cut, 80)
    assert [(leaf.name, leaf.per_gpu, leaf.weight) for leaf in found] == [
        ("3g.40gb", 1, 8400),
        ("2g.20gb", 1, 4800),
        ("1g.10gb", 2, 2400),
    ]
    assert not any(leaf.in_chain for leaf in found)


@pytest.mark.parametrize(
    ("cut", "gigabytes", "says"),
    [
        ([Slot("3g.40gb", 0), Slot("3g.40gb", 2)], 80, "cannot start at memory slice 2"),
        ([Slot("1g.10gb", 7)], 80, "cannot start at memory slice 7"),
        ([Slot("3g.40gb", 0), Slot("1g.10gb", 3)], 80, "share memory slice 3"),
        ([Slot("4g.40gb", 4)], 80, "cannot start"),
        ([Slot("5g.50gb", 0)], 80, "no profile '5g.50gb'"),
        ([Slot("3g.40gb", 0)], 40, "no profile '3g.40gb'"),
        ([Slot("1g.10gb+me", 0), Slot("1g.10gb+me", 1)], 80, "media engines"),
        ([Slot("1g.10gb", 0)], 24, "no GPU with 24 GB is known"),
    ],
)
def test_a_geometry_no_gpu_can_have_is_refused(cut: list[Slot], gigabytes: int, says: str) -> None:
    with pytest.raises(BadGeometry, match=says):
        leaves(cut, gigabytes)
