"""Serves one plane until it is terminated: `server.py FOLDER`; prints its address."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import time
from pathlib import Path

import uvicorn

from bidplane.api import crds
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.runtime.clientcerts import Signer
from bidplane.runtime.connection import Connection
from bidplane.runtime.credentials import Identity, Tokens
from bidplane.testing.certificates import Authority

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
    uid = await planes.create("agent")
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
        http=Connection,
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    print(url, flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])
    await planes.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
