"""Which claims are blocks of the market: what of a bid each becomes, and which are none."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api import labels
from bidplane.core.bidding.asks import PodAsk
from bidplane.core.bidding.claimbids import as_bid
from bidplane.core.devices.claims import ClaimError, read_claim
from bidplane.core.scheduling.bids import bid_for_gang, bid_for_pod
from bidplane.core.scheduling.podclaims import CLASSES

Json = dict[str, Any]
WIDE = 'device.attributes["bidplane.dev"].pcieLinkWidth == 16'
SLIM = 'device.attributes["bidplane.dev"].pcieLinkWidth == 4'


NIC = 'device.driver == "nic.example.com"'
NICS: Json = {"nic.example.com": {"spec": {"selectors": [{"cel": {"expression": NIC}}]}}}


def gpus(count: int, *selectors: str, cls: str = "gpu.bidplane.dev") -> Json:
    found: Json = {"deviceClassName": cls, "count": count}
    if selectors:
        found["selectors"] = [{"cel": {"expression": one}} for one in selectors]
    return found


def nic(count: int = 1, *selectors: str) -> Json:
    return gpus(count, *selectors, cls="nic.example.com")


def bid_of(*requests: Json | list[Json], constraints: list[Json] | None = None) -> Json | None:
    """Each request is exactly one form, or a list of forms of which the first that can be had."""
    made = [
        {"name": f"r{n}", "exactly": one}
        if isinstance(one, dict)
        else {
            "name": f"r{n}",
            "firstAvailable": [{"name": f"c{i}", **c} for i, c in enumerate(one)],
        }
        for n, one in enumerate(requests)
    ]
    devices = {"requests": made, "constraints": constraints or []}
    claim = {"metadata": {"name": "c", "namespace": "d"}, "spec": {"devices": devices}}
    return as_bid(read_claim(claim), {**CLASSES, **NICS})


def test_one_request_is_so_many_gpus_of_one_machine() -> None:
    anywhere = {"oneNode": True, "spread": True}
    assert bid_of(gpus(4, WIDE)) == {"gpus": 4, "selector": WIDE, **anywhere}
    assert bid_of(gpus(1, WIDE)) == {"gpus": 1, "selector": WIDE}


def test_one_that_must_be_on_one_link_is_one_block() -> None:
    one_link = [{"matchAttribute": labels.LINK_DOMAIN_ATTRIBUTE}]
    assert bid_of(gpus(4, WIDE), constraints=one_link) == {"gpus": 4, "selector": WIDE}


def test_several_requests_are_needed_together_in_one_machine() -> None:
    assert bid_of(gpus(8, WIDE), gpus(1, SLIM), gpus(2)) == {
        "gpus": 8,
        "selector": WIDE,
        "also": [{"gpus": 1, "selector": SLIM}, {"gpus": 2, "spread": True}],
        "oneNode": True,
        "spread": True,
    }


def test_what_each_request_may_be_is_what_all_of_them_may_be() -> None:
    found = bid_of([gpus(8, WIDE), gpus(4, WIDE)], [gpus(2, SLIM), gpus(1, SLIM)])
    assert found is not None
    choices = [found, *found["otherwise"]]
    sizes = [(one["gpus"], one["also"][0]["gpus"]) for one in choices]
    assert sizes == [(8, 2), (8, 1), (4, 2), (4, 1)]  # the first request's wish first
    assert all(one["oneNode"] for one in choices)


@pytest.mark.parametrize(
    ("requests", "constraints"),
    [
        ([gpus(1), gpus(1)], [{"matchAttribute": labels.LINK_DOMAIN_ATTRIBUTE}]),
        ([gpus(1), gpus(1)], [{"matchAttribute": "a/b", "requests": ["r0", "r1"]}]),
        ([gpus(1), gpus(1)], [{"distinctAttribute": "a/b", "requests": ["r0"]}]),
        ([gpus(1), {"deviceClassName": "gpu.bidplane.dev", "allocationMode": "All"}], []),
        ([gpus(1, cls="nic.example.com")], []),  # nothing to bid for
        ([gpus(1), nic()], [{"matchAttribute": "a/b"}]),
        ([gpus(1), nic(2)], [{"matchAttribute": "a/b", "requests": ["r1"]}]),
        ([gpus(1), [nic(2), nic()]], []),  # which of them it was is not in a lease
        ([gpus(1), [gpus(1), nic()]], []),
        ([gpus(1), nic(33)], []),
        ([gpus(1), nic(1, *[NIC] * 32)], []),
        ([gpus(1), *[nic()] * 9], []),
        ([gpus(1), {**nic(), "adminAccess": True}], []),
        ([gpus(1), {**nic(), "allocationMode": "All"}], []),
        ([{"deviceClassName": "gpu.bidplane.dev", "allocationMode": "All"}, nic()], []),
        (
            [
                gpus(1),
                gpus(
                    1,
                    'device.attributes["gpu.bidplane.dev"].profile == "1g.10gb"',
                    cls="mig.nvidia.com",
                ),
            ],
            [],
        ),
        ([[gpus(1), gpus(2), gpus(4)]] * 2, []),  # nine ways: more than a bid has alternatives
    ],
)
def test_what_is_tied_or_is_no_block_is_none(requests: list[Any], constraints: list[Json]) -> None:
    assert bid_of(*requests, constraints=constraints) is None


PROFILE = 'device.attributes["gpu.bidplane.dev"].profile == "1g.10gb"'


def mig(count: int = 1, *selectors: str) -> Json:
    return gpus(count, *(selectors or (PROFILE,)), cls="mig.nvidia.com")


def test_one_instance_chosen_by_its_profile_alone_is_a_part() -> None:
    assert bid_of(mig()) == {"gpus": 1, "share": "1g.10gb"}
    assert bid_of(mig(2)) is None
    assert bid_of(mig(1, PROFILE, WIDE)) is None
    assert bid_of(mig(1, WIDE)) is None
    alike = [{"matchAttribute": labels.LINK_DOMAIN_ATTRIBUTE}]
    assert bid_of(mig(), constraints=alike) is None


def test_what_nobody_sells_must_be_beside_it_in_its_machine() -> None:
    fast = 'device.attributes["nic.example.com"].speed == 400'
    assert bid_of(nic(2, fast), gpus(4, WIDE)) == {
        "gpus": 4,
        "selector": WIDE,
        "oneNode": True,
        "spread": True,
        "beside": [{"deviceClass": "nic.example.com", "count": 2, "selectors": [NIC, fast]}],
    }


def test_it_is_beside_whichever_of_the_choices_is_had() -> None:
    found = bid_of([gpus(8), gpus(4)], gpus(1, SLIM), nic())
    assert found is not None
    assert [(one["gpus"], one["oneNode"]) for one in (found, *found["otherwise"])] == [
        (8, True),
        (4, True),
    ]
    assert [one["deviceClass"] for one in found["beside"]] == ["nic.example.com"]
    assert all("beside" not in one for one in found["otherwise"])


def test_a_part_of_a_gpu_has_nothing_beside_it() -> None:
    some: Json = {**gpus(1), "capacity": {"requests": {"memory": "20Gi"}}}
    with pytest.raises(ClaimError, match="a part of a GPU is sold by itself"):
        bid_of(some, nic())


def test_a_class_nobody_has_is_named() -> None:
    with pytest.raises(ClaimError, match=r"device class rdma\.example\.com: there are"):
        bid_of(gpus(1), gpus(1, cls="rdma.example.com"))


def test_a_float_does_not_know_what_is_beside_its_gpus() -> None:
    wanted = bid_of(gpus(1), nic())
    assert wanted is not None
    ask = PodAsk(gpus=1, max_price="1.00", pool="")
    assert "instant" not in bid_for_pod(POD, ask, "1.00", wanted, instant=True)["spec"]


def test_a_constraint_inside_one_request_is_kept() -> None:
    tied = [{"matchAttribute": "a/b", "requests": ["r1"]}]
    found = bid_of(gpus(2), gpus(2, SLIM), constraints=tied)
    assert found is not None
    assert "matchAttribute" not in found
    assert found["also"] == [{"gpus": 2, "selector": SLIM, "matchAttribute": ["a/b"]}]


POD: Json = {
    "metadata": {"name": "p", "namespace": "d", "uid": "0123456789", "annotations": {}},
    "spec": {"containers": []},
}
WANTED: Json = {"gpus": 2, "also": [{"gpus": 1}], "oneNode": True}


def test_a_pod_that_names_a_pool_has_all_of_it_from_there() -> None:
    ask = PodAsk(gpus=0, max_price="2.00", pool="h100")
    spec = bid_for_pod(POD, ask, "1.00", {**WANTED, "otherwise": [WANTED]}, instant=True)["spec"]
    assert spec["maxPrice"] == "2.00"
    assert (spec["pool"], spec["also"]) == ("h100", [{"pool": "h100", "gpus": 1}])
    assert spec["otherwise"][0]["also"] == [{"pool": "h100", "gpus": 1}]
    assert "instant" not in spec


def test_a_float_sells_one_gpu_and_not_one_of_two() -> None:
    wanted = {"gpus": 1, "also": [{"gpus": 1}], "oneNode": True}
    ask = PodAsk(gpus=0, max_price="", pool="")
    assert "instant" not in bid_for_pod(POD, ask, "1.00", wanted, instant=True)["spec"]
    assert bid_for_pod(POD, ask, "1.00", {"gpus": 1}, instant=True)["spec"]["instant"] is True


def test_a_gang_asks_for_as_many_sets_as_it_has_pods() -> None:
    spec = bid_for_gang(POD, "ranks", PodAsk(gpus=0, max_price="", pool=""), "1.00", 3, WANTED)[
        "spec"
    ]
    assert (spec["blocks"], spec["oneNode"], spec["also"]) == (3, True, [{"gpus": 1}])
