"""The real control plane starts, works, and leaves nothing behind, however its owner ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bidplane.testing import cluster as cluster_module
from bidplane.testing import guard
from bidplane.testing.cluster import Cluster, ClusterError
from bidplane.testing.rig import Binaries


def alive(pid: int) -> bool:
    """Whether it still runs; one that ended and waits for init to notice does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # no /proc on this system, or gone since
        return not Path("/proc").exists()


def gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.kube
def test_it_serves_and_its_controllers_run(cluster: Cluster) -> None:
    cluster.kubectl("create", "configmap", "greeting", "--from-literal=hello=world")
    got = json.loads(cluster.kubectl("get", "configmap", "greeting", "-o", "json").stdout)
    assert got["data"] == {"hello": "world"}
    cluster.kubectl("create", "namespace", "fresh")
    cluster.kubectl("wait", "--for=create", "serviceaccount/default", "-n", "fresh")


@pytest.mark.kube
def test_a_failing_kubectl_says_what_it_said(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="NotFound"):
        cluster.kubectl("get", "configmap", "nowhere")
    assert cluster.kubectl("get", "configmap", "nowhere", check=False).returncode == 1


@pytest.mark.kube
def test_a_stranger_is_refused(cluster: Cluster) -> None:
    assert cluster.get("/api/v1/pods", token="wrong")[0] == 401


@pytest.mark.kube
def test_stop_leaves_no_process_and_no_folder(kube_binaries: Binaries) -> None:
    with Cluster(kube_binaries, scheduler=True) as running:
        pids, folder = list(running.pids), running.folder
        assert sorted(running.pids.values()) == [
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
        ]
        assert all(map(alive, pids))
    assert not any(map(alive, pids))
    assert not folder.exists()


@pytest.mark.kube
def test_a_port_taken_meanwhile_is_given_up(
    kube_binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ports = [listener.getsockname()[1], *(cluster_module.free_port() for _ in range(8))]
        monkeypatch.setattr(cluster_module, "free_port", lambda: ports.pop(0))
        with Cluster(kube_binaries, controllers=False) as running:
            assert running.get("/readyz")[0] == 200


@pytest.mark.kube
def test_a_flag_it_does_not_know_is_told_with_its_log(kube_binaries: Binaries) -> None:
    broken = Cluster(kube_binaries, controllers=False, apiserver_flags=["--no-such-flag"])
    with pytest.raises(ClusterError, match=r"kube-apiserver exited early(?s:.*)no-such-flag"):
        broken.start()
    assert not broken.folder.exists()


OWNER = """
import subprocess, sys, json, os, time
guard, folder = sys.argv[1:]
keeper = subprocess.Popen([sys.executable, "-I", "-S", guard, str(os.getpid()), folder],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
order = {"argv": ["/bin/sleep", "60"], "log": folder + "/log"}
keeper.stdin.write(json.dumps(order).encode() + b"\\n")
keeper.stdin.flush()
print(keeper.pid, json.loads(keeper.stdout.readline())["pid"], flush=True)
time.sleep(60)
"""


@pytest.fixture
def owned(tmp_path: Path) -> tuple[subprocess.Popen[str], int, int, Path]:
    """A process that owns a guard that keeps a `sleep`: (owner, guard, sleep, folder)."""
    folder = tmp_path / "kept"
    folder.mkdir()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, guard.__file__, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    keeper, child = map(int, owner.stdout.readline().split())
    return owner, keeper, child, folder


def test_a_killed_owner_takes_its_processes_along(
    owned: tuple[subprocess.Popen[str], int, int, Path],
) -> None:
    owner, keeper, child, folder = owned
    assert alive(child)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert gone_within([keeper, child], 10)
    assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_a_killed_guard_takes_its_processes_along(
    owned: tuple[subprocess.Popen[str], int, int, Path],
) -> None:
    owner, keeper, child, _ = owned
    os.kill(keeper, signal.SIGKILL)
    assert gone_within([child], 10)
    owner.kill()
    owner.communicate()


def test_the_plugin_costs_little_to_load() -> None:
    """It is loaded by every pytest run on the machine, also by those that use nothing of it."""
    code = (
        "import pytest, sys; before = set(sys.modules); import bidplane.testing.plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in loaded if not name.startswith("bidplane")] == []
    assert "bidplane.testing.cluster" not in loaded
