"""client-go with its defaults (protobuf bodies, watch-list) against a plane."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("informer")


@pytest.fixture(scope="session")
def informer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    binary = tmp_path_factory.mktemp("informer") / "informer"
    built = subprocess.run(
        [go, "build", "-o", str(binary), "."],
        cwd=PROGRAM,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    if built.returncode:
        pytest.skip(f"the informer cannot be built: {built.stderr[-300:]}")
    return binary


@pytest.mark.slow
@pytest.mark.timeout(1500)  # client-go compiles for minutes on a busy machine, once
def test_an_informer_of_client_go(informer: Path, served: Path) -> None:
    done = subprocess.run(
        [str(informer), str(served), "default"], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["created", "synced"]
    # What was there at first comes in no order, client-go keeps it in a map.
    assert sorted(lines[2:4]) == ["added one", "added two"]
    assert lines[4:] == ["updated one changed", "deleted one"]
