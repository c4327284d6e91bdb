"""A proposal to move leases frees what it says, at a price the waiting bid would pay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bidplane.core.market.defragment import Movable, Waiting, propose
from bidplane.core.market.model import Domain, Lot


def lot(free: dict[str, int], size: int = 8) -> Lot:
    return Lot(
        name="h100",
        base=100,
        posted=100,
        fund=0,
        domains=tuple(
            Domain(name=name, size=size, free=tuple(f"{name}/{i}" for i in range(n)))
            for name, n in free.items()
        ),
    )


def lease(id: str, domain: str, gpus: int, fee: int = 10) -> Movable:
    return Movable(id=id, domain=domain, gpus=gpus, fee=fee)


RICH = Waiting(ask="b", size=8, price=1_000_000)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[dict[str, int], list[Movable], Waiting]:
    free, leases = {}, []
    for i in range(draw(st.integers(1, 5))):
        left = 8
        for n in range(draw(st.integers(0, 4))):
            gpus = draw(st.sampled_from([1, 2, 4, 8]))
            if gpus <= left:
                left -= gpus
                if draw(st.booleans()):  # else it cannot move
                    leases.append(lease(f"l{i}{n}", f"d{i}", gpus, draw(st.integers(0, 500))))
        free[f"d{i}"] = left
    size = draw(st.sampled_from([2, 4, 8]))
    return free, leases, Waiting(ask="b", size=size, price=draw(st.integers(1, 2000)))


@given(fleets())
def test_what_is_proposed_can_be_done_and_is_paid_for(
    case: tuple[dict[str, int], list[Movable], Waiting],
) -> None:
    free, leases, waiting = case
    found = propose(lot(free), leases, waiting)
    if found is None:
        return
    assert max(free.values()) < waiting.size
    assert found.fee == sum(move.fee for move in found.moves) <= found.worth
    assert len({move.lease for move in found.moves}) == len(found.moves)
    left, where = dict(free), {item.id: item for item in leases}
    for move in found.moves:
        assert (where[move.lease].domain, where[move.lease].gpus) == (move.source, move.gpus)
        left[move.source] += move.gpus
        left[move.target] -= move.gpus
    assert min(left.values()) >= 0
    assert left[found.domain] >= waiting.size
    # No move of them is for nothing.
    for move in found.moves:
        assert left[found.domain] - move.gpus < waiting.size


def test_the_cheapest_domain_is_emptied() -> None:
    leases = [lease("dear", "a", 4, fee=90), lease("cheap", "b", 4, fee=10)]
    found = propose(lot({"a": 4, "b": 4}), leases, RICH)
    assert found is not None
    assert [(m.lease, m.target) for m in found.moves] == [("cheap", "a")]


def test_it_is_not_proposed_when_the_bid_would_not_pay_for_it() -> None:
    leases = [lease("x", "b", 4, fee=1000)]
    assert propose(lot({"a": 4, "b": 4}), leases, Waiting(ask="b", size=8, price=101)) is None


def test_nothing_is_moved_for_a_block_that_fits() -> None:
    assert propose(lot({"a": 8, "b": 4}), [lease("x", "b", 4)], RICH) is None
