"""A plane over HTTPS in a process of its own, and a kubeconfig for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bidplane.testing import rig

SERVER = Path(__file__).with_name("server.py")


class Kubectl:
    """One kubectl with the kubeconfig of one plane."""

    def __init__(self, binary: Path, kubeconfig: Path, home: Path) -> None:
        self.binary, self.kubeconfig, self._home = binary, kubeconfig, home

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self._home), "KUBECONFIG": str(self.kubeconfig)}

    def run(
        self, *arguments: str, input: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.binary), *arguments],
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done

    def __call__(self, *arguments: str, input: str | None = None) -> str:
        return self.run(*arguments, input=input).stdout


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a fresh plane; its server is another process."""
    folder = tmp_path_factory.mktemp("served")
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, "the server did not start"
    try:
        yield folder / "kubeconfig"
    finally:
        process.terminate()
        process.wait(10)


def _binaries() -> list[Path]:
    """The rig's kubectl, and the one on PATH if it is another release."""
    found: dict[str, Path] = {}
    try:
        built = rig.find(["kubectl"])["kubectl"]
        found[_version(built)] = built
    except rig.RigError:
        pass
    on_path = shutil.which("kubectl")
    if on_path:
        found.setdefault(_version(Path(on_path)), Path(on_path))
    return [path for version, path in found.items() if version]


def _version(binary: Path) -> str:
    try:
        done = subprocess.run(
            [str(binary), "version", "--client", "-o", "json"],
            capture_output=True,
            text=True,
            timeout=20,
        )
        return str(json.loads(done.stdout)["clientVersion"]["gitVersion"])
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        return ""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kubectl_binary" in metafunc.fixturenames:
        binaries = _binaries()
        skipped = pytest.param(None, marks=pytest.mark.skip(reason="no kubectl: `make kube`"))
        names = [_version(path) for path in binaries] or ["none"]
        metafunc.parametrize("kubectl_binary", binaries or [skipped], ids=names, scope="session")


@pytest.fixture
def kubectl(
    kubectl_binary: Path, served: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own."""
    namespace = f"k-{abs(hash(request.node.name)) % 10**8}"
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(served.read_text())
    runner = Kubectl(kubectl_binary, kubeconfig, tmp_path)
    runner("create", "namespace", namespace)
    runner("config", "set-context", "--current", f"--namespace={namespace}")
    yield runner
    runner.run("delete", "namespace", namespace, "--wait=false", check=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.kubectl)
