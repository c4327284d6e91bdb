"""
Forty kills of each process under load: whatever was acknowledged is there afterwards.

Objects are written to a plane, credits transferred and GPUs ordered, while server, exchange and
node are killed in turn, each as soon as it has acknowledged something again.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from bidplane.ledger import Ledger, verify
from bidplane.ledger.records import lease_id

from .killing import NAMES

KILLS = 40
DEADLINE = 300.0  # for all of it; it takes far less, but a machine may be busy
RETRY = 0.02

FLEET = """
nodes:
  - {name: box-1, product: H100, gpus: 8}
  - {name: box-2, product: H100, gpus: 8}
  - {name: box-3, product: H100, gpus: 8}
pools:
  - {product: H100, floorPrice: "0.20", instantFloatPercent: 5}
"""

pytestmark = pytest.mark.slow


class Load:
    """Clients that go on, whatever is refused meanwhile, and note what was acknowledged."""

    def __init__(self, folder: Path, exchange: str) -> None:
        self._folder = folder
        self._exchange = exchange
        self.objects: list[str] = []
        self.transfers: list[str] = []
        self.orders: list[str] = []
        self._news = asyncio.Condition()

    def acknowledged(self, name: str) -> int:
        """How much a process has acknowledged; the node is killed whenever the server has."""
        if name == "exchange":
            return len(self.transfers) + len(self.orders)
        return len(self.objects)

    async def more(self, name: str, than: int) -> None:
        async with self._news:
            await self._news.wait_for(lambda: self.acknowledged(name) > than)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(self._repeat(work))
            for work in (self._write, self._write, self._transfer, self._order)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            failed = [e for e in done if not isinstance(e, asyncio.CancelledError)]
            assert not failed, failed

    async def _repeat(self, work: Callable[[httpx2.AsyncClient, int], Awaitable[bool]]) -> None:
        async with self.client() as client:
            for n in itertools.count(id(client) * 1_000_000):
                while not await self._tried(work, client, n):
                    await asyncio.sleep(RETRY)
                async with self._news:
                    self._news.notify_all()

    async def _tried(self, work: Any, client: httpx2.AsyncClient, n: int) -> bool:
        try:
            return bool(await work(client, n))
        except httpx2.HTTPError:
            return False

    def client(self, agent: str = "payer") -> httpx2.AsyncClient:
        config = msgspec.yaml.decode((self._folder / f"{agent}.kubeconfig").read_bytes())
        trusted = ssl.create_default_context(cafile=str(self._folder / "data" / "ca.crt"))
        self.plane = config["clusters"][0]["cluster"]["server"]
        headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        return httpx2.AsyncClient(verify=trusted, headers=headers, timeout=10.0, trust_env=False)

    async def _write(self, client: httpx2.AsyncClient, n: int) -> bool:
        name = f"cm-{n}"
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        url = f"{self.plane}/api/v1/namespaces/default/configmaps"
        answer = await client.post(url, json=body)
        if answer.status_code in (201, 409):  # 409: it was written, and the answer was lost
            self.objects.append(name)
            return True
        return False

    async def _transfer(self, client: httpx2.AsyncClient, n: int) -> bool:
        body = {"to": "payee", "amount": "0.000001", "key": str(n)}
        url = f"{self._exchange}/exchange/v1/wallets/payer/transfer"
        answer = await client.post(url, json=body)
        if answer.status_code == 200:
            self.transfers.append(str(n))
        return answer.status_code == 200

    async def _order(self, client: httpx2.AsyncClient, n: int) -> bool:
        body = {"pool": "h100", "maxPrice": "9.00", "key": str(n)}
        answer = await client.post(f"{self._exchange}/exchange/v1/orders", json=body)
        if answer.status_code == 200:
            self.orders.append(str(n))
        # Sold out is an answer too: the float is small, and an order keeps its GPU for a minute.
        return answer.status_code in (200, 409)

    async def shown(self) -> set[str]:
        """The objects that the plane has, asked until it answers."""
        async with self.client() as client:
            while True:
                try:
                    answer = await client.get(f"{self.plane}/api/v1/namespaces/default/configmaps")
                    if answer.status_code == 200:
                        return {item["metadata"]["name"] for item in answer.json()["items"]}
                except httpx2.HTTPError:
                    pass
                await asyncio.sleep(RETRY)


def create(folder: Path, agent: str) -> None:
    command = [sys.executable, "-m", "bidplane", "agent", "create", agent]
    more = ["--priority", "1", "--refill", "1000", "--data", str(folder / "data")]
    done = subprocess.run(
        [*command, *more], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def kill_all(load: Load, forking: asyncio.subprocess.Process) -> None:
    assert forking.stdin is not None
    assert forking.stdout is not None
    for _ in range(KILLS):
        for name in NAMES:
            before = load.acknowledged(name)
            await load.more(name, before)
            forking.stdin.write(f"kill {name}\n".encode())
            await forking.stdin.drain()
            assert (await forking.stdout.readline()).strip().decode() == name


async def story(folder: Path) -> Load:
    fleet = folder / "fleet.yaml"
    fleet.write_text(FLEET)
    forking = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("killing.py")),
        str(folder / "data"),
        str(fleet),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert forking.stdout is not None
        _, exchange, _ = (await forking.stdout.readline()).decode().split()
        for agent in ("payer", "payee"):
            await asyncio.to_thread(create, folder, agent)
        load = Load(folder, exchange)
        async with asyncio.timeout(DEADLINE), load.running():
            await kill_all(load, forking)
        missing = set(load.objects) - await load.shown()
        assert not missing, f"{len(missing)} of {len(load.objects)} objects are lost"
        return load
    finally:
        assert forking.stdin is not None
        forking.stdin.close()
        await forking.wait()


def test_nothing_acknowledged_is_lost_in_forty_kills_of_each_process(tmp_path: Path) -> None:
    load = asyncio.run(story(tmp_path))
    path = tmp_path / "data" / "ledger.db"
    report = verify(path)
    assert report.is_sound, report.problem
    ledger = Ledger.open(path, read_only=True)
    payer = ledger.wallets_named("payer")[-1]
    uid = payer.id.partition("/")[2]
    made = {transfer.id for transfer in ledger.transfers_of(payer.id)}
    assert {f"transfer/{uid}/{key}" for key in load.transfers} <= made
    for key in load.orders:
        assert ledger.lease(lease_id(f"order/{uid}/{key}")) is not None
    ledger.close()
    counts = len(load.objects), len(load.transfers), len(load.orders)
    print("acknowledged objects, transfers, orders:", *counts)  # pytest -s
    assert min(counts[:2]) >= KILLS
    assert counts[2] > 0, "nothing was ordered: this shows nothing of orders"
