"""The quick allocator answers as the readable one; what they give breaks no rule."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from bidplane.core.devices.claims import (
    Allocated,
    ClaimError,
    NotAllocated,
    read_claim,
    read_slices,
)
from bidplane.core.devices.claims.check import problems
from bidplane.core.devices.claims.fast import DeviceIndex, Placed
from bidplane.core.devices.claims.model import AllocatedDevices, Claim

from .cases import Case, Json, Ours, generate


def _said(ask: Callable[[], Allocated | NotAllocated]) -> object:
    """What was given by name, or why nothing was."""
    try:
        found = ask()
    except ClaimError as error:
        return str(error)
    if isinstance(found, NotAllocated):
        return found
    return [[(g.request.full_name, str(g.device.id)) for g in one] for one in found.claims]


def _fleet(case: Case, ours: Ours) -> DeviceIndex:
    return DeviceIndex(read_slices(case.slices), ours.labels, ours.classes, ours.allocated)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 10**9))
def test_the_quick_form_says_what_the_readable_says(seed: int) -> None:
    case = generate(seed)
    ours = Ours(case)
    fleet = _fleet(case, ours)
    # All of the pod's claims together, and each alone: those are often plain enough.
    for objects in (case.claims, *([one] for one in case.claims)):
        try:
            claims = [read_claim(one) for one in objects]
        except ClaimError:
            continue
        for node in case.node_names:
            slow = _said(partial(ours.search, node, claims))
            assert _said(partial(fleet.allocate, claims, node)) == slow


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9))
def test_an_allocation_breaks_no_rule(seed: int) -> None:
    case = generate(seed)
    ours = Ours(case)
    for node in case.node_names:
        answer = ours.answer(node, case.claims)
        if isinstance(answer, list):
            labels = ours.labels[node]
            assert not problems(
                [read_claim(one) for one in case.claims],
                answer,
                node=node,
                labels=labels,
                pools=ours.slices.pools(node, labels),
                matcher=ours.matcher,
                allocated=ours.allocated,
            )


def _gpus(node: str, count: int) -> Json:
    return {
        "metadata": {"name": node},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{at}",
                    "attributes": {"bidplane.dev/linkDomain": {"string": f"{node}/{at // 4}"}},
                }
                for at in range(count)
            ],
        },
    }


def _ask(name: str, count: int, match: bool) -> Claim:
    devices: Json = {
        "requests": [
            {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": count}},
        ]
    }
    if match:
        devices["constraints"] = [{"matchAttribute": "bidplane.dev/linkDomain"}]
    return read_claim({"metadata": {"name": name}, "spec": {"devices": devices}})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_a_fleet_over_time_gives_nothing_twice_and_finds_all_there_is(seed: int) -> None:
    """Claims come and go; each goes to the first node where the readable form would put it."""
    dice = random.Random(seed)
    nodes: dict[str, dict[str, str]] = {f"n{at}": {} for at in range(4)}
    slices = read_slices(_gpus(node, dice.choice([2, 4, 8])) for node in nodes)
    classes = {"gpu": {"metadata": {"name": "gpu"}, "spec": {}}}
    fleet = DeviceIndex(slices, nodes, classes)
    fresh = AllocatedDevices()
    held: list[Placed] = []
    for at in range(40):
        if held and dice.random() < 0.35:
            gone = held.pop(dice.randrange(len(held)))
            fleet.release(gone.allocations)
            for one in gone.allocations:
                fresh.remove(one)
            continue
        claim = _ask(f"c{at}", dice.choice([1, 1, 2, 4]), dice.random() < 0.5)
        twin = DeviceIndex(slices, nodes, classes, AllocatedDevices(set(fresh.devices)))
        expected = next((n for n in nodes if isinstance(twin.allocate([claim], n), Allocated)), "")
        placed = fleet.place([claim])
        if not expected:
            assert isinstance(placed, NotAllocated)
            continue
        assert isinstance(placed, Placed)
        assert placed.node == expected
        for one in placed.allocations:
            before = len(fresh.devices)
            fresh.add(one)
            assert len(fresh.devices) == before + len(one["devices"]["results"])
        held.append(placed)
    assert fleet.allocated.devices == fresh.devices
