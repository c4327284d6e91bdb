"""Objects of our own kinds, read whole into structs."""

from __future__ import annotations

import pytest

from bidplane.api import objects, times
from bidplane.api.bid import BidPhase, BidStatus
from bidplane.api.reading import (
    Bid,
    IdentityCache,
    Invalid,
    ViewCache,
    read_agent,
    read_bid,
    read_lease,
    read_status,
)


def bid(**spec):
    metadata = {"name": "a", "namespace": "n", "uid": "u", "managedFields": [{"manager": "x"}]}
    return {
        "apiVersion": "bidplane.dev/v1alpha1",
        "kind": "Bid",
        "metadata": metadata,
        "spec": {"gpus": 2, **spec},
    }


def test_a_bid_is_read_with_its_defaults():
    read = read_bid(bid(maxPrice="1.50"))
    assert isinstance(read, Bid)
    assert (read.name, read.namespace, read.uid) == ("a", "n", "u")
    assert (read.spec.gpus, read.spec.max_price, read.spec.blocks) == (2, "1.50", 1)
    assert read.status is None
    assert not read.is_deleted


def test_a_status_is_read_and_a_deletion_seen():
    obj = bid()
    obj["status"] = {"phase": "Won", "reason": "Won", "message": "", "lease": "lease-1"}
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    read = read_bid(obj)
    assert isinstance(read, Bid)
    assert read.status is not None
    assert (read.status.phase, read.status.lease) == (BidPhase.WON, "lease-1")
    assert read.is_deleted


@pytest.mark.parametrize(
    ("obj", "problem"),
    [
        (bid(gpus="two"), "spec.gpus: Expected `int`, got `str`"),
        (bid(otherwise=[{"gpus": 0}]), "spec.otherwise[0].gpus: Expected `int` >= 1"),
        ({"metadata": {"name": "a"}}, "Object missing required field `spec`"),
    ],
)
def test_an_invalid_object_is_named_with_its_field(obj, problem):
    assert read_bid(obj) == Invalid("a", problem)
    assert str(read_bid(obj)) == f"a: {problem}"


def test_conditions_are_read_beside_the_status():
    obj = bid()
    obj["status"] = {"conditions": [{"type": "Held", "status": "True", "reason": "Beats"}]}
    read = read_bid(obj)
    assert isinstance(read, Bid)
    assert read.status is None  # nobody has written more than the condition
    assert read.is_true("Held")
    condition = read.condition("Held")
    assert condition is not None
    assert condition.reason == "Beats"
    assert read.condition("Claimed") is None
    assert not read.is_true("Claimed")


def test_a_status_of_another_version_counts_as_none():
    obj = bid()
    obj["status"] = {"phase": "Dreaming", "reason": "Won", "message": ""}
    read = read_bid(obj)
    assert isinstance(read, Bid)
    assert (read.spec.gpus, read.status) == (2, None)
    assert read_status(obj, BidStatus) is None


def test_the_status_of_an_invalid_object_can_be_read_alone():
    obj = bid(gpus="two")
    obj["status"] = {"phase": "Refused", "reason": "BadBid", "message": "gpus"}
    assert isinstance(read_bid(obj), Invalid)
    status = read_status(obj, BidStatus)
    assert status is not None
    assert status.phase is BidPhase.REFUSED


def test_views_are_computed_once_for_each_object_of_a_listing():
    computed = []

    def gpus(obj):
        computed.append(obj["spec"]["gpus"])
        return obj["spec"]["gpus"]

    views, first, second = ViewCache(gpus), bid(gpus=1), bid(gpus=2)
    assert views.of([first, second]) == [1, 2]
    assert views.of([second]) == [2]
    assert computed == [1, 2]
    assert views.of([first, second]) == [1, 2]  # one that was gone is computed again
    assert computed == [1, 2, 1]


def test_other_kinds_are_read():
    metadata = {"name": "a"}
    assert not isinstance(read_agent({"metadata": metadata, "spec": {"owner": "o"}}), Invalid)
    assert isinstance(read_lease({"metadata": metadata, "spec": {}}), Invalid)


def test_the_same_object_is_decoded_once_and_a_new_version_again():
    obj = bid()
    assert read_bid(obj) is read_bid(obj)
    struct = read_bid({**obj, "spec": {"gpus": 4}})
    assert isinstance(struct, Bid)
    assert struct.spec.gpus == 4


def test_the_cache_holds_the_last_objects_and_no_more():
    derived = []
    cache = IdentityCache(lambda obj: derived.append(obj["n"]) or obj["n"], most=2)
    first, second, third = ({"n": n} for n in (1, 2, 3))
    assert [cache(obj) for obj in (first, second, second, third, third, first)] == [
        1,
        2,
        2,
        3,
        3,
        1,
    ]
    assert derived == [1, 2, 3, 1]


def test_times_are_written_and_read_alike():
    assert times.rfc3339(1.9) == "1970-01-01T00:00:01Z"
    assert (times.rfc3339_ms(1900), times.rfc3339_ms(0)) == ("1970-01-01T00:00:01Z", "")
    assert times.parse_or_zero("1970-01-01T00:00:01Z") == 1
    assert times.rfc3339_micro(1.25) == "1970-01-01T00:00:01.250000Z"
    assert times.parse_rfc3339("1970-01-01T01:00:01+01:00") == 1.0
    assert times.parse_rfc3339(times.rfc3339_micro(1.25)) == 1.25


@pytest.mark.parametrize("text", ["", "soon", "2026-01-01T00:00:00"])
def test_text_that_is_no_moment_is_refused(text):
    with pytest.raises(ValueError, match=r"zone|isoformat"):
        times.parse_rfc3339(text)
    assert times.parse_or_zero(text) == 0


def test_the_common_fields_of_any_object():
    pod = {
        "metadata": {
            "name": "p",
            "ownerReferences": [{"uid": "a"}, {"uid": "b", "controller": True}],
        },
        "status": {"phase": "Failed", "conditions": [{"type": "Ready", "status": "False"}]},
    }
    assert objects.name_of(pod) == "p"
    assert (objects.namespace_of(pod), objects.uid_of(pod)) == ("", "")
    assert objects.controller_of(pod) == {"uid": "b", "controller": True}
    assert objects.has_ended(pod)
    assert not objects.is_true(pod, "Ready")
    assert objects.condition_of(pod, "Initialized") is None
    assert not objects.is_deleted(pod)
