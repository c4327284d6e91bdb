"""MIG instances made, unmade and moved: never two in one place, never dearer than it pays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.core.devices import mig
from bidplane.core.devices.mig import Slot
from bidplane.core.devices.migplan import MigInstance, NoRoom, Repacking, changes, place, repack
from bidplane.errors import UserError
from bidplane.node.inventory.instances import SimulatedInstances, carry_out

NAMES = list(mig.profiles(80))


def some(seed: int, gpus: int) -> list[MigInstance]:
    """Instances that can be there together, some of which may be moved."""
    dice = random.Random(seed)
    found: list[MigInstance] = []
    for at in range(dice.randrange(1, 5 * gpus)):
        gpu, name = f"g{dice.randrange(gpus)}", dice.choice(NAMES[:5])
        slot = Slot(name, dice.choice(mig.profiles(80)[name].starts))
        there = [one.slot for one in found if one.gpu == gpu]
        if not mig.problem([*there, slot], 80):
            movable = dice.random() < 0.8
            found.append(
                MigInstance(
                    id=f"i{at}", gpu=gpu, slot=slot, movable=movable, cost=dice.randrange(9)
                )
            )
    return found


def simulated(gpus: list[str], instances: list[MigInstance]) -> SimulatedInstances:
    cards = SimulatedInstances(gpus, 80)
    for one in instances:
        cards.create(one.gpu, one.slot)
    return cards


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(NAMES))
def test_a_repacking_can_be_carried_out_and_moves_only_what_may_be(seed: int, wanted: str) -> None:
    gpus = ["g0", "g1"]
    instances = some(seed, 2)
    cards = simulated(gpus, instances)
    found = repack(wanted, gpus, instances, 80, pays=10**6)
    state = {gpu: cards.current(gpu) for gpu in gpus}
    if place(wanted, state, 80):
        assert isinstance(found, Repacking)
        assert found.moves == (), "there was room"
    if isinstance(found, NoRoom):
        return
    movable = {one.id: one for one in instances if one.movable}
    assert all(move.instance in movable for move in found.moves)
    assert found.cost == sum(movable[move.instance].cost for move in found.moves)
    carry_out(cards, found.operations())
    assert found.slot in cards.current(found.gpu)


def one_each(profile: str = "1g.10gb", **more: object) -> list[MigInstance]:
    fields = {"movable": True, "cost": 5, **more}
    return [
        MigInstance(id="a", gpu="g0", slot=Slot(profile, 0), **fields),  # type: ignore[arg-type]
        MigInstance(id="b", gpu="g1", slot=Slot(profile, 4), **fields),  # type: ignore[arg-type]
    ]


def test_two_small_ones_move_together_for_a_whole_gpu() -> None:
    found = repack("7g.80gb", ["g0", "g1"], one_each(), 80, pays=6)
    assert isinstance(found, Repacking)
    assert (found.gpu, len(found.moves), found.cost) == ("g0", 1, 5)
    assert found.moves[0].to_gpu == "g1"


@pytest.mark.parametrize(
    ("instances", "pays", "words"),
    [
        (one_each(), 5, "would cost 5 in restarts; it pays 5"),
        (one_each(movable=False), 99, "no moves of movable instances"),
    ],
)
def test_what_is_not_worth_it_stays(instances: list[MigInstance], pays: int, words: str) -> None:
    found = repack("7g.80gb", ["g0", "g1"], instances, 80, pays=pays)
    assert isinstance(found, NoRoom)
    assert words in found.reason


def test_a_small_one_is_made_where_it_is_least_in_the_way() -> None:
    # Not in the middle of a GPU, and not on one that is still whole.
    assert place("1g.10gb", {"g0": [], "g1": [Slot("3g.40gb", 0)]}, 80) == (
        "g1",
        Slot("1g.10gb", 6),
    )
    assert place("7g.80gb", {"g0": [Slot("1g.10gb", 0)]}, 80) is None
    with pytest.raises(mig.BadGeometry, match=r"no profile '1g.5gb'"):
        place("1g.5gb", {"g0": []}, 80)


def test_room_is_made_before_it_is_used() -> None:
    now = {"g0": [Slot("3g.40gb", 0), Slot("1g.10gb", 4)]}
    wanted = {"g0": [Slot("4g.40gb", 0), Slot("1g.10gb", 4)]}
    cards = SimulatedInstances(["g0"], 80)
    for slot in now["g0"]:
        cards.create("g0", slot)
    carry_out(cards, changes(now, wanted, 80))
    assert cards.current("g0") == sorted(wanted["g0"])
    assert changes(wanted, wanted, 80) == []
    with pytest.raises(mig.BadGeometry, match="share memory slice"):
        changes(now, {"g0": [Slot("4g.40gb", 0), Slot("3g.40gb", 0)]}, 80)


def test_a_card_refuses_what_does_not_fit() -> None:
    cards = SimulatedInstances(["g0"], 80)
    cards.create("g0", Slot("7g.80gb", 0))
    with pytest.raises(UserError, match="cannot be made"):
        cards.create("g0", Slot("1g.10gb", 0))
    with pytest.raises(UserError, match=r"no 1g.10gb at 0"):
        cards.destroy("g0", Slot("1g.10gb", 0))
