"""The float: small, from what is broken already, never where a waiting block could go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.devices.chain import FRACTIONS
from bidplane.core.market.model import Domain
from bidplane.core.market.pricing.instant import Float, choose, opening_price, without


def domain(name: str, free: int, size: int = 8) -> Domain:
    return Domain(name=name, size=size, free=tuple(f"{name}/{i}" for i in range(free)))


lots = st.lists(st.integers(0, 8), min_size=1, max_size=12).map(
    lambda free: [domain(f"d{i:02}", n) for i, n in enumerate(free)]
)


@given(lots, st.lists(st.integers(1, 9)), st.integers(0, 50))
def test_it_is_small_and_breaks_no_waiting_block(
    domains: list[Domain], waiting: list[int], percent: int
) -> None:
    kept = choose(domains, waiting=waiting, percent=percent)
    assert len(kept) <= 0.05 * sum(d.size for d in domains)
    assert len(kept) == len(set(kept))
    rest = {d.name: d for d in without(domains, kept)}
    for d in domains:
        assert len(d.free) - len(rest[d.name].free) == sum(name == d.name for name, _ in kept)
        for size in waiting:
            if size >= 2:
                assert len(rest[d.name].free) // size == len(d.free) // size


def test_the_most_broken_domain_gives_first() -> None:
    domains = [
        domain("a", 8),
        domain("b", 3),
        domain("c", 1),
        *(domain(f"x{i}", 8) for i in range(5)),
    ]
    assert choose(domains, waiting=[4], percent=5) == (("c", "c/0"), ("b", "b/0"), ("b", "b/1"))


@given(st.integers(1, 10**12), st.integers(1, 10**12))
def test_it_costs_more_than_a_round_and_more_with_each_sale(posted: int, base: int) -> None:
    price = opening_price(posted=posted, base=base)
    assert price >= 1.05 * max(posted, base) - 1
    offer = Float(lot="h100", devices=(("d", "0"), ("d", "1")), price=price, base=base)
    sold = offer.sell()
    assert sold is not None
    _, after = sold
    assert after.asked - offer.asked == price * 2 // 100
    assert after.devices == (("d", "1"),)


def test_parts_cost_more_with_each_sale_too() -> None:
    offer = Float(lot="h100", devices=(("d", "0"),), price=1000, base=1000, leaves=tuple(FRACTIONS))
    asked = []
    for _ in range(2):
        asked.append(offer.asked)
        sold = offer.sell(FRACTIONS[0].name)
        assert sold is not None
        offer = sold[1]
    assert [*asked, offer.asked] == [1000, 1020, 1040]
