"""kubectl's streams into the processes of `bidplane node`, under `bidplane up`."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .behaviour import Streams
from .conftest import Kubectl

pytestmark = [pytest.mark.kubectl, pytest.mark.slow]

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
def installed(kubectl: Path) -> Iterator[Path]:
    # Where processes of other users may pass through; pytest's own folders are closed to them.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "fleet.yaml").write_text(FLEET)
        (folder / "images.yaml").write_text(IMAGES)
        data = ["--data", str(folder / "data")]
        fleet = ["--port", "0", "--fleet", "fleet.yaml"]
        up = started([*BIDPLANE, "up", *fleet, *data], "Ctrl-C stops it", folder)
        try:
            subprocess.run(
                [*BIDPLANE, "plane", "kubeconfig", "host", *data], cwd=folder, check=True
            )
            options = ["--name", "n1", "--images", "images.yaml", "--sandbox", "none"]
            options += ["--trusted", "default", "--state", str(folder / "state")]
            node = started([*BIDPLANE, "node", *options, *data], "Ctrl-C stops the node", folder)
            try:
                yield folder
            finally:
                # Pods outlive their node, as they should; nobody will come back for these.
                owner = Kubectl(kubectl, folder / "host.kubeconfig", folder)
                owner("delete", "pods", "--all", "--grace-period=1")
                node.terminate()
                node.wait(20)
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(30)


class TestOnAProcessNode(Streams):
    restart_policy = "Always"

    @pytest.fixture
    def kubectl_here(self, kubectl: Path, installed: Path, tmp_path: Path) -> Kubectl:
        return Kubectl(kubectl, installed / "host.kubeconfig", tmp_path)

    def restart(self, kubectl: Kubectl, name: str) -> None:
        """The node does it by itself."""
