"""`bidplane top` on a running installation: in a pipe, as JSON, and live on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from .conftest import Installation, pod

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]

PATIENCE = 30.0


class Screen:
    """`bidplane top` on a terminal of ours."""

    def __init__(self, bidplane: Installation, width: int, height: int) -> None:
        self._master, slave = pty.openpty()
        self.resize(width, height)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bidplane", "top", "--every", "0.2"],
            env={**os.environ, "BIDPLANE_HOME": str(bidplane.data), "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def resize(self, width: int, height: int) -> None:
        size = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def until(self, pattern: str) -> str:
        """What was shown until `pattern` was."""
        shown, deadline = "", time.monotonic() + PATIENCE
        while not re.search(pattern, _bare(shown), re.DOTALL):
            assert time.monotonic() < deadline, f"never {pattern!r}: {shown[-2000:]!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                shown += os.read(self._master, 65536).decode(errors="replace")
        return _bare(shown)

    def close(self) -> int:
        self.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    os.read(self._master, 65536)
                except OSError:
                    break
        os.close(self._master)
        return self.process.wait(PATIENCE)


def _bare(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)


def test_top(bidplane: Installation) -> None:
    bidplane.bidplane("agent", "create", "trainer", "--refill", "100")
    before = json.loads(bidplane.bidplane("top", "--json"))
    assert [(row["node"], row["device"], row["agent"]) for row in before] == [
        ("box", "gpu-0", ""),
        ("box", "gpu-1", ""),
    ]
    assert [row["utilisationPercent"] for row in before] == [0, 0]
    bidplane.apply("trainer", pod("train", price="2.10"))
    bidplane.kubectl("trainer", "wait", "--for=condition=Ready", "pod/train", "--timeout=30s")

    (first, _) = json.loads(bidplane.bidplane("top", "--json"))
    assert (first["agent"], first["pod"], first["health"]) == ("trainer", "default/train", "ok")
    assert first["utilisationPercent"] > 50
    assert first["memoryTotalBytes"] == 80 << 30
    assert first["lease"]
    assert first["price"]

    head, *lines = bidplane.bidplane("top").splitlines()
    assert head.split()[:3] == ["NODE", "PRODUCT", "GPU"]
    assert [line.split()[:3] for line in lines] == [["box", "H100", "0"], ["box", "H100", "1"]]
    assert all("trainer" in line and "train" in line for line in lines)
    assert "\x1b" not in head, "plain in a pipe"

    screen = Screen(bidplane, 80, 24)
    try:
        screen.until(r"1 nodes +2 GPUs +2 leased.*box.*trainer.*train.*ok")
        screen.resize(110, 24)
        screen.until(r"POWER.*LEASE")
        screen.resize(80, 24)
        screen.until(r"AGENT +POD")
    finally:
        assert screen.close() == 0

    assert "no node 'other'" in bidplane.bidplane("top", "--node", "other", code=2)
    said = bidplane.bidplane("top", "--prometheus", "http://127.0.0.1:1", code=2)
    assert "the Prometheus at http://127.0.0.1:1 does not answer" in said
