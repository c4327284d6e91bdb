"""`bidplane shadow`: refusals that a person can act on, and on a real cluster not one write."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bidplane.testing.cluster import Cluster
from bidplane.testing.rig import Binaries

Json = dict[str, Any]


def shadow(*arguments: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bidplane", "shadow", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


@contextmanager
def answering(body: bytes, code: int = 200) -> Iterator[str]:
    """A server that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


EMPTY = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}}).encode()
REFUSED = json.dumps({"status": "error", "error": "query processing would load too many samples"})


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (EMPTY, 200, 'kube_pod_container_resource_requests{resource="nvidia_com_gpu"}'),
        (b"<html>hello", 200, "did not answer with metrics"),
        (REFUSED.encode(), 422, "too many samples"),
    ],
    ids=["no pods", "no Prometheus", "refused"],
)
def test_a_prometheus_that_is_of_no_use(body: bytes, code: int, words: str) -> None:
    with answering(body, code) as url:
        ended = shadow("--prometheus", url, "--since", "3h")
    assert ended.returncode == 2
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1, "one line"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--since", "2d"), "name it with --prometheus URL"),
        (("--prometheus", "http://127.0.0.1:1", "--since", "2d"), "does not answer"),
        (("--prometheus", "http://127.0.0.1:1", "--since", "soon"), "as 30m"),
        (("--trace", "nowhere.json"), "cannot read nowhere.json"),
        (("--model", "wishes"), "choose equal, work, services, or none"),
        (("--idle-below", "101"), "--idle-below"),
        (("--price", "-1"), "--price"),
        (("--kubeconfig", "nowhere"), "cannot read the kubeconfig nowhere"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    ended = shadow(*arguments)
    assert ended.returncode == 2
    assert words in ended.stderr


def test_a_saved_recording_is_reported_again_and_replayed(tmp_path: Path) -> None:
    pods = [
        {"namespace": "ns", "name": f"p{i}", "owner": "Job/j", "gpus": 1, "created": 1000.0,
         "scheduled": 1000.0 + 60 * i, "ended": 9000.0}
        for i in range(3)
    ]  # fmt: skip
    path = tmp_path / "week.json"
    recording = {"format": "bidplane-shadow-1", "source": "test", "begin": 0, "end": 9000,
                 "step": 60, "nodes": [{"name": "n1", "gpus": 2}], "pods": pods}  # fmt: skip
    path.write_text(json.dumps(recording, separators=(",", ":")))
    html = tmp_path / "out.html"
    ended = shadow("--trace", str(path), "--json", "--html", str(html))
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["hours"]["allocated"] == pytest.approx((8000 + 7940 + 7880) / 3600)
    assert [model["model"] for model in report["models"]] == ["equal", "work", "services"]
    assert html.read_text().startswith("<!doctype html>")
    replayed = subprocess.run(
        [sys.executable, "-m", "bidplane", "sim", "run", "--trace", str(path), "--policy", "fifo",
         "--json"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout)["jobs"] == 3


# On a real kube-apiserver

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [{"level": "Metadata"}],
    "omitStages": ["RequestReceived"],
}
VIEWER = "viewer"
RESOURCES = "pods,nodes,resourceclaims.resource.k8s.io,resourceslices.resource.k8s.io"
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "bidplane-shadow"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "bidplane-shadow",
    },
    "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": VIEWER}],
}


@pytest.fixture(scope="module")
def audited(
    kube_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cluster, Path]]:
    """A control plane with a scheduler, a node with a plugin, a driver's node, and an audit log."""
    folder = tmp_path_factory.mktemp("audit")
    policy, log = folder / "policy.json", folder / "audit.log"
    policy.write_text(json.dumps(POLICY))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={log}")
    with Cluster(
        kube_binaries, controllers=False, scheduler=True, apiserver_flags=flags
    ) as running:
        # The command that the refusal and the docs name.
        running.kubectl(
            "create", "clusterrole", "bidplane-shadow", "--verb=get,list,watch",
            f"--resource={RESOURCES}",
        )  # fmt: skip
        for obj in (BINDING, *_fleet()):
            apply(running, obj)
        for node, status in _node_status().items():
            running.kubectl(
                "patch", "node", node, "--subresource=status", "--type=merge",
                "-p", json.dumps({"status": status}),
            )  # fmt: skip
        apply(running, _plugin_pod("plugin"))
        apply(running, _claim("c"))
        apply(running, _claiming_pod("driver", "c"))
        apply(running, _plugin_pod("too-large", gpus=64))
        for name in ("plugin", "driver"):
            running.kubectl("wait", "--for=condition=PodScheduled", f"pod/{name}")
        yield running, log


def apply(cluster: Cluster, obj: Json) -> None:
    cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(obj))


def _node_status() -> dict[str, Json]:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "100"}
    ready = [{"type": "Ready", "status": "True", "reason": "Test", "message": "test"}]
    whole = {**amounts, "nvidia.com/gpu": "8"}
    return {
        "n1": {"capacity": whole, "allocatable": whole, "conditions": ready},
        "n2": {"capacity": amounts, "allocatable": amounts, "conditions": ready},
    }


def _fleet() -> Iterator[Json]:
    for name in ("n1", "n2"):
        yield {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    account = {"name": "default", "namespace": "default"}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}
    selector = [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]
    yield {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.example.com"},
        "spec": {"selectors": selector},
    }
    devices = [
        {
            "name": f"gpu-{i}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-{i}"}},
        }
        for i in range(4)
    ]
    pool = {"name": "n2", "generation": 1, "resourceSliceCount": 1}
    yield {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "n2"},
        "spec": {"driver": "gpu.example.com", "nodeName": "n2", "pool": pool, "devices": devices},
    }


def _plugin_pod(name: str, gpus: int = 2) -> Json:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    container = {"name": "main", "image": "x", "resources": resources}
    return _pod(name, {"containers": [container]})


def _claiming_pod(name: str, claim: str) -> Json:
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpus"}]}}
    claims = [{"name": "gpus", "resourceClaimName": claim}]
    return _pod(name, {"containers": [container], "resourceClaims": claims})


def _pod(name: str, spec: Json) -> Json:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _claim(name: str) -> Json:
    exactly = {"deviceClassName": "gpu.example.com", "count": 3}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
    }


@pytest.mark.kube
def test_plugin_and_driver_are_seen_without_one_write(
    audited: tuple[Cluster, Path], tmp_path: Path
) -> None:
    cluster, log = audited
    kubeconfig = cluster.kubeconfig_for(VIEWER, "nobody")
    watching = subprocess.Popen(
        [sys.executable, "-m", "bidplane", "shadow", "--kubeconfig", str(kubeconfig),
         "--for", "8s", "--json", "--save", str(tmp_path / "trace.json")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    _until_watched(log)
    apply(cluster, _plugin_pod("late", gpus=1))
    cluster.kubectl("wait", "--for=condition=PodScheduled", "pod/late")
    output, errors = watching.communicate(timeout=60)
    assert watching.returncode == 0, errors
    report = json.loads(output)
    recording = json.loads((tmp_path / "trace.json").read_text())
    assert {pod["name"]: pod["gpus"] for pod in recording["pods"]} == {
        "plugin": 2,
        "driver": 3,
        "too-large": 64,
        "late": 1,
    }
    assert recording["nodes"] == [{"name": "n1", "gpus": 8}, {"name": "n2", "gpus": 4}]
    assert report["never_scheduled"] == 1
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    ours = [entry for entry in entries if entry["user"]["username"] == VIEWER]
    assert {entry["verb"] for entry in ours} == {"list", "watch"}
    assert {entry["objectRef"]["resource"] for entry in ours} == {
        "pods",
        "nodes",
        "resourceclaims",
        "resourceslices",
    }
    assert any(entry["verb"] == "create" for entry in entries), "the log has others' writes"


def _until_watched(log: Path) -> None:
    """Return when the command has begun to watch pods: the log has its list of them."""
    for line in _lines_as_written(log):
        entry = json.loads(line)
        if entry["user"]["username"] == VIEWER and entry["objectRef"]["resource"] == "pods":
            return


def _lines_as_written(log: Path) -> Iterator[str]:
    with subprocess.Popen(
        ["tail", "-n", "+1", "-f", str(log)], stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        try:
            yield from tail.stdout
        finally:
            tail.terminate()


@pytest.mark.kube
def test_an_account_without_rights_is_told_which(audited: tuple[Cluster, Path]) -> None:
    cluster, _ = audited
    ended = shadow("--kubeconfig", str(cluster.kubeconfig_for("stranger", "nobody")), "--for", "5s")
    assert ended.returncode == 2
    assert "may not list nodes in all namespaces" in ended.stderr
    assert f"--verb=get,list,watch --resource={RESOURCES}" in ended.stderr
