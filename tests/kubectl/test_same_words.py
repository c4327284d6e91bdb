"""The same kubectl, the same commands, on a plane and on a real cluster: the words are compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import Kubectl
from .sides import Side
from .stories import DEFINITIONS, DIFFERENT, FILES, STORIES

if TYPE_CHECKING:
    from bidplane.testing.cluster import Cluster

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{url}", certificate-authority: "{ca}"}}}}]
users: [{{name: u, user: {{token: "{token}"}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u, namespace: {namespace}}}}}]
current-context: c
"""


@pytest.fixture
def sides(
    kubectl_binary: Path,
    served: Path,
    cluster: Cluster,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[list[Side]]:
    namespace = f"w-{abs(hash(request.node.name)) % 10**8}"
    found = []
    for name in ("ours", "real"):
        folder = tmp_path / name
        folder.mkdir()
        kubeconfig = folder / "kubeconfig"
        if name == "ours":
            kubeconfig.write_text(served.read_text())
        else:
            kubeconfig.write_text(
                KUBECONFIG.format(
                    url=cluster.url, ca=cluster.ca_file, token=cluster.token, namespace=namespace
                )
            )
        runner = Kubectl(kubectl_binary, kubeconfig, folder)
        runner("create", "namespace", namespace)
        runner("config", "set-context", "--current", f"--namespace={namespace}")
        side = Side(runner, folder, namespace, FILES)
        side.until("get serviceaccounts -o name", "default")
        found.append(side)
    yield found
    for side in found:
        side.close()


def tell(sides: list[Side], lines: list[str]) -> None:
    ours, real = sides
    for line in lines:
        mine, theirs = ours.do(line), real.do(line)
        if line not in DIFFERENT:
            assert mine == theirs, f"kubectl {line}"


@pytest.mark.parametrize("story", STORIES)
def test_kubectl_says_the_same(sides: list[Side], story: str) -> None:
    tell(sides, STORIES[story])


def test_definitions_say_the_same(sides: list[Side]) -> None:
    try:
        tell(sides, DEFINITIONS)
    finally:
        for side in sides:
            side.kubectl.run("delete", "crd", "boxes.words.test", "--wait=false", check=False)
