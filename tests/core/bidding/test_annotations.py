from __future__ import annotations

import pytest

from bidplane.api import labels
from bidplane.api.kinds import POD
from bidplane.core.bidding import annotations as annotations_of
from bidplane.core.bidding import asks


def problems(**notes: str) -> list[str]:
    annotations = {f"bidplane.dev/{name.replace('_', '-')}": text for name, text in notes.items()}
    pod = {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": []}}
    return asks.problems(POD, pod)


def test_what_can_be_read_is_no_problem() -> None:
    assert not problems(
        deadline="2026-11-16T18:00:00Z",
        urgency="high",
        term="3600",
        preemptible="false",
        checkpoint_command="kill -USR1 1",
        max_price="2.10",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deadline", "tomorrow"),
        ("deadline", "2026-11-16T18:00:00"),  # whose six o'clock?
        ("urgency", "very"),
        ("term", "-1"),
        ("term", "1h"),
        ("term", "0"),
        ("preemptible", "no"),
        ("checkpoint_command", "  "),
        ("checkpoint_command", "echo 'open"),
        ("max_price", "much"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(name: str, text: str) -> None:
    (words,) = problems(**{name: text})
    assert words.startswith(f"metadata.annotations[bidplane.dev/{name.replace('_', '-')}]")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("maxprice", labels.MAX_PRICE),
        ("max_price", labels.MAX_PRICE),
        ("budgt", labels.BUDGET),
        ("urgent", labels.URGENCY),
        ("Deadline", labels.DEADLINE),
        ("gangsize", labels.GANG_SIZE),
        ("zebra", ""),
    ],
)
def test_a_name_that_nobody_reads_is_told_with_the_nearest(name: str, meant: str) -> None:
    metadata = {"annotations": {f"bidplane.dev/{name}": "1"}}
    template = {"metadata": metadata, "spec": {}}
    for prefix, obj in (
        ("", template),
        ("spec.template.", {"metadata": {}, "spec": {"template": template}}),
        (
            "spec.jobTemplate.spec.template.",
            {"metadata": {}, "spec": {"jobTemplate": {"spec": {"template": template}}}},
        ),
    ):
        (warning,) = annotations_of.unread(obj)
        field = f"{prefix}metadata.annotations[bidplane.dev/{name}]"
        assert warning.startswith(f"{field}: Bidplane has no such annotation")
        assert warning.endswith(f"did you mean {meant}?" if meant else "annotation")


def test_names_that_somebody_reads_are_not_warned_about() -> None:
    ours = [text for text in vars(labels).values() if str(text).startswith("bidplane.dev/")]
    names = [*ours, "gpu-fraction", "example.com/maxprice", "kubectl.kubernetes.io/x"]
    assert not list(annotations_of.unread({"metadata": {"annotations": dict.fromkeys(names, "")}}))
    for obj in ({}, {"metadata": None}, {"metadata": {}, "spec": {"template": None}}):
        assert not list(annotations_of.unread(obj))
