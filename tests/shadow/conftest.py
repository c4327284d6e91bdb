"""A Prometheus that holds a generated week."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from telemetry.conftest import prometheus_binary  # noqa: F401

READY_SECONDS = 60.0
Play = Callable[[Iterator[str]], str]


@pytest.fixture
def play(prometheus_binary: Path, tmp_path: Path) -> Iterator[Play]:  # noqa: F811
    """Start a real Prometheus with these series; return its address."""
    running: list[subprocess.Popen[bytes]] = []

    def start(lines: Iterator[str]) -> str:
        series, blocks = tmp_path / "series.txt", tmp_path / "tsdb"
        with series.open("w") as out:
            out.writelines(f"{line}\n" for line in lines)
        promtool = prometheus_binary.with_name("promtool")
        subprocess.run(
            [promtool, "tsdb", "create-blocks-from", "openmetrics", series, blocks],
            check=True,
            capture_output=True,
        )
        config = tmp_path / "prometheus.yml"
        config.write_text("{}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        with (tmp_path / "log").open("wb") as log:
            running.append(
                subprocess.Popen(
                    [
                        str(prometheus_binary),
                        f"--config.file={config}",
                        f"--storage.tsdb.path={blocks}",
                        f"--web.listen-address={address}",
                        "--storage.tsdb.retention.time=100y",
                    ],
                    stdout=log,
                    stderr=log,
                )
            )
        url = f"http://{address}"
        deadline = time.monotonic() + READY_SECONDS
        while not _is_ready(url):
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        return url

    yield start
    for process in running:
        process.terminate()
        process.wait(30)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
