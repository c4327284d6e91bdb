"""
kubectl's streams into the processes of `bidplane node`: under `bidplane up`, and as a node of a
real cluster, with a kubelet's own credential and no other.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bidplane.testing.certificates import Authority
from bidplane.testing.cluster import Cluster

from .behaviour import Streams, run_pod, until
from .conftest import Kubectl

pytestmark = pytest.mark.slow

BIDPLANE = [sys.executable, "-m", "bidplane"]
FLEET = "nodes: [{name: box, product: H100, gpus: 1}]\n"
IMAGES = "images: {x: {}}\n"


def started(command: list[str], sign: str, folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if sign in line:
            return process
    raise AssertionError("".join(said))


@pytest.fixture(scope="module")
def open_to_all() -> Iterator[Path]:
    """Processes of other users may pass through; pytest's own folders are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "fleet.yaml").write_text(FLEET)
        (folder / "images.yaml").write_text(IMAGES)
        yield folder


@contextlib.contextmanager
def node(
    folder: Path, owner: Kubectl, *options: str, name: str = "n1", sandbox: str = "none"
) -> Iterator[None]:
    """A node, for as long as it is needed; its pods end before it does."""
    command = [*BIDPLANE, "node", "--name", name, "--images", "images.yaml", "--sandbox", sandbox]
    state = Path(tempfile.mkdtemp(prefix="state-", dir=folder))  # never another node's
    state.chmod(0o755)
    command += ["--trusted", "default", "--state", str(state)]
    process = started([*command, *options], "Ctrl-C stops the node", folder)
    try:
        yield
    finally:
        owner("delete", "pods", "--all", "--grace-period=1")
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def installed(kubectl: Path, open_to_all: Path) -> Iterator[Path]:
    folder = open_to_all
    data = ["--data", str(folder / "data")]
    fleet = ["--port", "0", "--fleet", "fleet.yaml"]
    up = started([*BIDPLANE, "up", *fleet, *data], "Ctrl-C stops it", folder)
    try:
        subprocess.run([*BIDPLANE, "plane", "kubeconfig", "host", *data], cwd=folder, check=True)
        owner = Kubectl(kubectl, folder / "host.kubeconfig", folder)
        with node(folder, owner, *data):
            yield folder
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(30)


@pytest.mark.kubectl
class TestOnAProcessNode(Streams):
    restart_policy = "Always"

    @pytest.fixture
    def kubectl_here(self, kubectl: Path, installed: Path, tmp_path: Path) -> Kubectl:
        return Kubectl(kubectl, installed / "host.kubeconfig", tmp_path)

    def restart(self, kubectl: Kubectl, name: str) -> None:
        """The node does it by itself."""

    def test_debug(self, kubectl_here: Kubectl) -> None:
        debugs(kubectl_here)


def debugs(kubectl: Kubectl) -> None:
    name = run_pod(kubectl, "debugged", "exec sleep 1000")
    debug = ["debug", name, "--image=x", "--profile=general", "--target=main", "-i", "--quiet"]
    said = kubectl(*debug, "--", "sh", "-c", "read word; echo got $word; ps ax", input=b"it\n")
    assert "got it" in said
    assert "sleep 1000" in said


@pytest.fixture(scope="module")
def joined(
    kube_binaries: Any, open_to_all: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster that gives nodes a node's rights; in it n1, and n2 that sandboxes its pods."""
    folder = tmp_path_factory.mktemp("authority")
    authority = Authority(folder)
    shown, key = authority.issue_server("node")
    authority.issue_client("api", user="kube-apiserver", group="system:masters")
    flags = [
        f"--kubelet-certificate-authority={authority.certificate_file}",
        f"--kubelet-client-certificate={folder / 'api.crt'}",
        f"--kubelet-client-key={folder / 'api.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--enable-admission-plugins=NodeRestriction",
    ]
    with Cluster(kube_binaries, scheduler=True, apiserver_flags=flags) as cluster:
        owner = Kubectl(cluster.binaries["kubectl"], cluster.kubeconfig, folder)
        options = ["--client-ca", str(authority.certificate_file)]
        options += ["--tls-cert", str(shown), "--tls-key", str(key)]
        with contextlib.ExitStack() as nodes:
            for name, sandbox in (("n1", "none"), ("n2", "auto")):
                credential = cluster.kubeconfig_for(f"system:node:{name}", "system:nodes")
                told = ["--kubeconfig", str(credential), *options]
                nodes.enter_context(node(open_to_all, owner, *told, name=name, sandbox=sandbox))
            yield cluster


@pytest.mark.kube
class TestOnANodeOfACluster(Streams):
    restart_policy = "Always"

    @pytest.fixture
    def kubectl_here(self, joined: Cluster, tmp_path: Path) -> Kubectl:
        return Kubectl(joined.binaries["kubectl"], joined.kubeconfig, tmp_path)

    def restart(self, kubectl: Kubectl, name: str) -> None:
        """The node does it by itself."""

    def test_debug(self, kubectl_here: Kubectl) -> None:
        debugs(kubectl_here)

    def test_a_nodes_rights_are_enough(self, kubectl_here: Kubectl) -> None:
        """Volumes of every kind, a token, a claim: nothing here needs more than a kubelet may."""
        kubectl_here("create", "configmap", "conf", "--from-literal=c=one")
        kubectl_here("create", "secret", "generic", "hush", "--from-literal=s=two")
        sources = [
            {"configMap": {"name": "conf"}},
            {"secret": {"name": "hush"}},
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
            {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ]
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "all"},
            "spec": {
                "nodeName": "n1",
                "restartPolicy": "Never",
                "volumes": [{"name": "v", "projected": {"sources": sources}}],
                "containers": [
                    {
                        "name": "main",
                        "image": "x",
                        "command": ["sh", "-c", "cd /tmp/v; cat c s n; test -s token"],
                        "volumeMounts": [{"name": "v", "mountPath": "/tmp/v"}],
                    }
                ],
            },
        }
        kubectl_here("create", "-f", "-", input=json.dumps(body).encode())
        kubectl_here("wait", "pod/all", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s")
        assert kubectl_here("logs", "all") == "onetwoall"
        kubectl_here("delete", "pod", "all", "--timeout=30s")

    def test_an_ordinary_deployment(self, kubectl_here: Kubectl) -> None:
        """With all that Kubernetes adds by itself, placed by its own scheduler."""
        script = "sleep 1000"
        kubectl_here("create", "deployment", "web", "--image=x", "--", "sh", "-c", script)
        here = {"kubernetes.io/hostname": "n2"}
        room = {"requests": {"memory": "1Mi", "cpu": "10m", "ephemeral-storage": "1Mi"}}
        main = {"name": "x", "resources": room}
        change = {"template": {"spec": {"nodeSelector": here, "containers": [main]}}}
        spec = {"spec": {"replicas": 3, **change}}
        kubectl_here("patch", "deployment", "web", "-p", json.dumps(spec))
        kubectl_here("rollout", "status", "deployment/web", "--timeout=60s")
        account = "/var/run/secrets/kubernetes.io/serviceaccount"
        told = kubectl_here("exec", "deploy/web", "--", "cat", f"{account}/namespace")
        assert told == "default"
        pods = kubectl_here(
            "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}"
        )
        assert len(set(pods.split())) == 3
        kubectl_here("delete", "deployment", "web", "--cascade=foreground", "--timeout=60s")

    def test_a_checkpoint_is_told_by_a_node_that_may_write_status_only(
        self, kubectl_here: Kubectl
    ) -> None:
        name = run_pod(kubectl_here, "saves")
        command = "bidplane.dev/checkpoint-command=true"
        kubectl_here("annotate", "pod", name, command, 'bidplane.dev/notice={"reason":"Outbid"}')

        def told() -> bool:
            key = r"jsonpath={.metadata.annotations.bidplane\.dev/checkpoint}"
            return kubectl_here("get", "pod", name, "-o", key).endswith("exit 0")

        until(told, "how the checkpoint went")

    def test_the_node_is_what_kubectl_expects_of_one(
        self, kubectl_here: Kubectl, joined: Cluster
    ) -> None:
        def ready() -> bool:
            return kubectl_here("get", "node", "n1").split()[6] == "Ready"

        until(ready, "a ready node")
        name = run_pod(kubectl_here, "talks")
        pods = json.loads(self.ask(kubectl_here, joined, "/pods"))["items"]
        assert name in [pod["metadata"]["name"] for pod in pods]
        assert self.ask(kubectl_here, joined, "/healthz") == b"ok"

    def test_metrics_server_may_read_what_it_needs(
        self, kubectl_here: Kubectl, joined: Cluster
    ) -> None:
        """With its own role and no other right: `kubectl top` comes from this page."""
        name = run_pod(kubectl_here, "talks")
        kubectl_here("create", "serviceaccount", "metrics-server")
        rule = ["--verb=get", "--resource=nodes/metrics"]
        kubectl_here("create", "clusterrole", "system:metrics-server", *rule)
        subject = "--serviceaccount=default:metrics-server"
        bind = ["--clusterrole=system:metrics-server", subject]
        kubectl_here("create", "clusterrolebinding", "system:metrics-server", *bind)
        token = kubectl_here("create", "token", "metrics-server").strip()
        page = self.ask(kubectl_here, joined, "/metrics/resource", token).decode()
        labels = f'container="main",namespace="default",pod="{name}"'
        for metric in ("cpu_usage_seconds_total", "memory_working_set_bytes"):
            assert re.search(rf"^container_{metric}{{{labels}}} [\d.]+ \d{{13}}$", page, re.M)
            assert re.search(rf"^node_{metric} [\d.]+ \d{{13}}$", page, re.M)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            self.ask(kubectl_here, joined, "/stats/summary", token)
        told = json.loads(self.ask(kubectl_here, joined, "/stats/summary"))
        assert told["node"]["nodeName"] == "n1"
        [pod] = [one for one in told["pods"] if one["podRef"]["name"] == name]
        assert pod["containers"][0]["memory"]["workingSetBytes"] > 0

    def ask(self, kubectl: Kubectl, joined: Cluster, path: str, token: str = "") -> bytes:
        """The node itself: an API server passes nothing on to a node on its own loopback."""
        port = kubectl("get", "node", "n1", "-o", "jsonpath={.status.daemonEndpoints..Port}")
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        headers = {"Authorization": f"Bearer {token or joined.token}"}
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=headers)
        with urllib.request.urlopen(request, context=tls) as answer:
            body: bytes = answer.read()
        return body
