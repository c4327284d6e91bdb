"""
Path 1 with real processes: an agent leases GPUs of this machine and works in its pod with
kubectl, as on any cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from .conftest import Installation, pod

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]

SERVER = """
import http.server, os, socketserver, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(os.environ["CUDA_VISIBLE_DEVICES"].encode())
    def log_message(self, *a): pass
print("serving with", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
socketserver.TCPServer((os.environ["POD_IP"], 8080), H).serve_forever()
"""


@pytest.fixture
def machine(tmp_path: Path, kubectl: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path, str(kubectl))
    (tmp_path / "images.yaml").write_text('images: {"tools": {}}')
    installation.up(more=["--runtime", "process", "--images", str(tmp_path / "images.yaml")])
    yield installation
    installation.close()
    told = msgspec.json.decode((installation.data / "machine.json").read_bytes())
    shutil.rmtree(told["state"])


def serving() -> dict[str, object]:
    wanted = pod("serve", gpus=2)
    container = wanted["spec"]["containers"][0]
    container |= {
        "image": "tools",
        "command": ["/usr/bin/python3", "-c", SERVER],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }
    return wanted


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap")
def test_an_agent_works_in_its_pod(machine: Installation) -> None:
    machine.bidplane("agent", "create", "worker", "--priority", "1", "--refill", "100")
    machine.apply("worker", serving())
    machine.kubectl("worker", "wait", "--for=condition=Ready", "pod/serve", "--timeout=30s")
    said = machine.kubectl("worker", "logs", "serve")
    assert said.startswith("serving with GPU-")
    assert said.count("GPU-") == 2
    inside = machine.kubectl("worker", "exec", "serve", "--", "sh", "-c", "echo $HOSTNAME; exit 0")
    assert "serve" in inside
    machine.kubectl("worker", "exec", "serve", "--", "sh", "-c", "exit 3", code=3)
    (machine.folder / "hello").write_text("carried")
    machine.kubectl("worker", "cp", "hello", "serve:/tmp/hello")
    assert machine.kubectl("worker", "exec", "serve", "--", "cat", "/tmp/hello") == "carried"
    with forwarded(machine, "worker", "pod/serve", 8080) as url:
        assert urllib.request.urlopen(url, timeout=10).read().decode() in said
    shown = json.loads(machine.bidplane("top", "--json"))
    assert [(row["agent"], row["pod"], row["declared"]) for row in shown] == [
        ("worker", "default/serve", True)
    ] * 2
    assert all(row["utilisationPercent"] is None for row in shown)
    assert all(row["holderProcesses"][0]["memoryBytes"] > 0 for row in shown)
    # The agent of the node is killed; the pod does not notice.
    children = machine.children()
    before = machine.get("worker", "pod", "serve")["status"]["containerStatuses"][0]
    os.kill(children["machine"], 9)
    deadline = time.monotonic() + 30
    while machine.children().get("machine") in (None, children["machine"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # Answers again, from the same process.
    while True:
        try:
            assert machine.kubectl("worker", "logs", "serve") == said
            break
        except AssertionError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    after = machine.get("worker", "pod", "serve")["status"]["containerStatuses"][0]
    assert after["state"] == before["state"]
    assert after["restartCount"] == 0
    machine.kubectl("worker", "delete", "pod", "serve", "--timeout=60s")


def test_a_pod_that_reaches_for_the_machine_is_refused(machine: Installation) -> None:
    machine.bidplane("agent", "create", "sly", "--priority", "1", "--refill", "100")
    wanted = pod("sly")
    wanted["spec"]["volumes"] = [{"name": "etc", "hostPath": {"path": "/etc"}}]
    wanted["spec"]["hostNetwork"] = True
    said = machine.apply("sly", wanted, code=1)
    assert "spec.hostNetwork" in said
    assert "spec.volumes[0].hostPath" in said
    assert "trusted" in said


CUT = """
nodes:
  - {name: box, product: H100, memory: 80Gi, gpus: 1, mig: true}
pools:
  - product: H100
    floorPrice: "0.20"
    divides: mig
    geometry: [{profile: 1g.10gb, start: 2}, {profile: 3g.40gb, start: 4}]
"""


@pytest.fixture
def cut(tmp_path: Path, kubectl: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path, str(kubectl))
    (tmp_path / "fleet.yaml").write_text(CUT)
    (tmp_path / "images.yaml").write_text('images: {"tools": {}}')
    installation.up(more=["--runtime", "process", "--images", str(tmp_path / "images.yaml")])
    yield installation
    installation.close()
    shutil.rmtree(_state(installation))


def _state(installation: Installation) -> Path:
    told = msgspec.json.decode((installation.data / "machine.json").read_bytes())
    return Path(told["state"])


def instances(installation: Installation) -> list[list[object]]:
    """What is on the machine's card, each as profile and start."""
    file = _state(installation) / "cards.json"
    known = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
    return [[one["profile"], one["start"]] for one in known.get("GPU-box-0", [])]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap")
def test_a_mig_instance_from_the_pod_that_asks_for_it_to_its_end(cut: Installation) -> None:
    cut.bidplane("agent", "create", "worker", "--priority", "1", "--refill", "100")
    wanted = pod("small")
    wanted["spec"]["containers"][0] |= {
        "image": "tools",
        "command": ["/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec sleep 3600"],
        "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}},
    }
    cut.apply("worker", wanted)
    cut.kubectl("worker", "wait", "--for=condition=Ready", "pod/small", "--timeout=60s")
    assert instances(cut) == [["1g.10gb", 2]]
    uuid = cut.kubectl("worker", "logs", "small").strip()
    assert uuid.startswith("MIG-")
    shown = cut.bidplane("top", "--json")
    (row,) = msgspec.json.decode(shown)
    assert (row["share"], row["agent"], row["pod"]) == ("1g.10gb", "worker", "default/small")
    # The agent of the node is killed: the instance is found again, and goes with its pod.
    before = cut.children()["machine"]
    os.kill(before, 9)
    deadline = time.monotonic() + 60
    while cut.children().get("machine") in (None, before):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    cut.kubectl("worker", "delete", "pod", "small", "--timeout=60s")
    while instances(cut):
        assert time.monotonic() < deadline
        time.sleep(0.1)


class forwarded:  # noqa: N801
    """`kubectl port-forward`, for the length of a with."""

    def __init__(self, machine: Installation, agent: str, what: str, port: int) -> None:
        command = [machine._kubectl, "--kubeconfig", str(machine.folder / f"{agent}.kubeconfig")]
        self._process = subprocess.Popen(
            [*command, "port-forward", what, f":{port}"], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # Forwarding from 127.0.0.1:40001 -> 8080
        return f"http://{line.split()[2]}/"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
