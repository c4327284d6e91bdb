"""
The first users' box, as they meet it: a fleet file with its cards, `bidplane up`, the real kubectl.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from bidplane.api.money import GPU_WEIGHT

from .conftest import Installation, pod
from .test_bid_to_pod import ready

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]

FLEET = """
nodes:
  - name: box
    product: RTX-6000
    memory: 48Gi
    cpu: 32
    hostMemory: 256Gi
    offers: {cpu: 2, memory: 4Gi}
    cards:
      - {width: 16}
      - {width: 16}
      - {width: 16}
      - {width: 16}
      - {width: 4}
      - {width: 4, maxWidth: 16}
pools:
  - {product: RTX-6000, floorPrice: "0.20", noticeSeconds: 3, restartSeconds: 3}
"""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory, kubectl: str) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("box"), str(kubectl))
    (installation.folder / "fleet.yaml").write_text(FLEET)
    installation.up()
    yield installation
    installation.close()


def leased(box: Installation, agent: str, name: str) -> dict[str, Any]:
    """The node of a pod's lease."""
    node = box.get(agent, "pod", name)["spec"]["nodeName"]
    shown: dict[str, Any] = box.get(agent, "node", node)
    return shown


@pytest.mark.parametrize("gpus", [3, 4, 6])
def test_one_pod_has_three_four_or_six_cards_of_the_box(box: Installation, gpus: int) -> None:
    agent = f"tp{gpus}"
    box.bidplane("agent", "create", agent, "--refill", "100", "--max-price", "3.00")
    box.apply(agent, pod("tp", gpus=gpus))
    ready(box, agent, "tp")
    assert leased(box, agent, "tp")["status"]["capacity"]["nvidia.com/gpu"] == str(gpus)
    (lease,) = box.get(agent, "gpuleases")["items"]
    assert lease["spec"]["weight"] == GPU_WEIGHT * gpus  # it pays for as many as it has
    box.kubectl(agent, "delete", "pod", "tp")


def plain(name: str, *, cpu: str, gpus: int = 0) -> dict[str, Any]:
    made: dict[str, Any] = pod(name, gpus=gpus)
    made["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return made


def waits(box: Installation, agent: str, name: str, reason: str) -> str:
    path = '{.status.conditions[?(@.type=="PodScheduled")].reason}'
    box.kubectl(agent, "wait", f"pod/{name}", f"--for=jsonpath={path}={reason}", "--timeout=30s")
    shown = box.get(agent, "pod", name)["status"]["conditions"]
    return next(str(one["message"]) for one in shown if one["type"] == "PodScheduled")


def test_a_pod_without_a_gpu_runs_on_offered_cpu_and_no_pod_has_more_than_there_is(
    box: Installation,
) -> None:
    box.bidplane("agent", "create", "web", "--refill", "100", "--max-price", "3.00")
    box.apply("web", plain("small", cpu="1"))
    ready(box, "web", "small")
    assert box.get("web", "pod", "small")["spec"]["nodeName"] == "offered-box"
    assert box.get("web", "node", "offered-box")["status"]["allocatable"]["cpu"] == "2"
    box.apply("web", plain("large", cpu="5000"))
    assert "Insufficient cpu" in waits(box, "web", "large", "Unschedulable")
    box.apply("web", plain("huge", cpu="5000", gpus=1))
    assert "comes with at most cpu 5" in waits(box, "web", "huge", "NoMachineFits")
    box.apply("web", plain("train", cpu="5", gpus=1))
    ready(box, "web", "train")
    assert leased(box, "web", "train")["status"]["allocatable"]["cpu"] == "5"
    box.kubectl("web", "delete", "pod", "--all")


def test_a_card_that_trains_down_under_a_lease_is_told_to_its_agent(box: Installation) -> None:
    box.bidplane("agent", "create", "tp", "--refill", "100", "--max-price", "3.00")
    box.apply("tp", pod("work", gpus=4))
    ready(box, "tp", "work")
    node = box.get("tp", "pod", "work")["spec"]["nodeName"]
    box.bidplane("plane", "kubeconfig", "host")
    published = box.get("host", "resourceslice", "box-gpus")["spec"]
    published["devices"][0]["attributes"]["bidplane.dev/pcieLinkWidth"] = {"int": 8}
    patch = msgspec.json.encode({"spec": {"devices": published["devices"]}}).decode()
    box.kubectl("host", "patch", "resourceslice", "box-gpus", "--type=merge", f"-p={patch}")
    box.kubectl("tp", "wait", "--for=condition=LinkDegraded", f"node/{node}", "--timeout=30s")
    box.kubectl("tp", "wait", "--for=condition=LinkDegraded", f"gpulease/{node}", "--timeout=30s")
    shown = box.get("tp", "resourceslice", node)["spec"]["devices"]
    widths = [one["attributes"]["bidplane.dev/pcieLinkWidth"]["int"] for one in shown]
    assert sorted(widths) == [8, 16, 16, 16]
    assert "its PCIe link fell from x16 to x8" in box.kubectl("tp", "describe", "pod", "work")
    box.kubectl("tp", "delete", "pod", "work")


def test_the_box_is_listed_with_the_domains_that_were_declared(box: Installation) -> None:
    line = next(row for row in box.bidplane("fleet", "list").splitlines() if "box" in row)
    assert "4+1+1" in line
    drawn = box.bidplane("fleet", "topology", "box")
    assert "pci0000" not in drawn
    assert "? not declared" in drawn
