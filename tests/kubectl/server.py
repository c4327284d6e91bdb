"""Serves one plane, with its controllers, until terminated: `server.py FOLDER` prints where."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import time
from pathlib import Path

import uvicorn

from bidplane.api import crds
from bidplane.drivers.embedded import EmbeddedDriver
from bidplane.http.server.connection import HttpConnection
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.runtime.identity.clientcerts import Signer
from bidplane.runtime.identity.credentials import HOST_PLANE, Identity, Tokens
from bidplane.testing.certificates import Authority
from bidplane.wiring.controllers import Controllers

KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: plane, cluster: {{server: "{url}", certificate-authority: "{ca}"}}}}]
users: [{{name: agent, user: {{token: "{token}"}}}}]
contexts: [{{name: plane, context: {{cluster: plane, user: agent}}}}]
current-context: plane
"""


async def main(folder: Path) -> None:
    certificate, key = Authority(folder).issue_server("plane")
    tokens = Tokens(b"only for tests, only for tests..")
    planes = Planes(
        folder / "planes",
        clock=SystemClock(),
        tokens=tokens,
        crds=lambda plane: crds.all_crds(),
        ca=(folder / "ca.crt").read_text(),
        signer=Signer(folder / "ca.crt", folder / "ca.key"),
    )
    await planes.create(HOST_PLANE)
    uid = await planes.create("agent")
    driver = EmbeddedDriver(planes, "https://test")
    controllers = Controllers(planes.client(HOST_PLANE), driver, clock=planes.clock, own_host=True)
    working = asyncio.create_task(controllers.run())
    await controllers.started.wait()
    controllers.follow("agent")
    who = Identity(plane="agent", uid=uid, user="agent", expires=int(time.time()) + 3600)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    url = f"https://127.0.0.1:{listener.getsockname()[1]}/planes/agent"
    text = KUBECONFIG.format(url=url, ca=folder / "ca.crt", token=tokens.issue(who))
    (folder / "kubeconfig").write_text(text)
    config = uvicorn.Config(
        planes,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        ssl_ca_certs=str(folder / "ca.crt"),
        ssl_cert_reqs=ssl.CERT_OPTIONAL,
        http=HttpConnection,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    print(url, flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await planes.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
