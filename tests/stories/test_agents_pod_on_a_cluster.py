"""
The whole path on a real kube-apiserver: an agent's pod in its own plane runs as a process on a
node of the cluster, and kubectl works in it through the plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bidplane.api.crds import for_agents
from bidplane.api.kinds import AGENT
from bidplane.core.bidding.admission import admission
from bidplane.drivers.embedded import EmbeddedDriver
from bidplane.exchange.service import Exchange
from bidplane.http.server.serve import serve
from bidplane.kube.http import HttpClient
from bidplane.ledger import Ledger
from bidplane.machinery.clock import SystemClock
from bidplane.node.fleet import Fleet, NodeDeclaration, PoolDeclaration
from bidplane.node.offering import offer
from bidplane.plane import Planes
from bidplane.runtime.identity.certificates import Certificates
from bidplane.runtime.identity.credentials import Identity, Tokens
from bidplane.testing.certificates import Authority
from bidplane.testing.cluster import Cluster
from bidplane.web.app import WebApp
from bidplane.web.podstreams import NodeStreams
from bidplane.wiring.controllers import Controllers

from .conftest import define
from .test_bid_to_pod_on_kubernetes import has_wallet, until
from .test_ranks_find_each_other import WHO, container

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kube,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap"),
]

FLEET = Fleet(
    nodes=[NodeDeclaration(name="n1", product="H100", gpus=2)],
    pools=[PoolDeclaration(product="H100", floor_price="0.20")],
)
FLEET_FILE = "nodes: [{name: n1, product: H100, gpus: 2}]\n"
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: plane, cluster: {{server: "{url}", certificate-authority: "{ca}"}}}}]
users: [{{name: agent, user: {{token: "{token}"}}}}]
contexts: [{{name: plane, context: {{cluster: plane, user: agent}}}}]
current-context: plane
"""
SERVES = """
import http.server, os, time, threading
os.chdir("/tmp")
open("/tmp/large", "wb").write(os.urandom(2 << 20))
open("/tmp/small", "w").write("hello")
class H(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *a): print("asked for", self.path, flush=True)
server = http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8080), H)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("serving", flush=True)
while not os.path.exists("/tmp/enough"): time.sleep(0.05)
print("bye", flush=True)
"""
TALKS = "import time; print('hello from', __import__('socket').gethostname(), flush=True); "


class Site:
    def __init__(self, cluster: Cluster, folder: Path, authority: Authority) -> None:
        self.cluster, self.folder, self.authority = cluster, folder, authority

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(self.cluster.binaries["kubectl"]),
            "--kubeconfig",
            str(self.folder / "worker.kubeconfig"),
            *words,
            cwd=self.folder,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def kubectl(self, *words: str, input: str = "", code: int = 0) -> str:
        process = await self.start(*words)
        async with asyncio.timeout(90):
            said, _ = await process.communicate(input.encode())
        assert process.returncode == code, said.decode()
        return said.decode()


@pytest.fixture
def site(kube_binaries: Any) -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "fleet.yaml").write_text(FLEET_FILE)
        (folder / "images.yaml").write_text("images: {tools: {}}\n")
        authority = Authority(folder)
        authority.issue_server("node")
        authority.issue_client("api", user="kube-apiserver", group="system:masters")
        flags = [
            f"--kubelet-certificate-authority={authority.certificate_file}",
            f"--kubelet-client-certificate={folder / 'api.crt'}",
            f"--kubelet-client-key={folder / 'api.key'}",
        ]
        with Cluster(kube_binaries, apiserver_flags=flags) as cluster:
            yield Site(cluster, folder, authority)


@contextlib.asynccontextmanager
async def node(site: Site) -> AsyncIterator[None]:
    """`bidplane node` with a kubelet's own credential."""
    credential = site.cluster.kubeconfig_for("system:node:n1", "system:nodes")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bidplane", "node", "--name", "n1"),
        *("--kubeconfig", str(credential), "--client-ca", str(site.authority.certificate_file)),
        *("--tls-cert", "node.crt", "--tls-key", "node.key", "--fleet", "fleet.yaml"),
        *("--images", "images.yaml", "--state", str(site.folder / "state")),
        *("--network", "loopback"),  # the planes are served on this machine's loopback
        cwd=site.folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    said = b""
    async for line in process.stdout:
        said += line
        if b"Ctrl-C stops the node" in line:
            break
    else:
        raise AssertionError(said.decode())
    reading = asyncio.create_task(process.stdout.read())
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
        await reading


@contextlib.asynccontextmanager
async def bidplane(site: Site) -> AsyncIterator[HttpClient]:
    """Planes with a public address, controllers and exchange; the cluster is their host."""
    clock, tokens = SystemClock(), Tokens(b"only for this test")
    cluster, folder = site.cluster, site.folder
    certificate, key = site.authority.issue_server("server")
    certificates = Certificates(site.authority.certificate_file, certificate, key)
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    clients = [
        HttpClient(cluster.url, token=cluster.token, ca_file=str(cluster.ca_file)) for _ in range(3)
    ]
    host, for_exchange, for_streams = clients
    streams = NodeStreams(
        lambda: for_streams, token=lambda: cluster.token, ca_file=str(certificates.ca)
    )
    await define(host)
    planes = Planes(
        folder / "planes",
        clock=clock,
        tokens=tokens,
        crds=lambda plane: for_agents(),
        admit=admission(lambda plane: controllers.agent(plane)),
        pod_streams=streams,
        ca=certificates.ca.read_text(),
    )

    async def nothing(*_: Any) -> None: ...

    app = WebApp(
        planes=planes,
        exchange=nothing,
        credentials=nothing,
        plane_of=lambda token: tokens.plane_of_account(token, now=clock.now()),
    )
    ledger = Ledger.open(folder / "ledger.db")
    await offer(host, FLEET)
    controllers = Controllers(host, EmbeddedDriver(planes, url), clock=clock)
    parts = [
        asyncio.create_task(serve(app, listener, certificates)),
        asyncio.create_task(controllers.run()),
        asyncio.create_task(Exchange(for_exchange, ledger, tokens, clock=clock).run()),
    ]
    try:
        agent = {
            "apiVersion": AGENT.api_version,
            "kind": "Agent",
            "metadata": {"name": "worker"},
            "spec": {"owner": "ann", "refill": "100", "maxPrice": "1.00"},
        }
        await host.create(AGENT, agent)
        await until(host, AGENT, "worker", has_wallet)
        who = Identity(
            plane="worker",
            uid=planes.uid("worker") or "",
            user="worker",
            groups=("system:masters",),
            expires=int(time.time()) + 3600,
        )
        text = KUBECONFIG.format(
            url=f"{url}/planes/worker", ca=certificates.ca, token=tokens.issue(who)
        )
        (folder / "worker.kubeconfig").write_text(text)
        yield host
        for part in parts:
            if part.done():
                part.result()
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        await planes.close()
        await streams.close()
        ledger.close()
        for client in clients:
            await client.close()


def pod(name: str, script: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"restartPolicy": "Never", "containers": [container(script)]},
        }
    )


async def story(site: Site) -> None:
    async with node(site), bidplane(site) as host:
        kubectl = site.kubectl
        await kubectl("apply", "-f", "-", input=pod("talks", TALKS + "time.sleep(600)"))
        running = "--for=jsonpath={.status.phase}=Running"
        await kubectl("wait", running, "pod/talks", "--timeout=60s")
        async with asyncio.timeout(30):
            while await kubectl("logs", "talks") != "hello from talks\n":
                await asyncio.sleep(0.1)
        inside = await kubectl(
            "exec", "talks", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; hostname"
        )
        assert [bool(word) for word in inside.split()] == [True, True], inside
        assert inside.split()[-1] == "talks"
        await kubectl("exec", "talks", "--", "sh", "-c", "exit 7", code=7)
        # What it learns of the API is its plane's, though its kubelet has another.
        await kubectl("apply", "-f", "-", input=pod("who", WHO))
        finished = "--for=jsonpath={.status.phase}=Succeeded"
        await kubectl("wait", finished, "pod/who", "--timeout=60s")
        assert await kubectl("logs", "who") == "default system:serviceaccount:default:default\n"
        await kubectl("delete", "pod", "talks", "who", "--timeout=60s", "--grace-period=1")
        await host.delete(AGENT, "worker")
        async with asyncio.timeout(60):
            while (await host.list(AGENT)).items:
                await asyncio.sleep(0.1)


def test_kubectl_works_in_an_agents_pod_on_a_cluster(site: Site) -> None:
    asyncio.run(story(site))


async def line(process: asyncio.subprocess.Process, words: str) -> str:
    """The next line of it with these words."""
    assert process.stdout is not None
    said = ""
    async with asyncio.timeout(60):
        async for raw in process.stdout:
            said += raw.decode()
            if words in raw.decode():
                return raw.decode()
    raise AssertionError(f"never {words!r} in {said!r}")


async def fetch(url: str) -> bytes:
    def get() -> bytes:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bytes(answer.read())

    return await asyncio.to_thread(get)


async def streams(site: Site) -> None:
    """What stays open, each from the agent's plane to the cluster's node."""
    async with node(site), bidplane(site):
        kubectl = site.kubectl
        await kubectl("apply", "-f", "-", input=pod("serves", SERVES))
        await kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/serves")
        follows = await site.start("logs", "-f", "serves")
        await line(follows, "serving")

        forward = await site.start("port-forward", "pod/serves", ":8080", ":1")
        local = [
            int(re.findall(r":(\d+) ->", await line(forward, "Forwarding from 127.0.0.1"))[0])
            for _ in range(2)
        ]
        (site.folder / "large").write_bytes(b"")
        await kubectl("cp", "serves:/tmp/large", "large")
        large = (site.folder / "large").read_bytes()
        assert len(large) == 2 << 20
        for _ in range(2):  # a connection each
            assert await fetch(f"http://127.0.0.1:{local[0]}/large") == large
            await line(follows, "asked for /large")
        with pytest.raises(OSError):  # noqa: PT011 refused, reset or cut short
            await fetch(f"http://127.0.0.1:{local[1]}/")
        await line(forward, "rror forwarding port")
        async with asyncio.timeout(60):
            await forward.wait()  # kubectl gives up after the first port that does not answer
        through = "/api/v1/namespaces/default/pods/serves:8080/proxy/small"
        assert await kubectl("get", "--raw", through) == "hello"

        asks = "read word; echo said $word"
        shell = await site.start("exec", "-i", "serves", "--", "sh", "-c", asks)
        said, _ = await shell.communicate(b"hello\n")
        assert (said, shell.returncode) == (b"said hello\n", 0)

        debug = await site.start(
            *("debug", "serves", "--image=tools", "--profile=baseline", "--target=main", "-i"),
            *("--quiet", "--", "sh", "-c", "read word; echo $word; ls /tmp/large; ps ax"),
        )
        said, _ = await debug.communicate(b"looks\n")
        assert b"looks\n/tmp/large\n" in said
        assert b"http.server" in said, "its target's processes"
        # More than a container has is for trusted agents.
        refused = await kubectl("debug", "serves", "--image=tools", "--profile=sysadmin", code=1)
        assert "only pods of trusted agents may" in refused

        attached = await site.start("attach", "serves")
        (site.folder / "up").write_text("from here\n")
        await kubectl("cp", "up", "serves:/tmp/up")
        inside = await kubectl("exec", "serves", "-c", "main", "--", "cat", "/tmp/up")
        assert inside == "from here\n"
        await kubectl("exec", "serves", "--", "touch", "/tmp/enough")
        await line(attached, "bye")
        await line(follows, "bye")
        async with asyncio.timeout(60):
            assert (await follows.wait(), await attached.wait()) == (0, 0)


def test_what_stays_open_reaches_an_agents_pod_on_a_cluster(site: Site) -> None:
    asyncio.run(streams(site))
