"""
A fleet's owner takes nodes out of service with stock kubectl: a cordoned node sells nothing and
keeps what it has, a drained one is left in good order, and one that is deleted is forgotten.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from .conftest import Installation, pod
from .test_bid_to_pod import ready, waiting

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]

FLEET = """
nodes:
  - {name: one, product: H100, gpus: 2}
  - {name: two, product: H100, gpus: 2}
pools:
  - {product: H100, floorPrice: "0.20", noticeSeconds: 3, restartSeconds: 3}
"""


def until(condition: Callable[[], bool], *, within: float = 30) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.2)


def node_of(bidplane: Installation, agent: str, name: str) -> str:
    lease = bidplane.get(agent, f"pod/{name}")["spec"]["nodeName"]
    leases = bidplane.get(agent, "gpuleases")["items"]
    (node,) = [one["spec"]["node"] for one in leases if one["metadata"]["name"] == lease]
    return str(node)


def test_cordon_drain_delete(fresh: Installation) -> None:
    (fresh.folder / "fleet.yaml").write_text(FLEET)
    fresh.up()
    fresh.bidplane("plane", "kubeconfig", "host")
    fresh.bidplane("agent", "create", "trainer", "--refill", "100")
    fresh.apply("trainer", pod("first", price="5.00"))
    ready(fresh, "trainer", "first")
    there = node_of(fresh, "trainer", "first")
    (other,) = {"one", "two"} - {there}

    # A cordon: who is there stays, nobody new comes, and all are told why.
    fresh.kubectl("host", "cordon", other)
    fresh.apply("trainer", pod("second", price="2.00"))
    told = waiting(fresh, "trainer", "second", "NoFreeBlock")
    assert f"2 of 4 H100 are on node {other}, which is cordoned" in told
    assert "an agent's bids do not displace its own leases" in told
    said = json.loads(
        fresh.get("trainer", "pod/second")["metadata"]["annotations"]["bidplane.dev/pending"]
    )
    assert said["withheld"] == f"2 of 4 H100 are on node {other}, which is cordoned"
    assert "which is cordoned" in fresh.bidplane("market", "explain", "trainer/second")
    assert f"now in h100: 2 of 4 H100 are on node {other}" in fresh.bidplane("market", "prices")
    fleet = {line.split()[0]: line for line in fresh.bidplane("fleet", "list").splitlines()}
    assert "cordoned" in fleet[other]
    assert "cordoned" not in fleet[there]
    health = {(row["node"], row["health"]) for row in json.loads(fresh.bidplane("top", "--json"))}
    assert health == {(other, "cordoned"), (there, "ok")}

    # A drain: its pod leaves, its lease is given back, and it goes on where it may.
    fresh.kubectl("host", "drain", there, "--force", "--ignore-daemonsets", "--timeout=60s")
    fresh.kubectl("host", "uncordon", other)
    ready(fresh, "trainer", "first")
    assert node_of(fresh, "trainer", "first") == other
    events = fresh.kubectl("trainer", "get", "events")
    assert f"the owner of node {there} evicted the pod" in events

    # Gone: nothing is sold of what it left behind.
    fresh.kubectl("host", "delete", "node", there)
    gone = f"2 of 4 H100 are on node {there}, which is gone"
    until(lambda: gone in waiting(fresh, "trainer", "second", "NoFreeBlock"))
    assert "gone" in fresh.bidplane("fleet", "list")
    assert "the ledger is sound" in fresh.bidplane("ledger", "verify")
