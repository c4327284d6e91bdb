"""Parts that move leave a GPU whole, go where there is room, and nobody else moves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.core.devices.chain import Leaf
from bidplane.core.market.model import Domain, Incumbent, Lot, Won
from bidplane.core.market.moving.repacking import whole_gpu

LEAVES = (
    Leaf("3g.40gb", 1, 8400, in_chain=False, starts=(4,), span=4),
    Leaf("1g.10gb", 3, 8, in_chain=False, starts=(0, 1, 2), span=1),
)
PLACES = [(leaf.name, start) for leaf in LEAVES for start in leaf.starts]
HELD = st.dictionaries(
    st.tuples(st.sampled_from(["g0", "g1", "g2"]), st.sampled_from(PLACES)),
    st.tuples(st.sampled_from(["movable", "stays", "unknown", "won"]), st.integers(0, 9)),
)


def lot_of(taken: dict[tuple[str, tuple[str, int]], tuple[str, int]]) -> Lot:
    """Three GPUs in two domains; what was won in this round was free before it."""
    cut = {
        gpu: {
            leaf.name: tuple(
                start
                for start in leaf.starts
                if taken.get((gpu, (leaf.name, start)), ("won", 0))[0] == "won"
            )
            for leaf in LEAVES
        }
        for gpu in ("g0", "g1", "g2")
    }
    domains = tuple(
        Domain(name=name, size=len(gpus), free=(), cut={gpu: cut[gpu] for gpu in gpus})
        for name, gpus in (("left", ["g0", "g1"]), ("right", ["g2"]))
    )
    return Lot(name="h100", base=1, posted=1, domains=domains, leaves=LEAVES)


def incumbent(gpu: str, name: str, start: int, how: str, cost: int) -> Incumbent:
    return Incumbent(
        id=f"{gpu}/{name}/{start}",
        agent="a",
        owner="o",
        lot="h100",
        domain="left",
        devices=(gpu,),
        price=1,
        weight=1,
        reserve=1,
        compensation=cost,
        share=name,
        places=((start,),),
        movable=how == "movable",
    )


@settings(max_examples=80, deadline=None)
@given(HELD)
def test_one_gpu_is_left_and_all_that_moves_has_a_home(
    taken: dict[tuple[str, tuple[str, int]], tuple[str, int]],
) -> None:
    running = [
        incumbent(gpu, name, start, how, cost)
        for (gpu, (name, start)), (how, cost) in taken.items()
        if how in ("movable", "stays")
    ]
    won = [
        Won(
            ask=gpu,
            lot="h100",
            gpus=1,
            price=1,
            hold=1,
            minimum=0,
            domain="left",
            devices=(gpu,),
            share=name,
            places=((start,),),
        )
        for (gpu, (name, start)), (how, _) in taken.items()
        if how == "won"
    ]
    plan = whole_gpu(lot_of(taken), running, won)
    if plan is None:
        return
    on_it = {key: how for key, (how, _) in taken.items() if key[0] == plan.device}
    assert set(on_it.values()) == {"movable"}
    assert {move.lease.id for move in plan.moves} == {
        f"{gpu}/{name}/{start}" for gpu, (name, start) in on_it
    }
    homes = [
        (gpu, (move.lease.share, places[0]))
        for move, (gpu, places) in zip(plan.moves, plan.homes, strict=True)
    ]
    assert len(set(homes)) == len(homes)
    assert not set(homes) & taken.keys(), "nobody is there"
    assert all(place in PLACES for _, place in homes), "where the pool's geometry has one"
    assert plan.device not in {gpu for gpu, _ in homes}
    others = [
        {key: how for key, (how, _) in taken.items() if key[0] == gpu} for gpu in ("g0", "g1", "g2")
    ]
    assert all(others), "a GPU that nobody has would have been sold"


def test_the_cheapest_gpu_is_emptied() -> None:
    taken = {
        ("g0", ("1g.10gb", 0)): ("movable", 5),
        ("g1", ("1g.10gb", 1)): ("movable", 3),
        ("g2", ("1g.10gb", 1)): ("stays", 0),
    }
    running = [incumbent(gpu, *place, *how) for (gpu, place), how in taken.items()]
    plan = whole_gpu(lot_of(taken), running, ())
    assert plan is not None
    assert (plan.device, plan.domain, plan.fee("other")) == ("g1", "left", 3)
    assert plan.homes == (("g0", (1,)),)


def test_parts_that_stay_make_no_room() -> None:
    taken = {(gpu, ("1g.10gb", 0)): ("stays", 0) for gpu in ("g0", "g1", "g2")}
    running = [incumbent(gpu, *place, *how) for (gpu, place), how in taken.items()]
    assert whole_gpu(lot_of(taken), running, ()) is None
