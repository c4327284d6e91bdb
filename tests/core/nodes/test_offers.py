"""What a host's node offers, and what of it is left."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from bidplane.api import labels
from bidplane.core.nodes.offers import left_of, offer_of, refusal

Json = dict[str, Any]


def pod(cpu: str, phase: str = "Running") -> Json:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    return {"spec": {"containers": [container]}, "status": {"phase": phase}}


OFFER = {"cpu": Fraction(4), "memory": Fraction(8 << 30)}


def test_pods_that_ended_give_back_what_they_had() -> None:
    pods = [pod("1"), pod("500m", "Pending"), pod("2", "Succeeded"), pod("2", "Failed")]
    remaining = left_of(OFFER, pods)
    assert (remaining["cpu"], remaining["memory"]) == (Fraction(5, 2), 6 << 30)
    assert remaining["pods"] == left_of(OFFER, [])["pods"] - 2
    assert refusal(pod("2500m"), remaining) == ""
    assert refusal(pod("2501m"), remaining) == "cpu"


def test_less_than_nothing_is_never_left() -> None:
    assert left_of(OFFER, [pod("5")])["cpu"] == 0


@pytest.mark.parametrize(
    ("notes", "cpu"),
    [
        ({labels.OFFERS_CPU: "4", labels.OFFERS_MEMORY: "8Gi"}, 4),
        ({labels.OFFERS_CPU: "4"}, None),
        ({labels.OFFERS_CPU: "0", labels.OFFERS_MEMORY: "8Gi"}, None),
        ({labels.OFFERS_CPU: "four", labels.OFFERS_MEMORY: "8Gi"}, None),
        ({}, None),
    ],
)
def test_an_offer_has_both_cpu_and_memory(notes: Json, cpu: int | None) -> None:
    assert offer_of({"metadata": {"name": "n", "annotations": notes}}).get("cpu") == cpu
