"""
A real Prometheus scrapes our simulated nodes over HTTPS with a token, and the reader reads
it back.
"""

import asyncio
import json
import socket
import subprocess
import time

import pytest

from bidplane.api.kinds import NAMESPACE, POD, RESOURCE_CLAIM
from bidplane.errors import UserError
from bidplane.machinery.clock import SystemClock
from bidplane.node import simulatedmetrics
from bidplane.node.auth import InstallationGate
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.server import KubeletServer
from bidplane.node.simulated import SimulatedNodes
from bidplane.node.simulatedruntime import SimulatedRuntime
from bidplane.plane import Planes
from bidplane.runtime import certificates
from bidplane.runtime.credentials import HOST_PLANE, Identity, Tokens
from bidplane.runtime.serve import bind, serve
from bidplane.telemetry.model import Holder
from bidplane.telemetry.prometheus import PrometheusReader
from bidplane.wiring.node import run_nodes

FLEET = Fleet(nodes=[NodeDeclaration(name="h100-a", product="H100", gpus=2, memory="80Gi")])
PATIENCE = 60.0


def scraped(tmp_path, files, token, port):
    (tmp_path / "token").write_text(token)
    job = {
        "job_name": "nodes",
        "scheme": "https",
        "scrape_interval": "1s",
        "authorization": {"credentials_file": str(tmp_path / "token")},
        "tls_config": {"ca_file": str(files.ca)},
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
    }
    path = tmp_path / "prometheus.yml"
    path.write_text(json.dumps({"scrape_configs": [job]}))
    return path


class Running:
    def __init__(self, binary, config, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                str(binary),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(20)
        self._log.close()


async def with_a_pod(client):
    await client.create(NAMESPACE, {"metadata": {"name": "agent-a"}})
    exactly = {"deviceClassName": "gpu.bidplane.dev", "count": 1}
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    await client.create(RESOURCE_CLAIM, {"metadata": {"name": "c"}, "spec": spec}, "agent-a")
    result = {
        "request": "gpus",
        "driver": "gpu.bidplane.dev",
        "pool": "h100-a",
        "device": "gpu-1",
    }
    status = {"status": {"allocation": {"devices": {"results": [result]}}}}
    await client.patch(RESOURCE_CLAIM, "c", status, "agent-a", subresource="status")
    notes = {
        "bidplane.dev/simulated-utilisation-percent": "50",
        "bidplane.dev/simulated-memory-percent": "25",
    }
    pod = {
        "metadata": {"name": "train", "annotations": notes},
        "spec": {
            "nodeName": "h100-a",
            "containers": [{"name": "main", "image": "x"}],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": "c"}],
        },
    }
    await client.create(POD, pod, "agent-a")


async def until_read(reader, condition):
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                found = await reader.read()
            except UserError:
                found = []  # it is only starting
            if condition(found):
                return found
            await asyncio.sleep(0.1)


@pytest.mark.slow
def test_nodes_are_scraped_and_read_back(prometheus_binary, tmp_path):
    files = certificates.ensure(tmp_path, hosts=["127.0.0.1"], now=time.time())
    clock, tokens = SystemClock(), Tokens(b"t" * 32)

    async def whole():
        planes = Planes(tmp_path / "planes", clock=clock, tokens=tokens, durable=False)
        uid = await planes.create(HOST_PLANE)
        client = planes.client(HOST_PLANE)
        who = Identity(plane=HOST_PLANE, uid=uid, user="prometheus", expires=int(clock.now()) + 999)
        nodes = SimulatedNodes(client, FLEET, clock=clock, address="127.0.0.1")
        server = KubeletServer(
            SimulatedRuntime(nodes, clock=clock),
            InstallationGate(tokens, clock=clock),
            clock=clock,
            metrics=lambda: simulatedmetrics.read(FLEET, nodes, clock=clock),
        )
        listener = bind("127.0.0.1", 0)
        tasks = [
            asyncio.create_task(serve(server, listener, files)),
            asyncio.create_task(run_nodes(nodes, clock=clock)),
        ]
        await with_a_pod(client)
        config = scraped(tmp_path, files, tokens.issue(who), listener.getsockname()[1])
        try:
            with Running(prometheus_binary, config, tmp_path) as prometheus:
                reader = PrometheusReader(prometheus.url)
                idle, busy = await until_read(
                    reader, lambda found: len(found) == 2 and found[1].holder is not None
                )
                await reader.close()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            listener.close()
            await planes.close()
        return idle, busy

    idle, busy = asyncio.run(whole())
    assert (idle.node, idle.index, idle.uuid, idle.product) == ("h100-a", 0, "GPU-h100-a-0", "H100")
    assert (idle.utilisation_percent, idle.holder, idle.xid) == (0, None, 0)
    assert busy.holder == Holder(namespace="agent-a", pod="train", container="main")
    assert 45 <= busy.utilisation_percent <= 55
    assert busy.memory_used_bytes == 20 << 30
    assert busy.memory_total_bytes == idle.memory_total_bytes == 80 << 30
    assert busy.power_watts > idle.power_watts
    assert (busy.pcie_link_width, busy.pcie_link_width_max) == (16, 16)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1", "does not answer"),
        ("nonsense", "does not answer"),
        ("http://[", "does not answer"),
    ],
)
def test_a_prometheus_that_is_not_there(url, words):
    async def ask():
        reader = PrometheusReader(url)
        try:
            await reader.read()
        finally:
            await reader.close()

    with pytest.raises(UserError, match=words):
        asyncio.run(ask())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"status":"error","error":"query timed out"}', "refused: query timed out"),
        (b"<html>", "something else than metrics"),
        (b"[]", "something else than metrics"),
        (b'{"status":"success","data":{"result":[{"metric":{}}]}}', "something else than metrics"),
    ],
)
def test_a_prometheus_that_says_something_else(body, words):
    async def whole():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            writer.write(head % len(body) + body)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader = PrometheusReader(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            await reader.read()
        finally:
            await reader.close()
            server.close()

    with pytest.raises(UserError, match=words):
        asyncio.run(whole())
