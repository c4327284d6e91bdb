"""A real installation: its processes, its sockets, the real kubectl."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bidplane.api.crds import all_crds
from bidplane.api.kinds import AGENT, BID, CRD, GPU_LEASE, POOL
from bidplane.errors import AlreadyExists, ApiError
from bidplane.kube.client import KubeClient

FLEET = """
nodes:
  - {name: box, product: H100, gpus: 2}
pools:
  - {product: H100, floorPrice: "0.20", noticeSeconds: 3, restartSeconds: 3}
"""


class Installation:
    """`bidplane up` in a folder of its own, driven as a person would."""

    def __init__(self, folder: Path, kubectl: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._kubectl = kubectl
        self._process: subprocess.Popen[str] | None = None
        (folder / "fleet.yaml").write_text(FLEET)

    def up(self, *, port: int | None = 0, more: Sequence[str] = (), own_fleet: bool = True) -> None:
        """`port`: None leaves it to the installation; so does `own_fleet` the fleet."""
        fleet = ["--fleet", str(self.folder / "fleet.yaml")] if own_fleet else []
        listening = ["--port", str(port)] if port is not None else []
        self._process = subprocess.Popen(
            [*self._command("up"), *listening, *fleet, *more],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if "Ctrl-C stops it" in line:
                return
        raise AssertionError("bidplane up ended:\n" + "".join(said))

    def next_line(self, containing: str) -> str:
        """Wait for a line that `up` prints by itself."""
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if containing in line:
                return line
        raise AssertionError(f"bidplane up ended before it said {containing!r}")

    def down(self) -> int:
        """Ctrl-C; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        code = self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    def close(self) -> None:
        if self._process is not None:
            self.down()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def children(self) -> dict[str, int]:
        """The processes under the supervisor, by name."""
        listing = subprocess.run(
            ["ps", "-o", "pid=,args=", "--ppid", str(self.pid)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        found = {}
        for line in listing.splitlines():
            pid, _, arguments = line.strip().partition(" ")
            words = arguments.split()
            if "process" in words:
                found[words[words.index("process") + 1]] = int(pid)
        return found

    def bidplane(self, *arguments: str, code: int = 0) -> str:
        """Run a command; its output, both kinds."""
        done = subprocess.run(
            self._command(*arguments),
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        return output

    def kubectl(self, agent: str, *arguments: str, input: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [self._kubectl, "--kubeconfig", str(self.folder / f"{agent}.kubeconfig"), *arguments],
            cwd=self.folder,
            input=input,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        return output

    def get(self, agent: str, *arguments: str) -> Any:
        return msgspec.json.decode(self.kubectl(agent, "get", *arguments, "-o", "json"))

    def watch(self, agent: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                self._kubectl,
                "--kubeconfig",
                str(self.folder / f"{agent}.kubeconfig"),
                "get",
                *arguments,
                "--watch",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )

    def apply(self, agent: str, manifest: dict[str, Any], *, code: int = 0) -> str:
        text = msgspec.json.encode(manifest).decode()
        return self.kubectl(agent, "apply", "-f", "-", input=text, code=code)

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "bidplane", *arguments]

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "BIDPLANE_HOME": str(self.data), "COLUMNS": "200"}


def pod(name: str, *, gpus: int = 2, price: str | None = None, seconds: int = 300) -> Any:
    annotations = {"bidplane.dev/simulated-seconds": str(seconds)}
    if price is not None:
        annotations["bidplane.dev/max-price"] = price
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "example/work",
                    "resources": {"limits": {"nvidia.com/gpu": gpus}},
                }
            ],
        },
    }


@pytest.fixture
def fresh(tmp_path: Path, kubectl: str) -> Iterator[Installation]:
    """An installation that is not started yet."""
    installation = Installation(tmp_path, str(kubectl))
    yield installation
    installation.close()


@pytest.fixture(scope="module")
def bidplane(tmp_path_factory: pytest.TempPathFactory, kubectl: str) -> Iterator[Installation]:
    """One installation for a module's tests; each uses agents of its own."""
    installation = Installation(tmp_path_factory.mktemp("installation"), str(kubectl))
    installation.up()
    yield installation
    installation.close()


async def define(host: KubeClient) -> None:
    """Our kinds on a real cluster, which serves them a moment after they are defined."""
    for crd in all_crds():
        with suppress(AlreadyExists):
            await host.create(CRD, crd)
    async with asyncio.timeout(30):
        for kind in (AGENT, BID, GPU_LEASE, POOL):
            while True:
                with suppress(ApiError):
                    await host.list(kind)
                    break
                await asyncio.sleep(0.1)
