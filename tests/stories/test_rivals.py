"""
Agents that want the same GPUs, as their users meet it: `bidplane up` and the real kubectl.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Installation, pod
from .test_bid_to_pod import ready, waiting

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]

PRICE = "bidplane.dev/max-price"
FLOOR = "0.20"


def leases(bidplane: Installation, agent: str) -> dict[str, Any]:
    """The agent's leases by the pod that has them."""
    nodes = {item["metadata"]["name"]: item for item in bidplane.get(agent, "gpuleases")["items"]}
    return {
        item["metadata"]["name"]: nodes[item["spec"]["nodeName"]]
        for item in bidplane.get(agent, "pods")["items"]
        if item["spec"].get("nodeName") in nodes
    }


@pytest.fixture
def create(bidplane: Installation) -> Iterator[Callable[..., None]]:
    """Create agents, and free every GPU when the test is over."""
    created: list[str] = []

    def create_agents(*names: str) -> None:
        for name in names:
            bidplane.bidplane("agent", "create", name, "--refill", "1000")
            created.append(name)

    yield create_agents
    for name in created:
        bidplane.bidplane("agent", "delete", name)


def test_a_high_bid_runs_at_once_though_a_rival_waits(
    bidplane: Installation, create: Callable[..., None]
) -> None:
    create("holder", "rival", "urgent")
    bidplane.apply("holder", pod("train", price="1.00"))
    ready(bidplane, "holder", "train")
    bidplane.apply("rival", pod("train", price="1.00"))
    waiting(bidplane, "rival", "train", "Outbid")
    bidplane.apply("urgent", pod("answer", price="100.00"))
    ready(bidplane, "urgent", "answer")
    # It pays what the others made of the GPUs, not its own maximum.
    price = float(leases(bidplane, "urgent")["answer"]["status"]["price"])
    assert price < 2.0


def test_a_pod_that_offers_the_price_it_is_told_runs(
    bidplane: Installation, create: Callable[..., None]
) -> None:
    create("first", "second")
    bidplane.apply("first", pod("train", price="3.00"))
    ready(bidplane, "first", "train")
    bidplane.apply("second", pod("train", price="1.00"))
    message = waiting(bidplane, "second", "train", "Outbid")
    told = re.search(rf"To win now, set {PRICE} to ([0-9.]+)\.$", message)
    assert told is not None, message
    bidplane.kubectl("second", "annotate", "--overwrite", "pod/train", f"{PRICE}={told[1]}")
    ready(bidplane, "second", "train")


def test_a_pod_behind_a_term_is_told_until_when(
    bidplane: Installation, create: Callable[..., None]
) -> None:
    create("termed", "late")
    guarded = pod("train", gpus=1, price="1.00")  # of two, one may be under a term
    guarded["metadata"]["annotations"]["bidplane.dev/term"] = "600"
    bidplane.apply("termed", guarded)
    ready(bidplane, "termed", "train")
    bidplane.apply("late", pod("train", price="100.00"))
    message = waiting(bidplane, "late", "train", "NoFreeBlock")
    assert re.search("held for a term, until ", message), message


def test_pods_of_one_agent_neither_evict_nor_outbid_each_other(
    bidplane: Installation, create: Callable[..., None]
) -> None:
    create("alone")
    for name, price in (("one", "1.00"), ("two", "2.00")):
        bidplane.apply("alone", pod(name, gpus=1, price=price))
        ready(bidplane, "alone", name)
    bidplane.apply("alone", pod("three", gpus=1, price="50.00"))
    message = waiting(bidplane, "alone", "three", "NoFreeBlock")
    assert "of the same agent has the GPU" in message
    assert {
        name: lease["status"]["price"] for name, lease in leases(bidplane, "alone").items()
    } == dict.fromkeys(("one", "two"), FLOOR)
    # Unless it is marked urgent.
    now = pod("now", gpus=1, price="50.00")
    now["metadata"]["annotations"]["bidplane.dev/urgency"] = "high"
    bidplane.apply("alone", now)
    ready(bidplane, "alone", "now")
    assert "the ledger is sound" in bidplane.bidplane("ledger", "verify")
