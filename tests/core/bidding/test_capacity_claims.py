"""Claims for some of a GPU's memory: the least part that covers it, and what is none."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import labels
from bidplane.api.bid import BidReason
from bidplane.api.shape import LEAST_PART, PART_UNITS, Shape, part_units
from bidplane.core.bidding import gpumemory
from bidplane.core.bidding.claimbids import as_bid
from bidplane.core.devices.chain import FRACTIONS
from bidplane.core.devices.claims import ClaimError, read_claim, read_slices
from bidplane.core.devices.claims.fast import DeviceIndex, Placed
from bidplane.core.devices.claims.model import Claim
from bidplane.core.leases import nodes
from bidplane.core.market.shapes import Extent, share_in
from bidplane.core.scheduling.podclaims import CLASSES
from bidplane.testing.cluster import Cluster
from bidplane.wire.quantity import of_bytes, parse
from core.structs import as_lease

Json = dict[str, Any]
DRIVER = "gpu.bidplane.dev"
PRODUCT = 'device.attributes["gpu.bidplane.dev"].productName == "H100"'


def some(amount: str, **more: Any) -> Json:
    return {"deviceClassName": DRIVER, "capacity": {"requests": {"memory": amount}}, **more}


def claim(*requests: Json, constraints: list[Json] | None = None) -> Claim:
    made = [{"name": f"r{n}", "exactly": one} for n, one in enumerate(requests)]
    return _read(made, constraints or [])


def either(*choices: Json) -> Claim:
    named = [{"name": f"c{n}", **one} for n, one in enumerate(choices)]
    return _read([{"name": "r", "firstAvailable": named}], [])


def _read(requests: list[Json], constraints: list[Json]) -> Claim:
    devices = {"requests": requests, "constraints": constraints}
    return read_claim({"metadata": {"name": "c", "namespace": "d"}, "spec": {"devices": devices}})


def share_on(found: Json, memory: str) -> list[str]:
    """What the bid's choices are of a GPU with so much memory; "" is all of it."""
    extent = Extent.of([1], (1,), FRACTIONS, int(parse(memory)))
    shares = [
        share_in(Shape(gpus=choice["gpus"], memory=choice["memory"]), extent)
        for choice in (found, *found["otherwise"])
    ]
    return [share for share in shares if not isinstance(share, BidReason)]


def _slice(devices: list[Json]) -> Json:
    return {
        "metadata": {"name": "n"},
        "spec": {
            "driver": DRIVER,
            "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


@pytest.mark.parametrize(
    ("asked", "share"),
    [
        ("1", ["0.01"]),
        ("10Gi", ["0.125"]),
        ("18Gi", ["0.225"]),
        ("40Gi", ["0.5"]),
        ("41Gi", ["0.5125"]),
        ("80Gi", [""]),
        ("81Gi", []),
    ],
)
def test_so_much_of_80_gigabytes_is_such_a_part(asked: str, share: list[str]) -> None:
    found = as_bid(claim(some(asked)), CLASSES)
    assert found is not None
    assert share_on(found, "80Gi") == share


@given(
    memory=st.integers(1, 200 << 30) | st.integers(1, 200 << 10).map(lambda mib: mib << 20),
    asked=st.integers(1, 220 << 30),
    sixteenths=st.sampled_from([None, 1, 2, 3, 4, 8, 12]),
)
def test_the_part_covers_and_no_smaller_one_does_and_the_claim_is_allocated_in_it(
    memory: int, asked: int, sixteenths: int | None
) -> None:
    if sixteenths is not None:  # at the edges, too
        asked = max(1, memory * sixteenths // 16)
    wanted = claim(some(str(asked)))
    found = as_bid(wanted, CLASSES)
    assert found is not None
    shares = share_on(found, of_bytes(memory))
    if asked > memory:
        assert shares == []
        return
    (share,) = shares
    units = part_units(share) or PART_UNITS
    assert Fraction(memory * units, PART_UNITS) >= asked
    assert units == LEAST_PART or Fraction(memory * (units - 1), PART_UNITS) < asked
    if not share:
        return
    placed = _placed_in(wanted, memory, share)
    (result,) = placed.allocations[0]["devices"]["results"]
    taken = parse(result["consumedCapacity"]["memory"])
    assert asked <= taken == memory * units // PART_UNITS, "all of the part, which was cut for it"


def _placed_in(wanted: Claim, memory: int, share: str) -> Placed:
    node = _leased(memory, share)
    placed = DeviceIndex(read_slices([node]), {"lease-1": {}}, CLASSES).place([wanted])
    assert isinstance(placed, Placed), placed
    return placed


def _leased(memory: int, share: str) -> Json:
    units = [0, part_units(share)]
    leased = {"node": "n", "driver": DRIVER, "pool": "n", "name": "gpu-0"}
    lease = {
        "metadata": {"name": "lease-1"},
        "spec": {"node": "n", "devices": [{**leased, "share": share, "units": units}]},
    }
    value = {"value": of_bytes(memory)}
    host = _slice([{"name": "gpu-0", "capacity": {"memory": value}}])
    node = {"metadata": {"name": "lease-1", "uid": "u"}}
    return nodes.resource_slice(as_lease(lease), [host], node)


def test_a_part_has_its_own_memory_and_a_claim_takes_all_of_it() -> None:
    (device,) = _leased(80 << 30, "0.25")["spec"]["devices"]
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["memory"] == {
        "value": "20Gi",
        "requestPolicy": {
            "default": "20Gi",
            "validRange": {"min": "20Gi", "max": "20Gi"},
        },
    }


def test_memory_that_nothing_divides_is_shown_to_the_byte() -> None:
    (device,) = _leased((80 << 30) + 4, "0.25")["spec"]["devices"]
    assert device["capacity"]["memory"]["value"] == str((20 << 30) + 1)


def test_who_says_no_memory_takes_all_of_a_part_and_only_one_can() -> None:
    fleet = DeviceIndex(read_slices([_leased(80 << 30, "0.5")]), {"lease-1": {}}, CLASSES)
    plain = claim({"deviceClassName": DRIVER})
    first = fleet.place([plain])
    assert isinstance(first, Placed)
    (result,) = first.allocations[0]["devices"]["results"]
    assert result["consumedCapacity"] == {"memory": "40Gi"}
    assert not isinstance(fleet.place([plain]), Placed)


def test_selectors_and_attributes_are_kept() -> None:
    tied = [{"matchAttribute": "a/b"}, {"matchAttribute": labels.LINK_DOMAIN_ATTRIBUTE}]
    selectors = [{"cel": {"expression": PRODUCT}}]
    found = as_bid(claim(some("20Gi", selectors=selectors), constraints=tied), CLASSES)
    assert found is not None
    assert found["selector"] == f"({PRODUCT})"
    assert found["matchAttribute"] == ["a/b"]
    assert share_on(found, "80Gi") == ["0.25"]


def test_the_first_that_can_be_had_comes_first() -> None:
    found = as_bid(either(some("40Gi"), some("20Gi")), CLASSES)
    assert found is not None
    assert share_on(found, "80Gi") == ["0.5", "0.25"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (claim(some("0")), "must be more than 0"),
        (claim(some("-1Gi")), "must be more than 0"),
        (claim(some("20Gi", count=2)), "write count: 1"),
        (claim(some("20Gi", allocationMode="All")), "write count: 1"),
        (claim(some("20Gi", deviceClassName="mig.nvidia.com")), "by its profile"),
        (claim(some("20Gi", adminAccess=True)), "without adminAccess"),
        (claim(some("20Gi", tolerations=[{"operator": "Exists"}])), "and tolerations"),
        (
            claim({"deviceClassName": DRIVER, "capacity": {"requests": {"cores": "4"}}}),
            r"capacity.requests\[cores\].*write \{memory: 20Gi\}",
        ),
        (
            claim(
                some(
                    "20Gi",
                    selectors=[
                        {
                            "cel": {
                                "expression": 'device.capacity["gpu.bidplane.dev"].memory'
                                '.compareTo(quantity("80Gi")) == 0'
                            }
                        }
                    ],
                )
            ),
            "reads device.capacity.*select by attributes",
        ),
        (
            claim(
                some("20Gi", selectors=[{"cel": {"expression": "device.allowMultipleAllocations"}}])
            ),
            "reads device.allowMultipleAllocations",
        ),
        (claim(some("20Gi"), {"deviceClassName": DRIVER}), "sold by itself"),
        (either(some("20Gi"), {"deviceClassName": DRIVER}), "in each of them, or in none"),
    ],
)
def test_what_is_sold_as_no_part_is_refused_with_what_to_write(wanted: Claim, words: str) -> None:
    with pytest.raises(ClaimError, match=words):
        as_bid(wanted, CLASSES)


def test_the_markets_refusals_are_told_in_the_claims_words() -> None:
    told = gpumemory.refusals(claim(some("200Gi")))
    assert "memory] of 200Gi: no GPU that is sold there has so much" in told["SelectsNothing"]
    assert "remove capacity to claim a whole GPU" in told["ShapeNotSold"]
    assert gpumemory.refusals(claim({"deviceClassName": DRIVER})) == {}


@pytest.mark.kube
@pytest.mark.parametrize("share", ["0.125", "0.25", "0.5"])
def test_real_kubernetes_takes_a_part_as_it_is_shown(cluster: Cluster, share: str) -> None:
    shown = _leased(80 << 30, share)
    del shown["metadata"]["ownerReferences"]  # its node is not there
    try:
        cluster.kubectl("apply", "-f", "-", input=json.dumps(shown))
        said = cluster.kubectl("get", "resourceslice", "lease-1", "-o", "json").stdout
        (found,) = json.loads(said)["spec"]["devices"]
        (ours,) = shown["spec"]["devices"]
        assert (found["capacity"], found["allowMultipleAllocations"]) == (ours["capacity"], True)
    finally:
        cluster.kubectl("delete", "resourceslices", "--all")
