"""
Path 2 with real processes: a request wakes a service, which sleeps again and gives its GPU back.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from effort import effort

from .conftest import Installation, pod

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap"),
]

SERVER = """
import http.server, os, time
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = (os.environ["CUDA_VISIBLE_DEVICES"] + " " + self.headers["X-Number"]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
time.sleep(0.3)
http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8080), H).serve_forever()
"""


def manifests(name: str, code: str = SERVER, **endpoint: Any) -> list[dict[str, Any]]:
    container = {
        "name": "main",
        "image": "tools",
        "command": ["/usr/bin/python3", "-c", code],
        "ports": [{"containerPort": 8080}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    selector = {"app": name}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1}
    template = {"metadata": {"labels": selector}, "spec": pod}
    metadata = {"name": name}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {"replicas": 0, "selector": {"matchLabels": selector}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": selector, "ports": [{"port": 80, "targetPort": 8080}]},
        },
        {
            "apiVersion": "bidplane.dev/v1alpha1",
            "kind": "Endpoint",
            "metadata": metadata,
            "spec": {
                "target": {"deployment": name, "service": name},
                "idleSeconds": 4,
                "probePath": "",
                **endpoint,
            },
        },
    ]


class Site:
    """An installation that runs pods on this machine, and the address of its services."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        address = msgspec.json.decode((installation.data / "installation.json").read_bytes())
        self.url: str = address["activator_url"]

    def get(self, name: str, number: int = 0, seconds: float = 60) -> tuple[int, str, Any]:
        request = urllib.request.Request(
            self.url, headers={"Host": f"{name}.worker.localhost", "X-Number": str(number)}
        )
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def status(self, name: str) -> Any:
        return self.installation.get("worker", "endpoints.bidplane.dev", name).get("status") or {}

    def until(self, condition: Callable[[], bool], seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def sleeps(self, name: str) -> None:
        self.until(lambda: self.status(name).get("phase") == "Asleep")

    def leases(self) -> Any:
        return self.installation.get("worker", "gpuleases")["items"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, kubectl: Path) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("sleeping")
    installation = Installation(folder, str(kubectl))
    (folder / "images.yaml").write_text('images: {"tools": {}}')
    installation.up(more=["--runtime", "process", "--images", str(folder / "images.yaml")])
    installation.bidplane("agent", "create", "worker", "--priority", "1", "--refill", "100")
    yield Site(installation)
    machine = msgspec.json.decode((installation.data / "machine.json").read_bytes())
    installation.close()
    shutil.rmtree(machine["state"])


def test_a_request_wakes_a_service_that_then_gives_its_gpu_back(site: Site) -> None:
    for manifest in manifests("web"):
        site.installation.apply("worker", manifest)
    site.until(lambda: site.status("web").get("phase") == "Asleep")
    assert not site.leases()
    for life in range(2):
        with ThreadPoolExecutor(5) as clients:
            answers = list(clients.map(lambda number: site.get("web", number), range(5)))
        assert [code for code, _, _ in answers] == [200] * 5, answers
        assert sorted(body.split()[1] for _, body, _ in answers) == list("01234")
        assert all(body.startswith("GPU-") for _, body, _ in answers)
        assert {headers["X-KEDA-HTTP-Cold-Start"] for _, _, headers in answers} == {"true"}
        assert site.get("web")[2]["X-KEDA-HTTP-Cold-Start"] == "false"
        assert len(site.leases()) == 1
        status = site.status("web")
        assert status["demand"]["number"] == 2 + 2 * life
        site.sleeps("web")
        site.until(lambda: not site.leases())
    bidplane = site.installation.bidplane
    assert "worker  default/web  Asleep" in bidplane("endpoint", "list")
    explained = bidplane("endpoint", "why", "worker/web")
    assert "nobody used it for 4 s" in explained
    assert re.search(r"Its last cold start took [\d.]+ s \(bid .*, load .*, probe ", explained)
    cold_start = site.status("web")["coldStart"]
    assert cold_start["start"] > 0, cold_start
    assert cold_start["load"] + cold_start["probe"] > 250, cold_start  # before it listens
    # A slow machine must not find it idle between the next commands.
    longer = '{"spec": {"idleSeconds": 600}}'
    patch = ("patch", "endpoints.bidplane.dev/web", "--type=merge", "-p", longer)
    site.installation.kubectl("worker", *patch)
    bidplane("endpoint", "wake", "worker/web")
    site.until(lambda: site.status("web").get("phase") == "Ready")
    assert "8080" in bidplane("endpoint", "show", "worker/web")
    bidplane("endpoint", "sleep", "worker/web")
    site.sleeps("web")
    assert "a person asked" in bidplane("endpoint", "why", "worker/web")
    assert "there is no Endpoint" in bidplane("endpoint", "show", "worker/none", code=2)


@pytest.mark.explored
@pytest.mark.parametrize("process", ["server", "exchange", "machine"][: effort(1, 3)])
def test_a_held_request_survives_a_kill_of_any_other_process(site: Site, process: str) -> None:
    name = f"web-{process}"
    for manifest in manifests(name):
        site.installation.apply("worker", manifest)
    site.until(lambda: site.status(name).get("phase") == "Asleep")
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(site.get, name, 7)
        time.sleep(0.2)
        os.kill(site.installation.children()[process], signal.SIGKILL)
        code, body, _ = asked.result(timeout=60)
    assert code == 200, body
    site.sleeps(name)


def test_a_service_that_cannot_start_answers_with_its_pods_reason(site: Site) -> None:
    for manifest in manifests("broken", "raise SystemExit(3)"):
        site.installation.apply("worker", manifest)
    site.until(lambda: site.status("broken").get("phase") == "Asleep")
    code, body, _ = site.get("broken")
    assert code == 503
    assert "CrashLoopBackOff" in body
    site.installation.kubectl("worker", "delete", "endpoints.bidplane.dev/broken", "deploy/broken")
    assert site.get("broken")[0] == 404


POOL = {
    "apiVersion": "bidplane.dev/v1alpha1",
    "kind": "Pool",
    "metadata": {"name": "a100"},
    "spec": {"product": "A100"},
}
JOINED = "nodes:\n  - {name: joined, product: A100, gpus: 1}\n"


@contextmanager
def joined_node(installation: Installation) -> Iterator[None]:
    """A node in a process of its own, which joins by the address and credential of a kubeconfig."""
    folder = installation.folder / "joined"
    folder.mkdir()
    (folder / "fleet.yaml").write_text(JOINED)
    installation.bidplane("plane", "kubeconfig", "host")
    files = ["--fleet", str(folder / "fleet.yaml")]
    files += ["--images", str(installation.folder / "images.yaml")]
    files += ["--kubeconfig", str(installation.folder / "host.kubeconfig")]
    command = [sys.executable, "-m", "bidplane", "node", "--name", "joined", *files]
    state = Path(tempfile.mkdtemp(prefix="joined"))
    state.chmod(0o755)  # pods run as users of their own
    process = subprocess.Popen(
        [*command, "--state", str(state / "state"), "--data", str(folder / "data")],
        cwd=folder,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        # Else its GPU is for sale until its heartbeat is missed.
        installation.kubectl("host", "delete", "node", "joined")
        shutil.rmtree(state)


def test_a_pod_on_a_joined_node_answers(site: Site) -> None:
    """The node of the installation has no such GPU, and its processes do not run this pod."""
    with joined_node(site.installation):
        bidplane = site.installation.bidplane
        site.until(lambda: "no Pool sells A100" in bidplane("fleet", "list"))
        site.installation.apply("host", POOL)
        for manifest in manifests("far"):
            if manifest["kind"] == "Deployment":
                template = manifest["spec"]["template"]
                template["metadata"]["annotations"] = {"bidplane.dev/pool": "a100"}
            site.installation.apply("worker", manifest)
        site.until(lambda: site.status("far").get("phase") == "Asleep")
        code, body, headers = site.get("far", 3)
        assert (code, headers["X-KEDA-HTTP-Cold-Start"]) == (200, "true"), body
        assert "joined" in [lease["spec"]["node"] for lease in site.leases()]
        site.sleeps("far")


def test_a_wake_on_a_full_fleet_displaces_batch_work_or_says_its_price(site: Site) -> None:
    installation = site.installation
    installation.bidplane("agent", "create", "batch", "--priority", "1", "--refill", "100")
    for name in ("cheap", "dear"):
        (deployment, *others) = manifests(name)
        template = deployment["spec"]["template"]
        price = {"cheap": "0.90", "dear": "5.00"}[name]
        template["metadata"]["annotations"] = {"bidplane.dev/max-price": price}
        for manifest in (deployment, *others):
            installation.apply("worker", manifest)
        site.sleeps(name)
    job = pod("train", gpus=2, price="1.50")
    job["spec"]["containers"][0] |= {"image": "tools", "command": ["/bin/sleep", "600"]}
    installation.apply("batch", job)
    installation.kubectl("batch", "wait", "--for=condition=Ready", "pod/train", "--timeout=30s")
    with ThreadPoolExecutor(1) as client:
        held = client.submit(site.get, "cheap")
        site.until(lambda: site.status("cheap").get("reason") == "Outbid")
        assert "To win now" in site.status("cheap")["message"], site.status("cheap")
        assert "Outbid" in installation.bidplane("endpoint", "why", "worker/cheap")
        assert site.get("dear")[0] == 200
        # The job gave way, and with it the GPU that the other service waits for.
        assert held.result(timeout=60)[0] == 200
    events = installation.kubectl("batch", "get", "events")
    assert "another agent outbid this lease" in events, events
    installation.kubectl("batch", "delete", "pod", "train", "--timeout=60s")
