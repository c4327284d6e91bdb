from __future__ import annotations

import pytest

from bidplane.api.kinds import POD
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
