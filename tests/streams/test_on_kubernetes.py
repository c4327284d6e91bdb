"""kubectl's streams on a real kube-apiserver, with our node as its kubelet."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bidplane.testing.certificates import Authority
from bidplane.testing.cluster import Cluster

from .behaviour import Streams, run_pod
from .conftest import Kubectl, site

pytestmark = [pytest.mark.kube, pytest.mark.slow]


class Behind:
    """The cluster and the folder with the certificates its API server and our node share."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder


@pytest.fixture(scope="module")
def behind(kube_binaries: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    folder = tmp_path_factory.mktemp("node")
    authority = Authority(folder)
    authority.issue_server("node")
    authority.issue_client("api", user="kube-apiserver", group="system:masters")
    flags = [
        f"--kubelet-certificate-authority={authority.certificate_file}",
        f"--kubelet-client-certificate={folder / 'api.crt'}",
        f"--kubelet-client-key={folder / 'api.key'}",
        "--kubelet-preferred-address-types=InternalIP",
    ]
    with Cluster(kube_binaries, apiserver_flags=flags) as cluster:
        arguments = cluster.url, str(cluster.ca_file), cluster.token
        with site("kube", folder, *arguments):
            yield Behind(cluster, folder)


@pytest.fixture
def on_cluster(behind: Behind, tmp_path: Path) -> Kubectl:
    return Kubectl(behind.cluster.binaries["kubectl"], behind.cluster.kubeconfig, tmp_path)


class TestOverWebSockets(Streams):
    """The API server makes SPDY of kubectl's WebSocket."""

    @pytest.fixture
    def kubectl_here(self, on_cluster: Kubectl) -> Kubectl:
        return on_cluster


class TestOverSpdy(Streams):
    @pytest.fixture
    def kubectl_here(self, on_cluster: Kubectl) -> Kubectl:
        on_cluster.env["KUBECTL_REMOTE_COMMAND_WEBSOCKETS"] = "false"
        on_cluster.env["KUBECTL_PORT_FORWARD_WEBSOCKETS"] = "false"
        return on_cluster


class TestWhoMayAskTheNode:
    """The node asks the API server about everybody else."""

    def ask(self, behind: Behind, kubectl: Kubectl, path: str, token: str) -> int:
        port = kubectl("get", "node", "n1", "-o", "jsonpath={.status.daemonEndpoints..Port}")
        tls = ssl.create_default_context(cafile=str(behind.folder / "ca.crt"))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, context=tls) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def test_tokens_are_reviewed(self, behind: Behind, on_cluster: Kubectl) -> None:
        name = run_pod(on_cluster, "talks")
        logs = f"/containerLogs/default/{name}/main"
        on_cluster("create", "serviceaccount", "scraper")
        token = on_cluster("create", "token", "scraper").strip()
        assert self.ask(behind, on_cluster, logs, "") == 401
        assert self.ask(behind, on_cluster, logs, "made-up") == 401
        assert self.ask(behind, on_cluster, "/healthz", "") == 401
        assert self.ask(behind, on_cluster, "/pods", token) == 403
        on_cluster("create", "clusterrole", "sees-pods", "--verb=get", "--resource=nodes/pods")
        on_cluster("create", "serviceaccount", "lister")
        on_cluster(
            "create",
            "clusterrolebinding",
            "sees-pods",
            "--clusterrole=sees-pods",
            "--serviceaccount=default:lister",
        )
        lister = on_cluster("create", "token", "lister").strip()
        assert self.ask(behind, on_cluster, "/pods", lister) == 200
        assert self.ask(behind, on_cluster, logs, lister) == 403
        assert self.ask(behind, on_cluster, logs, behind.cluster.token) == 200
        assert self.ask(behind, on_cluster, "/nothing", behind.cluster.token) == 404

    def test_a_node_that_takes_websockets_itself(self, on_cluster: Kubectl) -> None:
        """Where the node says so, the API server passes kubectl's WebSocket on as it is."""
        name = run_pod(on_cluster, "talks")
        said = json.dumps({"status": {"declaredFeatures": ["ExtendWebSocketsToKubelet"]}})
        change = ["patch", "node", "n1", "--subresource=status", "--type=merge", "-p"]
        on_cluster(*change, said)
        try:
            done = on_cluster.run("exec", name, "--", "sh", "-c", "echo hi; exit 6", check=False)
            assert (done.returncode, done.stdout) == (6, b"hi\n")
        finally:
            on_cluster(*change, json.dumps({"status": {"declaredFeatures": None}}))
