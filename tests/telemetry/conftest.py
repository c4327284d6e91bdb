"""A real Prometheus: the one on PATH, else Debian's package unpacked into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def prometheus_binary() -> Path:
    on_path = shutil.which("prometheus")
    if on_path:
        return Path(on_path)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bidplane"
    binary = cache / "prometheus" / "usr" / "bin" / "prometheus"
    if not binary.exists() and (problem := _unpack(cache)):
        pytest.skip(f"no prometheus: {problem}")
    return binary


def _unpack(cache: Path) -> str:
    """Why it cannot be had; nothing when it is there."""
    for tool in ("apt-get", "dpkg"):
        if not shutil.which(tool):
            return f"it is not on PATH, and without {tool} Debian's package cannot be had"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        done = subprocess.run(
            ["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True
        )
        packages = list(Path(folder).glob("prometheus_*.deb"))
        if done.returncode or not packages:
            lines = done.stderr.strip().splitlines()
            return f"apt-get download failed: {lines[-1] if lines else done.returncode}"
        unpacked = Path(folder) / "unpacked"
        subprocess.run(["dpkg", "-x", str(packages[0]), str(unpacked)], check=True)
        if not (cache / "prometheus").exists():  # another test may have been quicker
            unpacked.rename(cache / "prometheus")
    return ""
