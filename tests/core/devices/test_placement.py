"""Placement never fails after clearing says yes, and makes winners wait as little as it can."""

from __future__ import annotations

import pytest
from hypothesis import given

from bidplane.api.money import GPU_WEIGHT
from bidplane.core.devices.chain import Block
from bidplane.core.devices.placement import PlacementError, Shelf, place
from bidplane.core.market.clearing.capacity import Room
from bidplane.core.market.clearing.contestant import Contestant
from bidplane.core.market.clearing.contested import clear
from core.market.contests import contests


@given(contests())
def test_every_winner_gets_a_seat(contest: tuple[Room, list[Contestant]]) -> None:
    room, field = contest
    outcome = clear(room, field)
    stock = {name: [f"{name}/{i}" for i in range(n)] for name, n in room.free.items()}
    seated: dict[str, tuple[str, ...]] = {}
    running = [c for c in field if c.block.domain]
    for lease in running:
        devices = stock[lease.block.domain]
        seated[lease.id], stock[lease.block.domain] = (
            tuple(devices[: lease.block.size]),
            devices[lease.block.size :],
        )
    gone = {c.id for c in outcome.losers}
    shelves = [
        Shelf(
            name,
            tuple(devices),
            {c.id: seated[c.id] for c in running if c.block.domain == name and c.id in gone},
        )
        for name, devices in stock.items()
    ]
    new = [c for c in outcome.accepted if not c.block.domain]
    seats = place(shelves, [(c.id, c.block) for c in new])
    kept = [d for c in running if c.id not in gone for d in seated[c.id]]
    given_out = [device for seat in seats.values() for device in seat.devices]
    assert len(kept + given_out) == len(set(kept + given_out))
    for winner in new:
        seat = seats[winner.id]
        assert len(seat.devices) == winner.block.size
        assert {device.split("/")[0] for device in seat.devices} == {seat.domain}
    # Nobody is displaced for nothing: each displaced lease gives a device to some winner.
    assert {lease for seat in seats.values() for lease in seat.taken_from} == (
        gone & {c.id for c in running}
    )


def test_free_devices_go_before_those_somebody_must_leave() -> None:
    shelves = [Shelf("d0", ("0/0",), {"old": ("0/1",)}), Shelf("d1", ("1/0", "1/1"))]
    seats = place(shelves, [("new", Block(2))])
    assert seats["new"].devices == ("1/0", "1/1")
    assert seats["new"].taken_from == {}


def test_the_tightest_domain_is_used_so_that_large_blocks_stay_whole() -> None:
    shelves = [Shelf("d0", tuple(f"0/{i}" for i in range(8))), Shelf("d1", ("1/0", "1/1"))]
    assert place(shelves, [("one", Block(1))])["one"].domain == "d1"


def test_of_two_the_higher_ranked_waits_less() -> None:
    shelves = [Shelf("d0", ("0/0",), {"old": ("0/1",)})]
    seats = place(shelves, [("higher", Block(1)), ("lower", Block(1))])
    assert seats["higher"].taken_from == {}
    assert seats["lower"].taken_from == {"old": GPU_WEIGHT}


def test_a_broken_promise_is_an_error() -> None:
    with pytest.raises(PlacementError, match="no domain has 4 devices left for b"):
        place([Shelf("d0", ("0/0", "0/1"))], [("b", Block(4))])
