"""
GPUs of one machine, wherever in it: served exactly when a machine has so many free, on the best
linked set it has. The oracle tries every set of every machine.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.core.market.model import Ask, Domain, Lot, RoundInput
from bidplane.core.market.round import clear_round

PRICE = 1000


class Gpu(NamedTuple):
    name: str
    machine: str
    numa: str
    domain: str
    lot: str


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Gpu], frozenset[str]]:
    """Machines of a few small domains, of two lots; and which GPUs are free."""
    gpus: list[Gpu] = []
    for m in range(draw(st.integers(1, 2))):
        numas = draw(st.sampled_from([("",), ("0", "1"), ("0", "1")]))
        for d in range(draw(st.integers(2, 5))):
            numa, lot = draw(st.sampled_from(numas)), draw(st.sampled_from("ab"))
            gpus += [
                Gpu(f"m{m}-{d}-{g}", f"m{m}", numa, f"m{m}/{d}", lot)
                for g in range(draw(st.integers(1, 3)))
            ]
    return gpus, frozenset(gpu.name for gpu in gpus if draw(st.integers(0, 3)))


def cleared(gpus: list[Gpu], free: frozenset[str], wanted: int) -> tuple[str, ...] | None:
    def domains(lot: str) -> tuple[Domain, ...]:
        members: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            if gpu.lot == lot:
                members.setdefault(gpu.domain, []).append(gpu)
        return tuple(
            Domain(
                name=name,
                size=len(some),
                free=tuple(gpu.name for gpu in some if gpu.name in free),
                node=some[0].machine,
                numa=some[0].numa,
            )
            for name, some in members.items()
        )

    lots = tuple(Lot(name=n, base=1, posted=1, domains=domains(n)) for n in "ab")
    ask = Ask(
        id="bid", agent="x", owner="o", gpus=wanted, price=PRICE, one_node=True, spread=True
    )  # fmt: skip
    given = RoundInput(at=0, lots=lots, asks=(ask,), incumbents=(), available={"x": 10**12})
    won = clear_round(given).won
    if not won:
        return None
    assert won[0].gpus == wanted  # it pays for no more
    return won[0].devices


def closeness(some: tuple[Gpu, ...]) -> int:
    """0: on one link; 1: on one NUMA node; 2: in one machine."""
    if len({gpu.domain for gpu in some}) == 1:
        return 0
    return 1 if some[0].numa and len({gpu.numa for gpu in some}) == 1 else 2


@settings(max_examples=400)
@given(fleets(), st.integers(2, 6))
def test_so_many_gpus_are_sold_whenever_one_machine_has_them_and_linked_as_well_as_can_be(
    fleet: tuple[list[Gpu], frozenset[str]], wanted: int
) -> None:
    gpus, free = fleet
    by_name = {gpu.name: gpu for gpu in gpus}
    sets = [
        some
        for some in combinations([gpu for gpu in gpus if gpu.name in free], wanted)
        if len({gpu.machine for gpu in some}) == 1
    ]
    devices = cleared(gpus, free, wanted)
    assert (devices is not None) == bool(sets)
    if devices is None:
        return
    chosen = tuple(by_name[name] for name in devices)
    assert len(set(devices)) == wanted
    assert free.issuperset(devices)
    assert len({gpu.machine for gpu in chosen}) == 1
    machine = [some for some in sets if some[0].machine == chosen[0].machine]
    assert closeness(chosen) == min(map(closeness, machine))
    # One link, if any machine has so many on one.
    assert closeness(chosen) == 0 or min(map(closeness, sets)) > 0
