"""
A node of real processes, and planes or a real cluster to reach it through.

    site.py plane FOLDER                    planes `host` and `a`, and the node n1
    site.py kube  FOLDER URL CA TOKEN       the node n1 of that cluster

Prints one line when it listens; writes `NAME.kubeconfig` for each plane.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from pathlib import Path

from bidplane.api.kinds import NODE, POD
from bidplane.api.times import rfc3339
from bidplane.errors import AlreadyExists, NotFound
from bidplane.http.server.serve import serve
from bidplane.kube.client import EventType, KubeClient, Object
from bidplane.kube.http import HttpClient
from bidplane.machinery.clock import SystemClock
from bidplane.machinery.informer import Informer
from bidplane.node.auth import ReviewGate
from bidplane.node.server import KubeletServer
from bidplane.plane import Planes
from bidplane.runtime.identity.certificates import Certificates
from bidplane.runtime.identity.credentials import Identity, Tokens
from bidplane.testing.certificates import Authority
from bidplane.web.podstreams import NodeStreams
from streams.localruntime import LocalRuntime

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: plane, cluster: {{server: "{url}", certificate-authority: "{ca}"}}}}]
users: [{{name: agent, user: {{token: "{token}"}}}}]
contexts: [{{name: plane, context: {{cluster: plane, user: agent}}}}]
current-context: plane
"""


async def node(
    client: KubeClient, folder: Path, certificates: Certificates, *, client_ca: Path | None
) -> None:
    """Register n1, run what is bound to it, and serve it."""
    clock, runtime = SystemClock(), LocalRuntime()
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    with contextlib.suppress(AlreadyExists):
        await client.create(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": listener.getsockname()[1]}},
    }
    await client.patch(NODE, "n1", {"status": status}, subresource="status")
    bound: asyncio.Queue[Object] = asyncio.Queue()
    pods = Informer(client, POD, clock=clock)
    started: set[str] = set()

    def changed(event: EventType, pod: Object) -> None:
        if pod["spec"].get("nodeName") == "n1" and event != "DELETED":
            bound.put_nowait(pod)

    pods.on_change(changed)

    async def run() -> None:
        while True:
            pod = await bound.get()
            metadata = pod["metadata"]
            if metadata.get("deletionTimestamp"):
                with contextlib.suppress(NotFound):
                    await client.delete(
                        POD, metadata["name"], metadata["namespace"], grace_seconds=0
                    )
                continue
            if metadata["uid"] in started:
                if (metadata.get("annotations") or {}).get("restart") == "now":
                    await runtime.restart(pod)
                continue
            started.add(metadata["uid"])
            await runtime.start(pod)
            now = rfc3339(clock.now())
            status = {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
                "containerStatuses": [
                    {
                        "name": c["name"],
                        "image": c["image"],
                        "imageID": "",
                        "ready": True,
                        "restartCount": 0,
                        "state": {"running": {"startedAt": now}},
                    }
                    for c in pod["spec"]["containers"]
                ],
            }
            await client.patch(
                POD,
                metadata["name"],
                {"status": status},
                metadata["namespace"],
                subresource="status",
            )

    server = KubeletServer(runtime, ReviewGate(client, "n1", clock=clock), clock=clock)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(serve(server, listener, certificates, client_ca=client_ca))
            group.create_task(pods.run())
            group.create_task(run())
            print("ready", flush=True)
    finally:
        runtime.stop()


def issue(folder: Path) -> Certificates:
    certificate, key = Authority(folder).issue_server("server")
    return Certificates(folder / "ca.crt", certificate, key)


async def planes(folder: Path) -> None:
    certificates = issue(folder)
    tokens, clock = Tokens(b"only for tests, only for tests.."), SystemClock()
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"

    def token(plane: str) -> str:
        who = Identity(
            plane=plane, uid=served.uid(plane) or "", user=plane, expires=int(time.time()) + 3600
        )
        return tokens.issue(who)

    streams = NodeStreams(
        lambda: served.client("host"),
        token=lambda: token("host"),
        ca_file=str(certificates.ca),
    )
    served = Planes(folder / "planes", clock=clock, tokens=tokens, pod_streams=streams)
    for name in ("host", "a"):
        await served.create(name)
        text = KUBECONFIG.format(url=f"{url}/planes/{name}", ca=certificates.ca, token=token(name))
        (folder / f"{name}.kubeconfig").write_text(text)
    client = HttpClient(
        f"{url}/planes/host", token=lambda: token("host"), ca_file=str(certificates.ca)
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(served, listener, certificates))
        group.create_task(node(client, folder, certificates, client_ca=None))


async def kube(folder: Path, url: str, ca: str, token: str) -> None:
    certificates = Certificates(folder / "ca.crt", folder / "node.crt", folder / "node.key")
    client = HttpClient(url, token=token, ca_file=ca)
    await node(client, folder, certificates, client_ca=folder / "ca.crt")


if __name__ == "__main__":
    mode, where, *rest = sys.argv[1:]
    asyncio.run(planes(Path(where)) if mode == "plane" else kube(Path(where), *rest))
