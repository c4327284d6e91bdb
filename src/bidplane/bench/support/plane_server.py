"""
The process that `bench plane` measures.

    python -m bidplane.bench.support.plane_server serve FOLDER    one plane over TLS
    python -m bidplane.bench.support.plane_server many FOLDER N   N planes with their controllers

Both print one line of JSON when ready. `many` uses the real wiring: planes that belong to no agent,
watched by the controllers that every plane has.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from pathlib import Path

import uvloop

from bidplane.drivers.embedded import EmbeddedDriver, crds_for
from bidplane.http.server import descriptors
from bidplane.http.server.serve import serve
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.life import PlaneLife
from bidplane.runtime.identity import certificates
from bidplane.runtime.identity.credentials import HOST_PLANE, OWNERS, Identity, Tokens
from bidplane.runtime.memory import give_back
from bidplane.wiring.controllers import Controllers
from bidplane.wiring.server import prepare_host

_KEY = b"benchmark-key-benchmark-key-bench"


def _print_facts(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def _resident() -> int:
    give_back()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _serve(folder: Path) -> None:
    clock, tokens = SystemClock(), Tokens(_KEY)
    planes = Planes(folder / "planes", clock=clock, tokens=tokens, crds=crds_for)
    uid = await planes.create("bench")
    identity = Identity(
        plane="bench", uid=uid, user="bench", groups=(OWNERS,), expires=int(time.time()) + 3600
    )
    certificate_files = certificates.ensure(folder, hosts=["127.0.0.1"], now=clock.now())
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    serving = asyncio.create_task(serve(planes, listener, certificate_files))
    _print_facts(port=listener.getsockname()[1], token=tokens.issue(identity))
    loop = asyncio.get_running_loop()
    # The parent writes `sleep`, and ends us by closing our input.
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "sleep":
            await planes.sleep("bench")
            _print_facts(asleep=not planes.is_awake("bench"))
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    await planes.close()


async def _create_many(folder: Path, count: int) -> None:
    clock = SystemClock()
    planes = Planes(folder / "planes", clock=clock, tokens=Tokens(_KEY), crds=crds_for)
    await prepare_host(planes, None)
    driver = EmbeddedDriver(planes, "https://bench")
    controllers = Controllers(planes.client(HOST_PLANE), driver, clock=clock, own_host=True)
    life = PlaneLife(planes, controllers, clock=clock, open_limit=descriptors.open_files() // 4)
    working = asyncio.create_task(controllers.run())
    await controllers.started.wait()
    await life.create("warm-up")
    before = _resident()
    times = []
    begin = time.perf_counter()
    for number in range(count):
        start = time.perf_counter()
        await life.create(f"plane-{number}")
        times.append((time.perf_counter() - start) * 1e3)
    total = time.perf_counter() - begin
    await asyncio.sleep(1)
    awake = _resident()
    await life.put_to_sleep([f"plane-{number}" for number in range(count)])
    asleep = _resident()
    times.sort()
    _print_facts(
        per_second=count / total,
        p50_ms=times[count // 2],
        p99_ms=times[int(count * 0.99)],
        awake_kib=(awake - before) / count / 1024,
        asleep_kib=(asleep - before) / count / 1024,
    )
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await planes.close()


if __name__ == "__main__":
    command, folder_argument = sys.argv[1], Path(sys.argv[2])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            _serve(folder_argument)
            if command == "serve"
            else _create_many(folder_argument, int(sys.argv[3]))
        )
