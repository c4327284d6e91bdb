"""Devices nobody sells: which those are, where they are free, and how a lease shows them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.bid import BidBeside
from bidplane.core.devices import companions
from bidplane.core.devices.claims import ClaimError
from bidplane.core.devices.companions import Unpriced

Json = dict[str, Any]
DRIVER = "nic.example.com"
OURS = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
CLASSES: list[Json] = [
    {"metadata": {"name": DRIVER}, "spec": {"selectors": [OURS]}},
    {"metadata": {"name": "any"}, "spec": {}},
]


def slice_(node: str, *devices: Json, driver: str = DRIVER, pool: str = "") -> Json:
    pool_ = {"name": pool or node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool_, "devices": list(devices)}
    return {"metadata": {"name": f"{node}-{driver}-{pool}"}, "spec": spec}


def nics(count: int, **more: Any) -> list[Json]:
    return [{"name": f"nic-{at}", **more} for at in range(count)]


def need(count: int = 1, *selectors: str) -> tuple[BidBeside, ...]:
    return (BidBeside(device_class=DRIVER, count=count, selectors=selectors),)


def claim(node: str, *devices: str) -> Json:
    results = [
        {"request": "r", "driver": DRIVER, "pool": node, "device": device} for device in devices
    ]
    return {"status": {"allocation": {"devices": {"results": results}}}}


counts = st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(0, 5))


@given(
    counts, st.sets(st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.integers(0, 4))), st.data()
)
def test_as_many_sets_are_sold_as_can_then_be_had(
    there: dict[str, int], taken: set[tuple[str, int]], data: st.DataObject
) -> None:
    """What the round is told and what is claimed afterwards agree, to the last device."""
    asked, most = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    slices = [slice_(node, *nics(count)) for node, count in there.items()]
    claims = [claim(node, f"nic-{at}") for node, at in taken]
    free = {node: sum((node, at) not in taken for at in range(n)) for node, n in there.items()}
    found = Unpriced(slices, claims, CLASSES).sets(need(asked), most)
    assert found == {node: min(n // asked, most) for node, n in free.items() if n >= asked}
    known = Unpriced(slices, claims, CLASSES).sets(need(asked), whoever_has_it=True)
    assert known == {node: 1 for node, count in there.items() if count >= asked}
    for node in there:
        had = 0
        while allocation := Unpriced(slices, claims, CLASSES).allocation(need(asked), node):
            claims.append({"status": {"allocation": allocation}})
            had += 1
        assert had == free[node] // asked


PRODUCT = {"attributes": {"productName": {"string": "H100"}}}


@pytest.mark.parametrize(
    "there",
    [
        slice_("n1", *nics(1), driver="gpu.bidplane.dev"),
        slice_("n1", *nics(1), driver="gpu.nvidia.com"),
        slice_("n1", *nics(1), {"name": "gpu-0", **PRODUCT}, driver="other.example.com"),
        slice_("n1", *nics(1, allowMultipleAllocations=True)),
        slice_("n1", *nics(1, bindingConditions=["example.com/ready"])),
        slice_("n1", *nics(1, taints=[{"key": "broken", "effect": "NoSchedule"}])),
        {**slice_("", *nics(1)), "spec": {**slice_("", *nics(1))["spec"], "allNodes": True}},
    ],
)
def test_what_has_a_price_or_is_not_whole_in_one_machine_is_not_given_away(there: Json) -> None:
    anything = (BidBeside(device_class="any"),)
    assert Unpriced([there], classes=CLASSES).sets(anything) == {}
    assert Unpriced([slice_("n1", *nics(1))], classes=CLASSES).sets(anything) == {"n1": 1}


def test_a_selector_that_fails_is_said_by_whom() -> None:
    broken = need(1, 'device.attributes["nic.example.com"].speed == 400')
    with pytest.raises(ClaimError, match="beside-0"):
        Unpriced([slice_("n1", *nics(1))], classes=CLASSES).sets(broken)


def test_what_the_owner_has_no_class_for_is_not_to_be_had() -> None:
    there = Unpriced([slice_("n1", *nics(2))], classes=CLASSES[1:])
    assert there.unknown(need()) == [DRIVER]
    assert there.sets(need()) == {}
    assert there.allocation(need(), "n1") is None
    # Nor more than a class means, whatever the agent selects.
    there = Unpriced([slice_("n1", *nics(1), driver="disk.example.com")], classes=CLASSES)
    assert there.sets(need(1, "true")) == {}


def test_a_lease_shows_what_it_holds_and_no_more() -> None:
    node = {"metadata": {"name": "lease-1", "uid": "u"}}
    host = [
        slice_("n1", *nics(3, attributes={"speed": {"int": 400}}, nodeName="n1")),
        slice_("n1", *nics(1), pool="n1-second"),
        slice_("n2", *nics(1)),
    ]
    held = claim("n1", "nic-0", "nic-2")
    held["status"]["allocation"]["devices"]["results"] += [
        {"request": "r", "driver": DRIVER, "pool": "n1-second", "device": "nic-0"}
    ]
    (shown,) = companions.slices("lease-1", held, host, node)
    assert shown["spec"]["nodeName"] == shown["spec"]["pool"]["name"] == "lease-1"
    assert shown["metadata"]["ownerReferences"][0]["uid"] == "u"
    speeds = {one["name"]: bool(one.get("attributes")) for one in shown["spec"]["devices"]}
    assert speeds == {"nic-0": True, "nic-2": True, "nic-0-2": False}
    assert all("nodeName" not in one for one in shown["spec"]["devices"])
