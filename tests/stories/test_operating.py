"""
Day two, as its operator meets it: a hung process, a full disk, a restart, a pipe.
"""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from .conftest import Installation

pytestmark = [pytest.mark.slow, pytest.mark.kubectl]


def status(bidplane: Installation, *, code: int = 0) -> Any:
    return msgspec.json.decode(bidplane.bidplane("status", "--json", code=code))


def part(known: Any, name: str) -> Any:
    (found,) = [entry for entry in known["parts"] if entry["name"] == name]
    return found


def get(bidplane: Installation, url: str, token: str = "") -> httpx2.Response:
    trusted = ssl.create_default_context(cafile=str(bidplane.data / "ca.crt"))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.get(url, verify=trusted, headers=headers, timeout=30.0, trust_env=False)


def test_a_hung_exchange_is_seen_restarted_and_said(fresh: Installation) -> None:
    fresh.up()
    before = status(fresh)
    assert before["ready"]
    pid = part(before, "exchange")["pid"]
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    ready = get(fresh, f"{before['url']}/readyz?verbose")
    assert ready.status_code == 503
    assert "[-]exchange failed: no answer" in ready.text
    assert "the exchange hangs: no heartbeat" in fresh.next_line("hangs")
    assert "killed by SIGKILL" in fresh.next_line("restarting")
    fresh.next_line("the exchange is ready again")
    print(f"ready again {time.monotonic() - stopped:.1f} s after SIGSTOP")  # pytest -s
    after = status(fresh)
    assert after["ready"]
    assert part(after, "exchange")["restarts"] == 1
    assert part(after, "exchange")["pid"] != pid
    assert part(after, "server")["restarts"] == 0
    assert get(fresh, f"{before['url']}/readyz").status_code == 200
    assert get(fresh, f"{before['exchangeUrl']}/readyz").text == "ok"
    fresh.bidplane("market", "prices")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which a test can fill."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_said_and_so_is_room(small_disk: Path, kubectl: str) -> None:
    bidplane = Installation(small_disk, str(kubectl))
    bidplane.up()
    try:
        free = shutil.disk_usage(small_disk).free
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(free - 2**20))
        assert "MiB left" in bidplane.next_line("disk:")
        known = status(bidplane, code=1)
        assert "MiB left" in known["diskProblem"]
        assert not known["ready"]
        ballast.unlink()
        assert "there is room again" in bidplane.next_line("disk:")
        bidplane.bidplane("agent", "create", "after", "--refill", "1")
        assert "the ledger is sound" in bidplane.bidplane("ledger", "verify")
    finally:
        bidplane.close()


def test_without_a_running_bidplane_status_says_how_to_start_one(fresh: Installation) -> None:
    assert "bidplane up" in fresh.bidplane("status", code=2)
    fresh.up()
    fresh.down()
    assert "nothing runs" in fresh.bidplane("status", code=1)
    known = status(fresh, code=1)
    assert known["running"] is False


def test_a_restart_keeps_its_ports_and_old_kubeconfigs_work(fresh: Installation) -> None:
    fresh.up()
    before = status(fresh)
    fresh.bidplane("agent", "create", "mine", "--refill", "1")
    fresh.down()
    fresh.up(port=None)
    after = status(fresh)
    assert (after["url"], after["exchangeUrl"]) == (before["url"], before["exchangeUrl"])
    fresh.kubectl("mine", "get", "pods")


def test_metrics_are_for_who_has_a_token_for_them(bidplane: Installation) -> None:
    bidplane.bidplane("metrics", "token", "--output", "prometheus.token")
    token = (bidplane.folder / "prometheus.token").read_text()
    known = status(bidplane)
    assert get(bidplane, f"{known['url']}/metrics").status_code == 401
    page = get(bidplane, f"{known['url']}/metrics", token).text
    assert 'bidplane_planes{state="awake"}' in page
    assert "process_resident_memory_bytes" in page
    page = get(bidplane, f"{known['exchangeUrl']}/metrics", token).text
    assert 'bidplane_pool_devices{pool="h100"}' in page
    assert 'bidplane_credits{kind="mint"}' in page
    # It opens nothing else.
    for path in ("/exchange/v1/prices", "/planes/host/api/v1/secrets", "/bidplane/v1/planes"):
        assert get(bidplane, known["url"] + path, token).status_code in (401, 403), path
    bidplane.bidplane("agent", "create", "nosy", "--refill", "1")
    config = msgspec.yaml.decode((bidplane.folder / "nosy.kubeconfig").read_bytes())
    own = config["users"][0]["user"]["token"]
    assert get(bidplane, f"{known['url']}/metrics", own).status_code == 401


def test_an_agent_renews_its_own_kubeconfig_with_nothing_but_the_file(
    bidplane: Installation,
) -> None:
    said = bidplane.bidplane("agent", "create", "lasting", "--refill", "1")
    assert "good until 20" in said
    bidplane.bidplane("agent", "kubeconfig", "lasting", "--hours", "0.1")
    short = (bidplane.folder / "lasting.kubeconfig").read_text()
    done = subprocess.run(
        [sys.executable, "-m", "bidplane", "agent", "renew", "lasting.kubeconfig", "--json"],
        cwd=bidplane.folder,
        env={**os.environ, "BIDPLANE_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    for command, most in (("kubeconfig", "720"), ("rotate", "720"), ("renew", "24")):
        name = "lasting.kubeconfig" if command == "renew" else "lasting"
        refused = bidplane.bidplane("agent", command, name, "--hours", "7200", code=2)
        assert f"--hours must be from 0.02 to {most}, not 7200" in refused
    assert msgspec.json.decode(done.stdout)["expires"] > short.split()[3]
    renewed = bidplane.folder / "lasting.kubeconfig"
    assert renewed.read_text() != short
    assert renewed.stat().st_mode & 0o777 == 0o600
    bidplane.kubectl("lasting", "get", "pods")
    renewed.write_text(short.replace("token: ", "token: x"))
    assert "ask the owner" in bidplane.bidplane("agent", "renew", "lasting.kubeconfig", code=2)


READS = [
    ["agent", "list"],
    ["agent", "show", "reader"],
    ["fleet", "list"],
    ["fleet", "topology", "box"],
    ["market", "prices"],
    ["wallet", "show", "reader"],
    ["wallet", "statement", "reader"],
    ["plane", "list"],
    ["ledger", "verify"],
    ["status"],
]


def test_every_table_can_be_had_as_json_and_whole_in_a_pipe(bidplane: Installation) -> None:
    name = "a-name-as-long-as-a-name-may-well-be"
    bidplane.bidplane("agent", "create", "reader", "--refill", "1", "--team", "t" * 60)
    bidplane.bidplane("agent", "create", name, "--refill", "1")
    assert " of 256 MiB of objects, " in bidplane.bidplane("agent", "show", "reader")
    for command in READS:
        msgspec.json.decode(bidplane.bidplane(*command, "--json"))
    # As in a pipe, and with a terminal of 80 columns in the environment.
    done = subprocess.run(
        [sys.executable, "-m", "bidplane", "agent", "list"],
        env={**os.environ, "BIDPLANE_HOME": str(bidplane.data), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("reader")]
    assert "t" * 60 in line
    assert "…" not in done.stdout
    made = msgspec.json.decode(bidplane.bidplane("agent", "create", "third", "--json"))
    assert made["expires"] > "2026"
    assert msgspec.json.decode(bidplane.bidplane("agent", "delete", "third", "--json"))["deleted"]


def test_a_reader_that_has_enough_is_no_error(bidplane: Installation) -> None:
    for command in ("agent list --help", "market prices", "--help"):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {sys.executable} -m bidplane {command} | head -c 1"],
            env={**os.environ, "BIDPLANE_HOME": str(bidplane.data)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == "", command
