"""
A plane over HTTPS with its controllers, as `bidplane plane create` makes one, and the
kubeconfig that goes with it. What is tested here are other people's clients, unmodified.
"""

import asyncio
import secrets
import socket
import sys
import threading
import time

import pytest
import uvicorn
import yaml

from bidplane.drivers.embedded import EmbeddedDriver, crds_for
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.life import PlaneLife
from bidplane.runtime.identity.credentials import HOST_PLANE, Tokens
from bidplane.testing.certificates import Authority
from bidplane.web.credentials import CredentialsApp
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.server import prepare_host

PATIENCE = 20.0


def eventually(look):
    """What `look` returns, once that is true."""
    end = time.monotonic() + PATIENCE
    while True:
        found = look()
        if found or time.monotonic() > end:
            assert found
            return found
        time.sleep(0.02)


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory):
    """The path of a kubeconfig for a plane of its own."""
    folder = tmp_path_factory.mktemp("clients")
    certificate, key = Authority(folder).issue_server("plane")
    tokens, clock = Tokens(secrets.token_bytes(32)), SystemClock()
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    path = folder / "kubeconfig"
    up = threading.Event()
    stop: list[asyncio.Event] = []

    async def main():
        planes = Planes(folder / "planes", clock=clock, tokens=tokens, crds=crds_for)
        await prepare_host(planes, None)
        driver = EmbeddedDriver(planes, url)
        controllers = Controllers(planes.client(HOST_PLANE), driver, clock=clock, own_host=True)
        life = PlaneLife(planes, controllers, clock=clock)
        config = uvicorn.Config(
            planes, ssl_certfile=str(certificate), ssl_keyfile=str(key), log_level="warning",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        server = uvicorn.Server(config)
        working = asyncio.create_task(controllers.run())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await controllers.started.wait()
        await life.create("clients")
        ca = (folder / "ca.crt").read_bytes()
        app = CredentialsApp(tokens, plane_uid=planes.uid, url=url, ca=ca, clock=clock)
        uid = planes.uid("clients")
        path.write_text(yaml.safe_dump(app.kubeconfig("clients", uid, 3600)))
        while not server.started:
            await asyncio.sleep(0.01)
        stop.append(asyncio.Event())
        loop.append(asyncio.get_running_loop())
        up.set()
        await stop[0].wait()
        server.should_exit = True
        await serving
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await planes.close()

    loop: list[asyncio.AbstractEventLoop] = []
    sys.setswitchinterval(0.0002)  # one interpreter: a hand-over may take 5 ms otherwise
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert up.wait(30)
    yield path
    loop[0].call_soon_threadsafe(stop[0].set)
    thread.join(10)


@pytest.fixture
def namespace():
    return f"t-{secrets.token_hex(4)}"
