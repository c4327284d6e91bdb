"""GPUs of one machine for a need that any of them would serve: which sets, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from bidplane.core.market.clearing.linked import Loose, gathered


@dataclass
class Island:
    lot: str
    numa: str = ""
    speed: int = 1


def choices(
    gpus: int, lots: str, *domains: tuple[Island, int]
) -> list[tuple[tuple[int, int], ...]]:
    need = Loose(gpus, tuple(lots))
    return list(gathered(need, [island for island, _ in domains], [room for _, room in domains]))


def test_one_domain_is_first_the_fastest_then_the_tightest() -> None:
    slow, fast = Island("a"), Island("a", speed=9)
    sets = choices(2, "a", (slow, 2), (fast, 4), (fast, 2), (slow, 1))
    assert sets[:3] == [((2, 2),), ((1, 2),), ((0, 2),)]


def test_only_the_lots_of_the_need_serve_it() -> None:
    assert choices(2, "a", (Island("b"), 8), (Island("a"), 1)) == []
    assert choices(2, "ab", (Island("b"), 1), (Island("a"), 1))[0] == ((0, 1), (1, 1))


def test_a_set_of_one_numa_node_and_one_lot_comes_before_others() -> None:
    domains = [
        (Island("a", "0"), 1),
        (Island("a", "1"), 1),
        (Island("b", "1"), 1),
        (Island("a", "1"), 1),
    ]
    first, *others = choices(2, "ab", *domains)
    assert first == ((1, 1), (3, 1)), "one lot of one NUMA node"
    assert others[0] == ((1, 1), (2, 1)), "then one NUMA node of several lots"
    assert others[1] == ((0, 1), (1, 1)), "then one lot"
    # Of a domain whose NUMA node is unknown, nothing is known that is near.
    nowhere = choices(2, "a", (Island("a"), 1), (Island("a"), 1))
    assert nowhere == [((0, 1), (1, 1))] * 2, "once by its lot, once as anything"


def test_a_full_domain_changes_nothing() -> None:
    first, second = Island("a", "0"), Island("a", "1")
    free = [(first, 1), (first, 1), (second, 1), (second, 1)]
    with_full = choices(2, "a", (second, 0), *free)
    assert with_full == [
        tuple((place + 1, gpus) for place, gpus in choice) for choice in choices(2, "a", *free)
    ]


def test_whole_domains_are_taken_and_the_rest_of_the_tightest() -> None:
    assert choices(6, "a", (Island("a"), 3), (Island("a"), 4), (Island("a"), 2))[0] == (
        (1, 4),
        (2, 2),
    )
