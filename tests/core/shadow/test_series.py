"""Pods put together from the points of a Prometheus, as complete and as poor as they come."""

from __future__ import annotations

import pytest

from bidplane.core.shadow import queries
from bidplane.core.shadow.series import PodHistory, holder_name, pod_name

END = 100_000.0
POD = {"namespace": "ns", "pod": "p", "uid": "u"}


def whole(**changes: str) -> PodHistory:
    history = PodHistory()
    labels = {**POD, **changes}
    history.requested(labels, 4.0)
    history.timed(queries.CREATED, labels, 1000.0)
    history.timed(queries.SCHEDULED, labels, 1060.0)
    history.seen(labels, END - 60)
    history.owned({**labels, "owner_kind": "Job", "owner_name": "train"})
    return history


def test_a_pod_that_is_there() -> None:
    (pod,) = whole().pods(end=END)
    assert (pod.namespace, pod.name, pod.owner, pod.gpus) == ("ns", "p", "Job/train", 4)
    assert (pod.created, pod.scheduled, pod.ended) == (1000.0, 1060.0, None)


def test_a_pod_that_was_deleted_ends_when_it_was_last_seen() -> None:
    history = PodHistory()
    history.requested(POD, 1.0)
    history.seen(POD, 5000.0)
    history.timed(queries.SCHEDULED, POD, 2000.0)
    (pod,) = history.pods(end=END)
    assert pod.ended == 5000.0


def test_a_pod_that_has_finished_ends_then_and_not_when_it_is_deleted() -> None:
    history = whole()
    history.timed(queries.COMPLETED, POD, 9000.0)
    (pod,) = history.pods(end=END)
    assert pod.ended == 9000.0


def test_two_pods_of_one_name_are_two() -> None:
    history = whole()
    again = {**POD, "uid": "u2"}
    history.requested(again, 1.0)
    history.timed(queries.SCHEDULED, again, 50_000.0)
    history.seen(again, END)
    assert [(pod.gpus, pod.scheduled) for pod in history.pods(end=END)] == [
        (4, 1060.0),
        (1, 50_000.0),
    ]


def test_a_pod_without_a_time_of_scheduling_waits_if_others_have_one() -> None:
    history = whole()
    late = {**POD, "pod": "late", "uid": "u2"}
    history.requested(late, 1.0)
    history.timed(queries.CREATED, late, 2000.0)
    history.seen(late, END)
    pods = {pod.name: pod for pod in history.pods(end=END)}
    assert pods["late"].scheduled is None


def test_without_any_time_of_scheduling_a_pod_holds_from_its_creation() -> None:
    history = PodHistory()
    history.requested(POD, 1.0)
    history.timed(queries.CREATED, POD, 2000.0)
    history.seen(POD, END)
    (pod,) = history.pods(end=END)
    assert pod.scheduled == 2000.0
    gaps = {gap.source for gap in history.gaps()}
    assert gaps == {queries.SCHEDULED, queries.COMPLETED, queries.OWNER}


def test_a_pod_that_only_dcgm_names_has_the_devices_and_times_it_saw() -> None:
    history = PodHistory()
    history.held("ns", "p", devices=2, begin=3000.0, end=4000.0)
    history.held("ns", "p", devices=3, begin=4000.0, end=9000.0)
    (pod,) = history.pods(end=END)
    assert (pod.gpus, pod.scheduled, pod.ended, pod.owner) == (3, 3000.0, 9000.0, "Pod/p")
    assert queries.REQUESTS in {gap.source for gap in history.gaps()}


def test_a_pod_known_by_name_and_uid_is_the_one_that_dcgm_names() -> None:
    history = PodHistory()
    history.timed(queries.CREATED, POD, 1000.0)
    history.timed(queries.SCHEDULED, POD, 2000.0)
    history.held("ns", "p", devices=2, begin=3000.0, end=END)
    (pod,) = history.pods(end=END)
    assert (pod.created, pod.scheduled, pod.gpus, pod.ended) == (1000.0, 2000.0, 2, None)


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"namespace": "ns", "pod": "p"}, ("ns", "p")),
        (
            {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x",
             "exported_namespace": "ns", "exported_pod": "p"},
            ("ns", "p"),
        ),
        ({"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x"}, ("", "")),
        ({}, ("", "")),
    ],
    ids=["kept", "renamed", "the exporter's own", "nobody's"],
)  # fmt: skip
def test_the_holder_of_a_device(labels: dict[str, str], name: tuple[str, str]) -> None:
    assert holder_name(labels) == name


def test_a_pod_of_kube_state_metrics_may_have_any_name() -> None:
    assert pod_name({"namespace": "ns", "pod": "dcgm-test"}) == ("ns", "dcgm-test")


def test_names_are_asked_for_in_short_queries() -> None:
    names = [f"pod-{i:04}.x" for i in range(1000)]
    patterns = list(queries.named(names))
    assert max(map(len, patterns)) < 2000
    assert [n for p in patterns for n in p.split("|")] == [
        name.replace("-", r"\\-").replace(".", r"\\.") for name in names
    ]
