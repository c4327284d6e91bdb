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
from bidplane.http.server.serve import bind, serve
from bidplane.machinery.clock import SystemClock
from bidplane.node import simulatedmetrics
from bidplane.node.auth import InstallationGate
from bidplane.node.fleet import Fleet, NodeDeclaration
from bidplane.node.server import KubeletServer
from bidplane.node.simulated import SimulatedNodes
from bidplane.node.simulatedruntime import SimulatedRuntime
from bidplane.plane import Planes
from bidplane.runtime.identity import certificates
from bidplane.runtime.identity.credentials import HOST_PLANE, Identity, Tokens
from bidplane.telemetry.dcgm import WORK_METRICS
from bidplane.telemetry.model import Holder
from bidplane.telemetry.pages import NodePages
from bidplane.telemetry.prometheus import PrometheusReader

FLEET = Fleet(
    nodes=[
        NodeDeclaration(name="h100-a", product="H100", gpus=2, memory="80Gi"),
        NodeDeclaration(name="mig-a", product="A100", gpus=1, memory="40Gi", mig=True),
    ]
)
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


async def with_a_pod(client, name, node, device, **notes):
    exactly = {"deviceClassName": "gpu.bidplane.dev", "count": 1}
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    await client.create(RESOURCE_CLAIM, {"metadata": {"name": name}, "spec": spec}, "agent-a")
    result = {"request": "gpus", "driver": "gpu.bidplane.dev", "pool": node, "device": device}
    status = {"status": {"allocation": {"devices": {"results": [result]}}}}
    await client.patch(RESOURCE_CLAIM, name, status, "agent-a", subresource="status")
    annotations = {f"bidplane.dev/simulated-{key.replace('_', '-')}": v for key, v in notes.items()}
    pod = {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "nodeName": node,
            "containers": [
                {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpus"}]}}
            ],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": name}],
        },
    }
    await client.create(POD, pod, "agent-a")


async def until_read(reader, condition):
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                devices = await reader.read()
            except UserError:
                devices = []  # it is only starting
            if condition(devices):
                return devices
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
            asyncio.create_task(nodes.run()),
        ]
        await client.create(NAMESPACE, {"metadata": {"name": "agent-a"}})
        figures = {"utilisation_percent": "50", "memory_percent": "25"}
        await with_a_pod(client, "train", "h100-a", "gpu-1", **figures)
        await with_a_pod(client, "small", "mig-a", "gpu-0-mig-1g5gb-3", xid="63", **figures)
        config = scraped(tmp_path, files, tokens.issue(who), listener.getsockname()[1])
        try:
            with Running(prometheus_binary, config, tmp_path) as prometheus:
                reader = PrometheusReader(prometheus.url)
                devices = await until_read(
                    reader, lambda devices: len(devices) == 4 and devices[1].holder is not None
                )
                work = await reader.read(only=WORK_METRICS)
                age, by_pod = await reader.freshness()
                await reader.close()
            pages = NodePages(token=lambda: tokens.issue(who), ca_file=str(files.ca))
            url = f"https://127.0.0.1:{listener.getsockname()[1]}"
            straight = await pages.read([url], only=WORK_METRICS)
            await pages.close()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            listener.close()
            await planes.close()
        return (devices, work, straight), (age, by_pod)

    readings, (age, by_pod) = asyncio.run(whole())
    assert -1 <= age < PATIENCE
    assert by_pod > 0
    (idle, busy, cut, part), *working = readings
    for reading in working:  # who only wants to know how much they work, from either source
        assert [(device.uuid, device.instance) for device in reading] == [
            (device.uuid, device.instance) for device in (idle, busy, cut, part)
        ]
        assert [device.power_watts for device in reading] == [None] * 4
        assert (reading[0].utilisation_percent, reading[2].utilisation_percent) == (0, None)
        assert 45 <= reading[1].utilisation_percent <= 55
        assert 45 <= reading[3].engine_percent <= 55
    assert (idle.node, idle.index, idle.uuid, idle.product) == ("h100-a", 0, "GPU-h100-a-0", "H100")
    assert (idle.utilisation_percent, idle.holder, idle.xid) == (0, None, 0)
    assert busy.holder == Holder(namespace="agent-a", pod="train", container="main")
    assert 45 <= busy.utilisation_percent <= 55
    assert busy.memory_used_bytes == 20 << 30
    assert busy.memory_total_bytes == idle.memory_total_bytes == 80 << 30
    assert busy.power_watts > idle.power_watts
    assert (busy.pcie_link_width, busy.pcie_link_width_max) == (16, 16)
    assert [process.bytes for process in busy.processes] == [20 << 30]
    assert (cut.node, cut.instance, cut.utilisation_percent, cut.holder) == (
        "mig-a",
        "",
        None,
        None,
    )
    assert cut.power_watts > idle.power_watts, "its part works"
    assert cut.memory_used_bytes == part.memory_used_bytes == 1280 << 20
    assert (part.uuid, part.profile, part.instance) == (cut.uuid, "1g.5gb", "10")
    assert part.holder == Holder(namespace="agent-a", pod="small", container="main")
    assert part.memory_total_bytes == 5 << 30
    assert 45 <= part.engine_percent <= 55
    assert (part.xid, cut.xid) == (63, 63), "the error is the card's"


EXPORTER = b"""\
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA A100",\
hostname="gpu-7",err_code="79",err_msg="GPU has fallen off the bus"} 79
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA A100",\
GPU_I_PROFILE="3g.20gb",GPU_I_ID="2",hostname="gpu-7",namespace="ml",pod="serve",container="m"} 7
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA A100",\
GPU_I_PROFILE="3g.20gb",GPU_I_ID="2",hostname="gpu-7",namespace="ml",pod="serve",container="m"} 0.5
"""


@pytest.mark.slow
def test_an_exporters_errors_and_instances_through_prometheus(prometheus_binary, tmp_path):
    """A page as dcgm-exporter prints it, scraped with the labels Prometheus adds and renames."""

    async def whole():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
            head += b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(EXPORTER)
            writer.write(head + EXPORTER)
            await writer.drain()
            writer.close()

        exporter = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = exporter.sockets[0].getsockname()[1]
        # As Kubernetes' discovery does: the exporter's own pod is the target's.
        target = {"targets": [f"127.0.0.1:{port}"], "labels": {"pod": "exporter-x"}}
        job = {"job_name": "dcgm", "scrape_interval": "1s", "static_configs": [target]}
        config = tmp_path / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": [job]}))
        try:
            with Running(prometheus_binary, config, tmp_path) as prometheus:
                reader = PrometheusReader(prometheus.url)
                devices = await until_read(reader, lambda devices: len(devices) == 2)
                await reader.close()
                return devices
        finally:
            exporter.close()

    sick, part = asyncio.run(whole())
    assert (sick.node, sick.uuid, sick.xid) == ("gpu-7", "GPU-a", 79)
    assert (part.uuid, part.profile, part.instance) == ("GPU-b", "3g.20gb", "2")
    assert (part.memory_used_bytes, part.engine_percent) == (7 << 20, 50.0)
    assert part.holder == Holder(namespace="ml", pod="serve", container="m")


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
        (b"<html>", "did not answer with metrics"),
        (b"[]", "did not answer with metrics"),
        (b'{"status":"success","data":{"result":[{"metric":{}}]}}', "did not answer with metrics"),
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
