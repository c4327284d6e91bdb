"""kubectl, and a node of real processes behind a plane or a real cluster."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


class Kubectl:
    def __init__(self, binary: Path, kubeconfig: Path, home: Path) -> None:
        self.binary, self.kubeconfig, self._home = binary, kubeconfig, home
        self.env = {
            "HOME": str(home),
            "KUBECONFIG": str(kubeconfig),
            "PATH": os.environ.get("PATH", ""),
        }

    def run(
        self, *arguments: str, input: bytes | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [str(self.binary), *arguments],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=60,
            env=self.env,
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr!r}{done.stdout!r}")
        return done

    def __call__(self, *arguments: str, input: bytes | None = None) -> str:
        return self.run(*arguments, input=input).stdout.decode()

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [str(self.binary), *arguments]
        return subprocess.Popen(command, env=self.env, **{**pipes, **options})  # type: ignore[call-overload, no-any-return]


@contextlib.contextmanager
def site(mode: str, folder: Path, *arguments: str) -> Iterator[None]:
    command = [sys.executable, "-m", "streams.site", mode, str(folder), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TESTS)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready", "the site did not start"
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("streams")
    with site("plane", folder):
        yield folder


@pytest.fixture
def on_plane(kubectl: Path, planes: Path, tmp_path: Path) -> Kubectl:
    return Kubectl(kubectl, planes / "host.kubeconfig", tmp_path)


@pytest.fixture
def on_agents_plane(kubectl: Path, planes: Path, tmp_path: Path) -> Kubectl:
    return Kubectl(kubectl, planes / "a.kubeconfig", tmp_path)
