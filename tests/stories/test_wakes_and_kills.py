"""
Requests around every wake, drain and release of a real service, while what runs it is killed.

In each cycle a service is woken by requests, drained and woken again by requests that come within
milliseconds, and left alone until it has given its GPU back. In each of these steps server,
exchange and node are killed with SIGKILL, at moments drawn anew. No request is lost or gets an
answer that the service did not send, and once released it pays no rent. In `make explore` it is
10,000 requests over 50 cycles. A health check tells the moment of a drain: it counts as no use, and
its answer changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from bidplane.ledger import Ledger, verify
from bidplane.ledger.records import TransferKind
from effort import effort

from .test_forty_kills import create
from .test_sleeping_service import manifests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.explored,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap"),
]

CYCLES = effort(4, 50)
REQUESTS = effort(75, 200)  # in each cycle
BEHIND = 20  # of them right behind the drain
KILLED = ("server", "exchange", "machine")
DEADLINE = effort(200, 3000)
RETRY = 0.05
NAME = "web"
HOST = f"{NAME}.worker.localhost"
SERVER = """
import http.server, os
class H(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # head and body in one segment: else it waits for an acknowledgement
    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = self.headers["X-Number"].encode() + b" " + body
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *a): pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 512
Server((os.environ["POD_IP"], 8080), H).serve_forever()
"""
FLEET = """
nodes:
  - {name: box, product: H100, gpus: 2}
pools:
  - {product: H100, floorPrice: "0.20", noticeSeconds: 3, restartSeconds: 3}
"""


class Answered(msgspec.Struct):
    """One request: when it was sent, and what came back."""

    sent: float
    ended: float
    cold: bool


class Installed:
    """An installation whose processes are killed, and the service it runs."""

    def __init__(self, folder: Path, forking: asyncio.subprocess.Process, address: str) -> None:
        self.folder, self._forking = folder, forking
        self.url, _, services = address.split()
        self._services = ("127.0.0.1", int(services.rpartition(":")[2]))
        self._numbers = itertools.count()
        self._killing = asyncio.Lock()
        self.kills = 0

    async def kill(self, name: str) -> None:
        assert self._forking.stdin is not None
        assert self._forking.stdout is not None
        async with self._killing:
            self._forking.stdin.write(f"kill {name}\n".encode())
            await self._forking.stdin.drain()
            assert (await self._forking.stdout.readline()).strip().decode() == name
        self.kills += 1

    async def request(self) -> Answered:
        """Ask the service on a connection of its own; what comes back must be its own answer."""
        number = next(self._numbers)
        body = b"x" * (number % 3)
        lines = [
            f"{'POST' if body else 'GET'} / HTTP/1.1",
            f"Host: {HOST}",
            f"X-Number: {number}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        sent = time.monotonic()
        reader, writer = await asyncio.open_connection(*self._services)
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        answer = await reader.read()
        writer.close()
        head, _, text = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK"), answer
        assert text == b"%d %b" % (number, body), answer
        return Answered(sent, time.monotonic(), b"Cold-Start: true" in head)

    async def drained(self) -> float:
        """Check the service's health over and over; return when it was last awake."""
        head = f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\nX-Number: 0\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection(*self._services)
        awake = 0.0
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                asked = time.monotonic()
                writer.write(head)
                answer = await reader.readuntil(b"\r\n\r\n")
                if not answer.startswith(b"HTTP/1.1 200 OK"):
                    break
                awake = asked
                await reader.readexactly(2)
        writer.close()
        assert awake, "it was awake"
        return awake

    def plane(self, name: str) -> Plane:
        """A plane, with the credentials of its kubeconfig."""
        config = msgspec.yaml.decode((self.folder / f"{name}.kubeconfig").read_bytes())
        trusted = ssl.create_default_context(cafile=str(self.folder / "data" / "ca.crt"))
        headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        return Plane(
            httpx2.AsyncClient(
                base_url=config["clusters"][0]["cluster"]["server"],
                verify=trusted,
                headers=headers,
                timeout=10.0,
                trust_env=False,
            )
        )


class Plane:
    """A plane that is asked until its server answers."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                answer = await self.client.request(method, path, **options)
                if answer.status_code < 300 or answer.status_code == 409:
                    return answer.json()
                assert answer.status_code >= 429, answer.text
            await asyncio.sleep(RETRY)

    async def create(self, manifest: dict[str, Any]) -> None:
        paths = {
            "Deployment": "/apis/apps/v1/namespaces/default/deployments",
            "Service": "/api/v1/namespaces/default/services",
            "Endpoint": f"{GROUP}/default/endpoints",
        }
        await self.ask("POST", paths[manifest["kind"]], json=manifest)


GROUP = "/apis/bidplane.dev/v1alpha1/namespaces"


class Cycles:
    """The cycles, and what was seen of them."""

    def __init__(self, site: Installed, seed: int) -> None:
        self._site, self._dice = site, random.Random(seed)
        self._worker = site.plane("worker")
        self.answered: list[Answered] = []
        self.drains: list[float] = []  # seconds, at most, until the next request was sent
        self.wake_seconds: list[float] = []

    async def run(self) -> None:
        for manifest in manifests(NAME, SERVER, idleSeconds=1, wake={"perHour": 3600}):
            await self._worker.create(manifest)
        await self._rests()
        for _ in range(CYCLES):
            before = len(self.answered)
            await self._wake(REQUESTS // 4)
            await self._drain()
            await asyncio.gather(
                self._kills(0.5), self._ask(max(0, REQUESTS - len(self.answered) + before))
            )
            await asyncio.gather(self._kills(3.0), self._rests())

    async def _kills(self, within: float) -> None:
        """Kill each of the processes once, in any order, at any moment of a span."""
        began = time.monotonic()
        for moment, name in sorted((self._dice.uniform(0, within), name) for name in KILLED):
            await asyncio.sleep(max(0.0, began + moment - time.monotonic()))
            await self._site.kill(name)

    async def _ask(self, count: int) -> list[Answered]:
        answers = await asyncio.gather(*(self._site.request() for _ in range(count)))
        self.answered += answers
        return answers

    async def _wake(self, count: int) -> None:
        answers, _ = await asyncio.gather(self._ask(count), self._kills(1.0))
        assert all(answer.cold for answer in answers[:1]), "it slept"
        self.wake_seconds.append(max(answer.ended - answer.sent for answer in answers))

    async def _drain(self) -> None:
        """Leave it alone until it is drained, and ask it again at once."""
        killing = asyncio.create_task(self._kills(2.0))
        drained = await self._site.drained()
        asked = []
        for number in range(BEHIND):
            asked.append(asyncio.create_task(self._site.request()))
            await asyncio.sleep(self._dice.uniform(0, 0.001) if number else 0)
        answers = await asyncio.gather(*asked)
        self.answered += answers
        assert all(answer.cold for answer in answers), "they came behind the drain"
        self.drains.append(answers[0].sent - drained)
        await killing

    async def _rests(self) -> None:
        """Wait until it sleeps and has no lease."""
        while True:
            path = f"{GROUP}/default/endpoints/{NAME}"
            shown = await self._worker.ask("GET", path)
            leases = await self._worker.ask("GET", f"{GROUP}/default/gpuleases")
            if shown.get("status", {}).get("phase") == "Asleep" and not leases["items"]:
                return
            await asyncio.sleep(RETRY)


@asynccontextmanager
async def installed(folder: Path) -> AsyncIterator[Installed]:
    (folder / "fleet.yaml").write_text(FLEET)
    (folder / "images.yaml").write_text('images: {"tools": {}}')
    files = [str(folder / name) for name in ("data", "fleet.yaml", "images.yaml")]
    forking = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("killing.py")),
        *files,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert forking.stdout is not None
        address = (await forking.stdout.readline()).decode()
        await asyncio.to_thread(create, folder, "worker")
        yield Installed(folder, forking, address)
    finally:
        assert forking.stdin is not None
        forking.stdin.close()
        await forking.wait()
        machine = msgspec.json.decode((folder / "data" / "machine.json").read_bytes())
        shutil.rmtree(machine["state"], ignore_errors=True)


def rent_after_release(path: Path) -> list[str]:
    """The leases that paid for more than their time, or after it, or that are not settled."""
    ledger = Ledger.open(path, read_only=True)
    (wallet,) = ledger.wallets_named("worker")
    leases = {lease.id: lease for lease in ledger.leases_of(wallet.id)}
    assert len(leases) >= CYCLES, "after each release a wake had another lease"
    wrong = []
    for lease in leases.values():
        hours = (lease.released_at - lease.won_at) / 3_600_000
        most = max(lease.minimum, lease.price * hours + 1)  # one GPU
        if lease.released_at != lease.settled_at or not 0 < lease.charged <= most:
            wrong.append(lease.id)
    wrong += [
        transfer.id
        for transfer in ledger.transfers_of(wallet.id)
        if transfer.kind in (TransferKind.RENT, TransferKind.LEVY)
        and not 0 < transfer.at <= leases[transfer.lease].released_at
    ]
    ledger.close()
    print(f"{len(leases)} leases, charged {sum(lease.charged for lease in leases.values())}")
    return wrong


def test_no_request_is_lost_around_wakes_drains_and_kills(tmp_path: Path) -> None:
    async def story() -> tuple[Cycles, int]:
        async with asyncio.timeout(DEADLINE), installed(tmp_path) as site:
            cycles = Cycles(site, seed=1)
            await cycles.run()
            return cycles, site.kills

    cycles, kills = asyncio.run(story())
    near = sorted(cycles.drains)
    print(
        f"\n{len(cycles.answered)} requests, {kills} kills;"
        f" the first behind a drain came within {near[len(near) // 2] * 1000:.1f} ms (median),"
        f" {near[-1] * 1000:.1f} ms (most);"
        f" wakes: median {sorted(cycles.wake_seconds)[CYCLES // 2]:.1f} s"
    )  # pytest -s
    assert len(cycles.answered) >= CYCLES * REQUESTS
    assert len(near) == CYCLES
    path = tmp_path / "data" / "ledger.db"
    assert verify(path).is_sound
    assert not rent_after_release(path)
