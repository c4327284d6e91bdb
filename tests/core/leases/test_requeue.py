"""A pod that comes back is the pod that was evicted, one eviction older."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.api import labels
from bidplane.core.leases import requeue


def pod(**metadata):
    return {
        "metadata": {"name": "train", "namespace": "default", "uid": "u1", **metadata},
        "spec": {
            "nodeName": "lease-1",
            "serviceAccount": "default",
            "serviceAccountName": "default",
            "containers": [{"name": "main", "image": "train:1"}],
        },
        "status": {"phase": "Running"},
    }


def test_the_likeness_keeps_what_was_wanted_and_not_where_it_ran():
    evicted = pod(labels={"app": "train"}, annotations={labels.MAX_PRICE: "2"})
    back = requeue.revived(requeue.template(evicted))
    assert back["metadata"] == {
        "name": "train",
        "namespace": "default",
        "labels": {"app": "train"},
        "annotations": {labels.MAX_PRICE: "2", labels.EVICTIONS: "1"},
    }
    assert back["spec"] == {
        "serviceAccountName": "default",
        "containers": [{"name": "main", "image": "train:1"}],
    }
    assert "status" not in back


def test_evictions_are_counted():
    evicted = pod()
    for times in (1, 2, 3):
        back = requeue.revived(requeue.template(evicted))
        assert requeue.evictions(back) == times
        evicted = {**back, "metadata": {**back["metadata"], "uid": f"u{times + 1}"}}


@given(st.text())
def test_no_annotation_keeps_a_pod_from_being_evicted(text):
    """An agent writes its pods' annotations: none may hold a GPU back from its new holder."""
    kept = requeue.template(pod(annotations={labels.EVICTIONS: text}))
    assert requeue.evictions(requeue.revived(kept)) >= 1


def test_two_lives_of_one_name_are_kept_apart():
    first, second = requeue.template(pod()), requeue.template(pod(uid="u2"))
    assert first["metadata"]["name"] != second["metadata"]["name"]


@pytest.mark.parametrize(
    ("owners", "bare"),
    [
        (None, True),
        ([], True),
        ([{"kind": "ConfigMap", "uid": "c"}], True),
        ([{"kind": "Job", "uid": "j", "controller": True}], False),
    ],
)
def test_only_a_controller_replaces_a_pod(owners, bare):
    assert requeue.is_bare(pod(ownerReferences=owners)) is bare


def test_the_evicted_pod_is_not_changed():
    """What a cache hands out is shared."""
    evicted = pod(annotations={"note": "mine"})
    requeue.template(evicted)
    assert evicted["metadata"]["annotations"] == {"note": "mine"}


def test_a_budget_goes_on_with_what_was_spent():
    """However often it is evicted, it is the first one's work that it goes on with."""
    first = pod(annotations={labels.BUDGET: "5"})
    second = requeue.revived(requeue.template(first))
    assert second["metadata"]["annotations"][labels.WORK] == first["metadata"]["uid"]
    second["metadata"]["uid"] = "another"
    third = requeue.revived(requeue.template(second))
    assert third["metadata"]["annotations"][labels.WORK] == first["metadata"]["uid"]
