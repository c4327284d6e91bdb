"""A real installation, and an agent's kubeconfig for it; for SDK, `bidplane run` and MCP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FLEET = """
nodes:
  - {name: box, product: H100, gpus: 4, nvlink: 18}
pools:
  - {product: H100, floorPrice: "0.20", noticeSeconds: 3, restartSeconds: 3}
"""


class Place:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "BIDPLANE_HOME": str(folder / "data"), "COLUMNS": "100"}
        self._agents = 0

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "bidplane", *arguments]

    def bidplane(self, *arguments: str, code: int = 0, **more: str) -> str:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def agent(self, *options: str) -> Path:
        """A fresh agent's kubeconfig."""
        self._agents += 1
        name = f"mine-{self._agents}"
        self.bidplane("agent", "create", name, "--refill", "100", *options)
        return self.folder / f"{name}.kubeconfig"


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("installation")
    (folder / "fleet.yaml").write_text(FLEET)
    installation = Place(folder)
    process = subprocess.Popen(
        installation.command("up", "--port", "0", "--fleet", str(folder / "fleet.yaml")),
        cwd=folder,
        env=installation.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "Ctrl-C stops it" in line:
            break
    else:
        raise AssertionError("bidplane up ended:\n" + "".join(lines))
    yield installation
    process.send_signal(signal.SIGINT)
    process.wait(timeout=30)
    process.stdout.close()
