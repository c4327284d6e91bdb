"""An idle lease as people meet it: real processes, a node's real page of metrics, real kubectl."""

from __future__ import annotations

import pytest

from .conftest import Installation, pod
from .test_bid_to_pod import ready

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]

FLEET = """
nodes:
  - {name: box, product: H100, gpus: 2}
pools:
  - {product: H100, floorPrice: "0.20", noticeSeconds: 3, restartSeconds: 3, idleSeconds: 15}
"""
IDLE = "idle: no incumbent weight"


def test_a_pod_that_does_nothing_is_told_so_and_outbid_by_a_little(fresh: Installation) -> None:
    (fresh.folder / "fleet.yaml").write_text(FLEET)
    fresh.up()
    for name in ("trainer", "chat"):
        fresh.bidplane("agent", "create", name, "--refill", "100")
    rests = pod("train", price="2.00")
    rests["metadata"]["annotations"]["bidplane.dev/simulated-utilisation-percent"] = "0"
    fresh.apply("trainer", rests)
    ready(fresh, "trainer", "train")
    fresh.kubectl(
        "trainer",
        "wait",
        "gpuleases",
        "--all",
        f"--for=jsonpath={{.status.message}}={IDLE}",
        "--timeout=80s",
    )
    assert IDLE in fresh.kubectl("trainer", "get", "gpuleases", "-o", "wide")
    assert IDLE in fresh.bidplane("agent", "show", "trainer")
    assert IDLE in fresh.bidplane("market", "explain", "trainer/train")
    fresh.apply("chat", pod("ask", price="2.01"))
    ready(fresh, "chat", "ask")
    assert f"another agent outbid this lease ({IDLE})" in fresh.kubectl("trainer", "get", "events")
    assert f"outbid ({IDLE})" in fresh.bidplane("market", "watch", "--no-follow", "--last", "50")
    assert "the ledger is sound" in fresh.bidplane("ledger", "verify")
