"""
What version 0.1.0 wrote opens in this one, and goes on.

`installation-0.1.0.tar.xz` is a data folder that `bidplane up` of 0.1.0 left when it was stopped:
agents `trainer` (a Deployment of two pods that run, a Job that is done, a Secret, a CRD with an
object) and `chat` (a pod on eight GPUs, a Bid below the floor), and one agent that was deleted.
Its keys and certificates are not kept; a start makes new ones.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import msgspec
import pytest

from bidplane.ledger import verify

from .conftest import Installation

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]

OLD = Path(__file__).parent / "installation-0.1.0.tar.xz"


def test_an_installation_of_0_1_0_goes_on(fresh: Installation) -> None:
    fresh.data.mkdir()
    with tarfile.open(OLD) as archive:
        archive.extractall(fresh.data, filter="data")
    (fresh.folder / "fleet.yaml").write_bytes((fresh.data / "fleet.yaml").read_bytes())
    fresh.up()
    assert "the ledger is sound: " in fresh.bidplane("ledger", "verify")
    for agent in ("trainer", "chat"):
        fresh.bidplane("agent", "kubeconfig", agent)

    # What ran runs on, on what it had won.
    fresh.kubectl("trainer", "wait", "--for=condition=Ready", "pod", "-lapp=serve")
    pods = fresh.get("trainer", "pods")["items"]
    names = {pod["spec"]["nodeName"] for pod in pods if pod["metadata"]["labels"].get("app")}
    leases = fresh.get("trainer", "gpuleases")["items"]
    assert names == {lease["metadata"]["name"] for lease in leases}
    assert len(names) == 2
    assert fresh.get("chat", "pod/big")["status"]["phase"] == "Running"
    assert fresh.get("trainer", "secret/key")["data"] == {"k": "bm90LWEtc2VjcmV0"}
    assert fresh.get("trainer", "runs/r1")["spec"] == {"a": 1}
    assert fresh.get("trainer", "job/work")["status"]["succeeded"] == 1
    assert fresh.get("chat", "bid/cheap")["status"]["reason"] == "BelowReserve"

    # It is written to by the new version, and replayed whole.
    fresh.kubectl("trainer", "scale", "deployment/serve", "--replicas=1")
    fresh.kubectl("trainer", "wait", "--for=jsonpath={.status.replicas}=1", "deployment/serve")
    fresh.bidplane("wallet", "fund", "trainer", "1")
    lines = msgspec.json.decode(fresh.bidplane("wallet", "statement", "trainer", "--json"))
    by_hand = [line["amount"] for line in lines["lines"] if line["kind"] in ("transfer", "fund")]
    assert by_hand == ["5.00", "1.00"]
    fresh.down()
    report = verify(fresh.data / "ledger.db")
    assert report.is_sound, report.problem
