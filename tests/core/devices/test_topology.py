"""Link domains from NVLink and PCIe, and what is drawn of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.devices import topology
from bidplane.core.devices.topology import Gpu, Machine, link_domains


def gpu(index: int, **more: object) -> Gpu:
    fields = {"numa": index // 4, "root": f"pci{index // 2}", "width": 16, "max_width": 16}
    return Gpu(index=index, uuid=f"G{index}", product="X", memory=80 << 30, **{**fields, **more})  # type: ignore[arg-type]


def test_nvlink_makes_a_domain() -> None:
    every = dict.fromkeys(itertools.combinations(range(8), 2), 18)
    eight = Machine(name="n", gpus=tuple(map(gpu, range(8))), nvlinks=every)
    assert link_domains(eight) == [tuple(range(8))]
    bridged = {(0, 1): 4, (2, 3): 4}
    four = Machine(name="n", gpus=tuple(map(gpu, range(4))), nvlinks=bridged)
    assert link_domains(four) == [(0, 1), (2, 3)]


def test_without_it_a_host_bridge_at_full_width_does() -> None:
    cards = (gpu(0), gpu(1), gpu(2, width=4), gpu(3, width=4, max_width=4))
    assert link_domains(Machine(name="n", gpus=cards)) == [(0, 1), (2,), (3,)]
    # Of other width on one bridge: not one domain either.
    unequal = (gpu(0), gpu(1, width=8, max_width=8))
    assert link_domains(Machine(name="n", gpus=unequal)) == [(0,), (1,)]


def test_cards_of_which_no_root_is_known_are_one_domain_per_width() -> None:
    unsaid = {"root": "", "numa": -1}
    cards = tuple(gpu(index, **unsaid) for index in range(6))
    assert link_domains(Machine(name="n", gpus=cards)) == [tuple(range(6))]
    narrow = (gpu(6, **unsaid, width=4, max_width=4), gpu(7, **unsaid, width=4))
    assert link_domains(Machine(name="n", gpus=(*cards, *narrow))) == [tuple(range(6)), (6,), (7,)]
    # Where only the NUMA node is said, cards of two of them cannot be on one host bridge.
    cards = tuple(gpu(index, root="") for index in range(8))
    assert link_domains(Machine(name="n", gpus=cards)) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_what_is_not_said_is_drawn_as_not_known() -> None:
    rows = topology.matrix(Machine(name="n", gpus=(gpu(0, numa=-1, root=""), gpu(1))))
    assert rows[1][:3] == ["GPU0", "X", "?"]
    assert topology.legend(rows) == "? not declared"


def test_degraded_is_fewer_lanes_than_there_could_be() -> None:
    assert gpu(0, width=4).is_degraded
    assert gpu(0, width=4, generation=3).link == "x4/16 gen3"
    assert not gpu(0, width=4, max_width=4).is_degraded
    assert not gpu(0, width=0, max_width=16).is_degraded  # not known


def test_the_matrix_reads_as_nvidia_smi() -> None:
    cards = (gpu(0), gpu(1), gpu(2), gpu(4, width=4))
    rows = topology.matrix(Machine(name="n", gpus=cards, nvlinks={(0, 1): 4}))
    assert [row[:5] for row in rows] == [
        ["", "GPU0", "GPU1", "GPU2", "GPU4"],
        ["GPU0", "X", "NV4", "NODE", "SYS"],
        ["GPU1", "NV4", "X", "NODE", "SYS"],
        ["GPU2", "NODE", "NODE", "X", "SYS"],
        ["GPU4", "SYS", "SYS", "SYS", "X"],
    ]
    assert rows[4][5:] == ["x4/16", "1", "2"]
    assert "# bonded NVLinks" in topology.legend(rows)
    assert "PIX" not in topology.legend(rows)


@given(
    st.dictionaries(
        st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] < pair[1]),
        st.integers(0, 18),
    )
)
def test_every_gpu_is_in_one_domain_and_linked_ones_in_the_same(
    links: dict[tuple[int, int], int],
) -> None:
    machine = Machine(name="n", gpus=tuple(map(gpu, range(8))), nvlinks=links)
    found = link_domains(machine)
    assert sorted(index for domain in found for index in domain) == list(range(8))
    where = {index: at for at, domain in enumerate(found) for index in domain}
    assert all(where[a] == where[b] for (a, b), count in links.items() if count)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nvlinks": {"a-b": 1}}', '{"nvlinks": 3}'])
def test_an_annotation_that_cannot_be_read_says_nothing(text: str) -> None:
    assert topology.read_machine("n", [], text).nvlinks == {}
