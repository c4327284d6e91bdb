"""
A pod's network, with real processes: it finds its peers, and its own plane.

A two-pod Indexed Job in the manner of torchrun, with real processes on a real network: each rank
learns its number from the Job, finds rank 0 by its name in a headless Service, and they add up.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from .conftest import Installation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kubectl,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap"),
]

# What torch.distributed's TCPStore does, small: rank 0 serves at MASTER_ADDR, all meet there.
RANK = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
mine = (rank + 1) * 10
if rank == 0:
    with socket.create_server((os.environ["POD_IP"], address[1])) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
    total = mine + sum(int(peer.makefile().readline()) for peer in peers)
    for peer in peers:
        peer.sendall(f"{total}\\n".encode())
else:
    while True:
        try:
            peer = socket.create_connection(address, timeout=5)
            break
        except OSError:  # not there yet, or its name is not known yet
            time.sleep(0.1)
    peer.sendall(f"{mine}\\n".encode())
    total = int(peer.makefile().readline())
print(f"rank {rank} of {world} on {socket.gethostname()}: {total}", flush=True)
"""

WHO = """
import json, os, ssl, urllib.request
at = "/var/run/secrets/kubernetes.io/serviceaccount/"
token, space = open(at + "token").read(), open(at + "namespace").read()
host, port = (os.environ["KUBERNETES_SERVICE_" + one] for one in ("HOST", "PORT"))
group = "authentication.k8s.io/v1"
ask = urllib.request.Request(
    "https://%s:%s/apis/%s/selfsubjectreviews" % (host, port, group),
    data=json.dumps({"kind": "SelfSubjectReview", "apiVersion": group}).encode(),
    headers={"Authorization": "Bearer " + token, "Content-Type": "application/json"},
)
trust = ssl.create_default_context(cafile=at + "ca.crt")
answer = json.load(urllib.request.urlopen(ask, context=trust))
print(space, answer["status"]["userInfo"]["username"], flush=True)
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, kubectl: Path) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("ranks")
    installation = Installation(folder, str(kubectl))
    (folder / "images.yaml").write_text('images: {"tools": {}}')
    installation.up(more=["--runtime", "process", "--images", str(folder / "images.yaml")])
    installation.bidplane("agent", "create", "worker", "--priority", "1", "--refill", "100")
    yield installation
    installation.close()
    told = msgspec.json.decode((installation.data / "machine.json").read_bytes())
    shutil.rmtree(told["state"])


def container(script: str, env: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "name": "main",
        "image": "tools",
        "command": ["/usr/bin/python3", "-c", script],
        "env": env or [],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }


def test_ranks_find_each_other(machine: Installation) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "ranks"},
        "spec": {"clusterIP": "None", "selector": {"app": "train"}},
    }
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    env: list[dict[str, Any]] = [
        {"name": "RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        {"name": "WORLD_SIZE", "value": "2"},
        {"name": "MASTER_ADDR", "value": "train-0.ranks"},
        {"name": "MASTER_PORT", "value": "29500"},
    ]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": {"app": "train"}},
                "spec": {
                    "restartPolicy": "Never",
                    "subdomain": "ranks",
                    "containers": [container(RANK, env)],
                },
            },
        },
    }
    machine.apply("worker", service)
    machine.apply("worker", job)
    machine.kubectl("worker", "wait", "--for=condition=Complete", "job/train", "--timeout=80s")
    said = machine.kubectl("worker", "logs", "-l", "app=train", "--tail=-1").splitlines()
    assert sorted(said) == ["rank 0 of 2 on train-0: 30", "rank 1 of 2 on train-1: 30"]
    machine.kubectl("worker", "delete", "job/train", "service/ranks", "--timeout=60s")


def test_a_pod_speaks_to_its_own_plane(machine: Installation) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "who"},
        "spec": {"restartPolicy": "Never", "containers": [container(WHO)]},
    }
    machine.apply("worker", pod)
    finished = "--for=jsonpath={.status.phase}=Succeeded"
    machine.kubectl("worker", "wait", finished, "pod/who", "--timeout=60s")
    assert machine.kubectl("worker", "logs", "who") == (
        "default system:serviceaccount:default:default\n"
    )
    machine.kubectl("worker", "delete", "pod", "who", "--timeout=60s")
