"""Which pods buy from a float: as they say; else who does not save by waiting."""

from __future__ import annotations

from typing import Any

import pytest

from bidplane.api import labels
from bidplane.api.agent import Strategy
from bidplane.core.bidding.asks import POD, problems
from bidplane.core.scheduling import CreateBid, PlaneSnapshot, plan


def pod(gpus: str = "1", **annotations: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {labels.GPU_RESOURCE: gpus}}}
    return {
        "metadata": {
            "name": "ask",
            "namespace": "default",
            "uid": "11111111-aaaa",
            "creationTimestamp": "2026-11-16T00:00:00Z",
            "annotations": {f"bidplane.dev/{key}": text for key, text in annotations.items()},
        },
        "spec": {"containers": [container]},
        "status": {"phase": "Pending"},
    }


def is_instant(found: dict[str, Any], strategy: Strategy = Strategy.MANUAL) -> bool:
    snapshot = PlaneSnapshot(
        pods=[found],
        bids=[],
        leases=[],
        nodes=[],
        max_price="1.00",
        strategy=strategy,
        now=1_800_000_000.0,
    )
    (operation,) = plan(snapshot)
    assert isinstance(operation, CreateBid)
    return operation.bid["spec"].get("instant", False)  # type: ignore[no-any-return]


def test_a_plain_pod_of_one_gpu_does_not_wait() -> None:
    assert is_instant(pod())
    assert is_instant(pod(), Strategy.STEADY)


@pytest.mark.parametrize("found", [pod("2"), pod(term="600"), pod(preemptible="false")])
def test_what_no_float_sells_is_not_asked_of_it(found: dict[str, Any]) -> None:
    assert not is_instant(found)


@pytest.mark.parametrize("strategy", [Strategy.THRIFTY, Strategy.DEADLINE])
def test_who_saves_by_waiting_waits_unless_it_is_said(strategy: Strategy) -> None:
    assert not is_instant(pod(), strategy)
    assert is_instant(pod(instant="true"), strategy)
    assert is_instant(pod(urgency="high"), strategy)
    assert is_instant(pod(**{"max-price": "2.00"}), strategy)
    assert not is_instant(pod(instant="false", urgency="high"), strategy)


def test_a_pod_may_say_no() -> None:
    assert not is_instant(pod(instant="false"))


def test_what_is_neither_is_refused() -> None:
    assert list(problems(POD, pod(instant="now"))) == [
        'metadata.annotations[bidplane.dev/instant]: \'now\' is not "true" or "false"'
    ]
