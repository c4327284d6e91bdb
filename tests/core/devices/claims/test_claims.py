"""Claims, one rule at a time."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.core.devices.claims import (
    Allocated,
    AllocatedDevices,
    ClaimError,
    NotAllocated,
    allocate,
    read_claim,
    read_slices,
)
from bidplane.core.devices.claims.model import allocated_by
from bidplane.core.devices.claims.pools import Slices
from bidplane.core.devices.claims.result import allocation
from bidplane.core.devices.claims.selecting import DeviceMatcher

Json = dict[str, Any]
CLASSES = {
    "gpu": {
        "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]},
    }
}


def device(at: int, **more: Any) -> Json:
    attributes = {
        "bidplane.dev/linkDomain": {"string": f"n/{at // 4}"},
        "bidplane.dev/pcieLinkWidth": {"int": 16 if at < 6 else 4},
        "productName": {"string": "H100"},
    }
    return {
        "name": f"gpu-{at}",
        "attributes": attributes,
        "capacity": {"memory": {"value": "80Gi"}},
        **more,
    }


def slice_of(devices: list[Json], name: str = "s", **more: Any) -> Json:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": devices}
    return {"metadata": {"name": name}, "spec": {**spec, **more}}


def claim_of(*requests: Json, **devices: Any) -> Json:
    return {
        "metadata": {"name": "c", "namespace": "team"},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def ask(name: str = "gpus", **exactly: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": "gpu", **exactly}}


def cel(expression: str) -> list[Json]:
    return [{"cel": {"expression": expression}}]


def search(
    claim: Json, *slices: Json, allocated: AllocatedDevices | None = None
) -> Allocated | NotAllocated:
    return allocate(
        [read_claim(claim)],
        node="n",
        labels={},
        pools=Slices(read_slices(slices)).pools("n", {}),
        matcher=DeviceMatcher(CLASSES),
        allocated=allocated or AllocatedDevices(),
    )


def names(found: Allocated | NotAllocated) -> list[str]:
    assert isinstance(found, Allocated), found
    return [given.device.id.name for given in found.claims[0]]


EIGHT = slice_of([device(at) for at in range(8)])
ONE_DOMAIN = [{"requests": ["gpus"], "matchAttribute": "bidplane.dev/linkDomain"}]


def test_four_of_one_link_domain() -> None:
    allocated = allocated_by(
        [{"status": {"allocation": {"devices": {"results": [
            {"driver": "gpu.example.com", "pool": "p", "device": "gpu-1"}]}}}}]
    )  # fmt: skip
    claim = claim_of(ask(count=4), constraints=ONE_DOMAIN)
    assert names(search(claim, EIGHT, allocated=allocated)) == ["gpu-4", "gpu-5", "gpu-6", "gpu-7"]


def test_nine_of_a_domain_of_eight_are_refused() -> None:
    assert isinstance(search(claim_of(ask(count=9)), EIGHT), NotAllocated)
    assert isinstance(search(claim_of(ask(count=5), constraints=ONE_DOMAIN), EIGHT), NotAllocated)


def test_more_than_a_claim_may_have_is_an_error() -> None:
    with pytest.raises(ClaimError, match="at least 33 devices; the most of one claim is 32"):
        search(claim_of(ask(count=33)), EIGHT)
    choices = [{"name": f"c{at}", "deviceClassName": "gpu"} for at in range(9)]
    with pytest.raises(ClaimError, match="firstAvailable has 9 choices; the most is 8"):
        read_claim(claim_of({"name": "gpus", "firstAvailable": choices}))


def test_the_claim_of_the_documentation() -> None:
    expression = (
        '"pcieLinkWidth" in device.attributes["bidplane.dev"] && '
        'device.attributes["bidplane.dev"].pcieLinkWidth == 16'
    )
    claim = claim_of(ask(count=4, selectors=cel(expression)), constraints=ONE_DOMAIN)
    assert names(search(claim, EIGHT)) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]


def test_the_form_blogs_teach_is_refused_with_the_line_to_write() -> None:
    beta = {
        "apiVersion": "resource.k8s.io/v1beta1",
        **claim_of(
            {
                "name": "gpus",
                "deviceClassName": "gpu",
                "count": 4,
                "selectors": cel("device.attributes['pcie'].linkWidth == 16"),
            }
        ),
    }
    with pytest.raises(ClaimError) as raised:
        search(beta, EIGHT)
    line = str(raised.value).partition("write: ")[2]
    assert line == (
        '"pcieLinkWidth" in device.attributes["bidplane.dev"] && '
        'device.attributes["bidplane.dev"].pcieLinkWidth == 16'
    )
    # What it says to write works.
    assert len(names(search(claim_of(ask(count=4, selectors=cel(line))), EIGHT))) == 4


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2", "v1"])
def test_older_versions_mean_the_same(version: str) -> None:
    request = {"name": "gpus", "deviceClassName": "gpu", "count": 2}
    claim = claim_of(request if version == "v1beta1" else ask(count=2))
    found = search({"apiVersion": f"resource.k8s.io/{version}", **claim}, EIGHT)
    assert names(found) == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ('device.attributes["gpu.example.com"].nope == 1', "no attribute gpu.example.com/nope"),
        ('device.attributes["bidplane.dev"].linkdomain == "x"', "mean bidplane.dev/linkDomain?"),
        ("device.nope == 1", "undefined field 'device.nope'"),
        ('device.attributes["gpu.example.com"].productName', "must evaluate to true or false"),
        ("device.driver ==", "ERROR"),
    ],
)
def test_a_selector_that_fails_is_an_error_that_says_why(expression: str, words: str) -> None:
    with pytest.raises(ClaimError, match="claim team/c, request gpus, selector #0") as raised:
        search(claim_of(ask(selectors=cel(expression))), EIGHT)
    assert words in str(raised.value)


def test_an_unknown_class_is_named_with_those_there_are() -> None:
    with pytest.raises(ClaimError, match="could not retrieve device class tpu: there are gpu"):
        search(claim_of({"name": "x", "exactly": {"deviceClassName": "tpu"}}), EIGHT)


def test_the_first_choice_that_can_be_had() -> None:
    choices = [
        {"name": "many", "deviceClassName": "gpu", "count": 9},
        {"name": "some", "deviceClassName": "gpu", "count": 2},
    ]
    found = search(claim_of({"name": "gpus", "firstAvailable": choices}), EIGHT)
    assert isinstance(found, Allocated)
    assert [given.request.full_name for given in found.claims[0]] == ["gpus/some"] * 2


def test_everything_is_all_or_nothing() -> None:
    everything = claim_of(ask(allocationMode="All"))
    assert len(names(search(everything, EIGHT))) == 8
    one = {"driver": "gpu.example.com", "pool": "p", "device": "gpu-7"}
    allocated = allocated_by([{"status": {"allocation": {"devices": {"results": [one]}}}}])
    assert isinstance(search(everything, EIGHT, allocated=allocated), NotAllocated)


def test_admin_access_takes_nothing_from_others() -> None:
    watched = {"driver": "gpu.example.com", "pool": "p", "device": "gpu-0"}
    allocated = allocated_by([{"status": {"allocation": {"devices": {"results": [watched]}}}}])
    claim = claim_of(ask(adminAccess=True))
    found = search(claim, EIGHT, allocated=allocated)
    assert names(found) == ["gpu-0"]
    assert isinstance(found, Allocated)
    written = allocation(read_claim(claim), found.claims[0], node="n", classes=CLASSES)
    assert written["devices"]["results"][0]["adminAccess"] is True
    assert not allocated_by([{"status": {"allocation": written}}]).devices


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_taint_must_be_tolerated(effect: str) -> None:
    sick = slice_of([device(0, taints=[{"key": "sick", "value": "yes", "effect": effect}])])
    assert isinstance(search(claim_of(ask()), sick), NotAllocated)
    fits = {"key": "sick", "operator": "Equal", "value": "yes", "effect": effect}
    assert names(search(claim_of(ask(tolerations=[fits])), sick)) == ["gpu-0"]
    other = {**fits, "value": "no"}
    assert isinstance(search(claim_of(ask(tolerations=[other])), sick), NotAllocated)


def test_shares_are_rounded_up_and_run_out() -> None:
    policy = {"default": "5Gi", "validRange": {"min": "5Gi", "max": "80Gi", "step": "5Gi"}}
    shared = device(0, allowMultipleAllocations=True)
    shared["capacity"] = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    claim = claim_of(ask(capacity={"requests": {"memory": "32Gi"}}))
    allocated = AllocatedDevices()
    for left in (True, True, False):
        found = search(claim, slice_of([shared]), allocated=allocated)
        assert isinstance(found, Allocated) is left
        if isinstance(found, Allocated):
            made = allocation(read_claim(claim), found.claims[0], node="n", classes=CLASSES)
            result = made["devices"]["results"][0]
            assert result["consumedCapacity"] == {"memory": "35Gi"}
            assert result["shareID"]
            allocated.add(made)


@pytest.mark.parametrize(("asked", "times"), [("40Gi", 2), ("80Gi", 1), ("81Gi", 0)])
def test_the_last_of_a_capacity_can_be_had(asked: str, times: int) -> None:
    shared = device(0, allowMultipleAllocations=True)
    policy = {"default": "1Gi", "validRange": {"min": "1Gi"}}
    shared["capacity"] = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    claim = claim_of(ask(capacity={"requests": {"memory": asked}}))
    allocated = AllocatedDevices()
    had = 0
    while isinstance(found := search(claim, slice_of([shared]), allocated=allocated), Allocated):
        allocated.add(allocation(read_claim(claim), found.claims[0], node="n", classes=CLASSES))
        had += 1
    assert had == times


def test_parts_of_a_card_are_counted() -> None:
    def part(at: int, slices: int) -> Json:
        used = [{"counterSet": "card", "counters": {"slices": {"value": str(slices)}}}]
        return device(at, consumesCounters=used)

    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    counters = [{"name": "card", "counters": {"slices": {"value": "4"}}}]
    slices = (
        slice_of([part(0, 4), part(1, 2), part(2, 2), part(3, 2)], pool=pool),
        slice_of([], "counters", pool=pool, sharedCounters=counters),
    )
    assert names(search(claim_of(ask()), *slices)) == ["gpu-0"]  # the whole card
    assert names(search(claim_of(ask(count=2)), *slices)) == ["gpu-1", "gpu-2"]
    assert isinstance(search(claim_of(ask(count=3)), *slices), NotAllocated)


def test_a_share_that_the_search_gave_up_gives_its_counters_back() -> None:
    """The first device is shared and tried first, but lies in another domain than the only pair."""
    used = [{"counterSet": "card", "counters": {"slices": {"value": "1"}}}]
    shared = device(0, consumesCounters=used, allowMultipleAllocations=True)
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 2}
    counters = [{"name": "card", "counters": {"slices": {"value": "1"}}}]
    slices = (
        slice_of([shared, device(5), device(6, consumesCounters=used)], pool=pool),
        slice_of([], "counters", pool=pool, sharedCounters=counters),
    )
    width = 'device.attributes["bidplane.dev"].pcieLinkWidth == 4'
    either = ask("one", selectors=cel(f"device.allowMultipleAllocations == true || {width}"))
    other = ask("two", selectors=cel(f"!({width})"))
    one_domain = [{"matchAttribute": "bidplane.dev/linkDomain"}]
    claim = claim_of(either, other, constraints=one_domain)
    assert names(search(claim, *slices)) == ["gpu-6", "gpu-5"]


@pytest.mark.parametrize("amount", [2**63 - 1, 2**63])
def test_amounts_are_counted_in_64_bits(amount: int) -> None:
    shared = device(0, allowMultipleAllocations=True)
    policy = {"default": "1", "validRange": {"min": "1", "max": str(2**64), "step": "1"}}
    most = {"value": str(2**64), "requestPolicy": policy}
    shared["capacity"] = {"share": most}
    claim = claim_of(ask(capacity={"requests": {"share": str(amount)}}))
    if amount < 2**63:
        assert names(search(claim, slice_of([shared]))) == ["gpu-0"]
    else:
        with pytest.raises(ClaimError, match="cannot be counted"):
            search(claim, slice_of([shared]))


@pytest.mark.parametrize(
    ("pool", "devices"),
    [
        ({"name": "p", "generation": 1, "resourceSliceCount": 2}, [device(0)]),
        ({"name": "p", "generation": 1, "resourceSliceCount": 1}, [device(0), device(0)]),
    ],
    ids=["half of it is missing", "one name twice"],
)
def test_a_pool_that_is_not_whole_is_left_alone(pool: Json, devices: list[Json]) -> None:
    assert isinstance(search(claim_of(ask()), slice_of(devices, pool=pool)), NotAllocated)
    with pytest.raises(ClaimError, match="asks for all devices, but resource pool"):
        search(claim_of(ask(allocationMode="All")), slice_of(devices, pool=pool))


def test_an_older_generation_does_not_count() -> None:
    old = slice_of([device(0)], "old")
    new = slice_of([device(1)], "new")
    new["spec"]["pool"] = {"name": "p", "generation": 2, "resourceSliceCount": 1}
    assert names(search(claim_of(ask()), old, new)) == ["gpu-1"]


def test_a_device_that_must_be_prepared_comes_last() -> None:
    slow = slice_of([device(0, bindingConditions=["ready"])], "a")
    slow["spec"]["pool"] = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    quick = slice_of([device(1)], "b")
    assert names(search(claim_of(ask()), slow, quick)) == ["gpu-1"]
    found = search(claim_of(ask(count=2)), slow, quick)
    assert isinstance(found, Allocated)
    made = allocation(read_claim(claim_of(ask())), found.claims[0], node="n", classes=CLASSES)
    assert made["devices"]["results"][1]["bindingConditions"] == ["ready"]


def test_a_search_without_end_is_ended() -> None:
    """Sixteen pairs that must differ in something of which there are fifteen."""
    many = [
        device(at, attributes={"bidplane.dev/x": {"int": at % 15}, "bidplane.dev/y": {"int": at}})
        for at in range(60)
    ]
    claim = claim_of(ask(count=16), constraints=[{"distinctAttribute": "bidplane.dev/x"}])
    with pytest.raises(ClaimError, match="no answer after"):
        search(claim, slice_of(many))
