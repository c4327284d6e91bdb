"""
Requests drawn by schema, to a plane and to the exchange, over their ASGI applications.

Whatever is sent gets an answer that was foreseen: no 5xx but those that say "not supported", no
request that needs more than a second of CPU, and no memory that is not given back. The seed is
fixed; `BIDPLANE_EXPLORE=1` draws another (printed), and `BIDPLANE_FUZZ=N` as many requests.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import secrets
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from bidplane.api.kinds import Kind
from bidplane.core.bidding.admission import admission
from bidplane.drivers.embedded import crds_for
from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.runtime.identity.credentials import OWNERS, Identity, Tokens
from exchange.test_http import Site

from .requests import SAMPLES, ExchangeFuzzer, Fuzzer, Request

SEED = int(os.environ.get("BIDPLANE_SEED") or 0) or (
    secrets.randbits(32) if os.environ.get("BIDPLANE_EXPLORE") else 12
)
COUNT = int(
    os.environ.get("BIDPLANE_FUZZ", "16000")
)  # to planes; a quarter as many to the exchange
PER_PLANE = 400  # then another one: policies and quotas that were drawn must not refuse the rest
STALL_SECONDS = 1.0  # of CPU, in one request
GROWTH_LIMIT = 64 << 20  # bytes, from the second half's beginning to its end
CRD = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", False
)
DEFINITION = next(one for one in SAMPLES if one["metadata"]["name"] == "things.fuzz.test")


class Trouble(logging.Handler):
    """Collects what was logged with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.places: dict[str, str] = {}  # the line of code → what was asked

    def emit(self, record: logging.LogRecord) -> None:
        text = logging.Formatter().format(record)
        place = text.rpartition("  File ")[2]
        self.places.setdefault(place, text[:300])


@pytest.fixture
def trouble() -> Iterator[Trouble]:
    handler = Trouble()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


class Answered:
    """One ASGI request as a server makes it; a stream is hung up on after its first bytes."""

    def __init__(self, request: Request, path: str, token: str) -> None:
        self.code, self.body = 0, b""
        self._request = request
        self._sent = False
        self._gone = asyncio.Event()
        self.scope = {
            "type": "http",
            "method": request.method,
            "path": path,
            "raw_path": path.encode("latin-1", "replace"),
            "query_string": request.query.encode("latin-1", "replace"),
            "headers": [
                (b"authorization", f"Bearer {token}".encode()),
                (b"user-agent", b"fuzz/1"),
                *request.headers,
            ],
        }

    async def receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.code = message["status"]
        else:
            self.body += message.get("body", b"")[:4000]
            if message.get("more_body"):
                self._gone.set()


async def ask(app: Any, request: Request, path: str, token: str) -> tuple[Answered, float]:
    """Make one request; returns the answer and the CPU seconds it took."""
    answered = Answered(request, path, token)
    before = time.thread_time()
    task = asyncio.ensure_future(app(answered.scope, answered.receive, answered.send))
    try:
        async with asyncio.timeout(0.5 if "watch=true" in request.query else 30):
            await asyncio.shield(task)
    except TimeoutError:
        answered._gone.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not answered.code:
            raise AssertionError(f"no answer to {request}") from None
    return answered, time.thread_time() - before


# What this server says on purpose: not supported here, or upstream's own words for a value that an
# apply cannot convert (which are a 500 there, too). Only the beginning of a long body is kept, so
# that it is looked for as text.
ON_PURPOSE = (
    b'"reason":"NotImplemented"',
    b'"message":"failed to convert new object',
    b'"message":"failed to create typed patch object',
)


def foreseen(code: int, body: bytes) -> bool:
    return code < 500 or any(text in body for text in ON_PURPOSE)


def memory() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_requests_to_planes(tmp_path: Path, trouble: Trouble) -> None:
    asyncio.run(_planes(tmp_path, trouble))


async def _planes(folder: Path, trouble: Trouble) -> None:
    tokens = Tokens(b"k" * 32)
    planes = Planes(
        folder,
        clock=SystemClock(),
        tokens=tokens,
        crds=crds_for,
        admit=admission(lambda plane: {"metadata": {"name": "a"}, "spec": {"owner": "ann"}}),
        durable=False,
        dice=random.Random(SEED),
    )
    dice = random.Random(SEED)
    wrong: list[str] = []
    codes: Counter[int] = Counter()
    resident = 0
    for number in range(COUNT):
        if number % PER_PLANE == 0:
            name = f"p{number}"
            uid = await planes.create(name)
            who = Identity(
                plane=name, uid=uid, user=name, groups=(OWNERS,), expires=int(time.time()) + 3600
            )
            token = tokens.issue(who)
            await planes.client(name).create(CRD, DEFINITION)
            fuzzer = Fuzzer(dice, planes.plane(name).registry.custom)
            first = fuzzer.first()
        request = next(first, None) or fuzzer.draw()
        answered, seconds = await ask(planes, request, f"/planes/{name}{request.path}", token)
        codes[answered.code] += 1
        if not foreseen(answered.code, answered.body):
            wrong.append(f"{answered.code} {request}: {answered.body[:300]!r}")
        if seconds > STALL_SECONDS:
            wrong.append(f"{seconds:.1f} s of CPU: {request}")
        if number % PER_PLANE == PER_PLANE - 1:
            await planes.delete(name)
        if number == COUNT // 2:
            resident = memory()
    grown = memory() - resident
    await planes.close()
    for place, text in trouble.places.items():
        wrong.insert(0, f"{text} … {place}")
    assert not wrong, f"seed {SEED}, {len(wrong)} of {COUNT}:\n" + "\n".join(wrong[:60])
    assert codes[200] + codes[201] > COUNT / 20, f"hardly anything was right: {codes}"
    assert grown < GROWTH_LIMIT, f"{grown >> 20} MiB more after the second half"


@pytest.mark.slow
def test_requests_to_the_exchange(tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger.db")
    try:
        asyncio.run(_exchange(site))
    finally:
        site.ledger.close()


async def _exchange(site: Site) -> None:
    fuzzer = ExchangeFuzzer(random.Random(SEED))
    bearers = [site.token("trainer"), site.token("chat"), site.token("host")]
    count = COUNT // 4
    wrong: dict[str, str] = {}  # what went wrong → the first request that did it
    codes: Counter[int] = Counter()
    resident = 0
    for number in range(count):
        request = fuzzer.draw()
        path = f"/exchange/v1/{unquote(request.path, errors='replace')}"
        try:
            answered, seconds = await ask(site.app, request, path, fuzzer.dice.choice(bearers))
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            wrong.setdefault(f"{line.filename}:{line.lineno}: {error!r}", str(request))
            continue
        codes[answered.code] += 1
        if not foreseen(answered.code, answered.body):
            wrong.setdefault(f"{answered.code} {answered.body[:300]!r}", str(request))
        if seconds > STALL_SECONDS:
            wrong.setdefault(f"{seconds:.1f} s of CPU", str(request))
        if number == count // 2:
            resident = memory()
    told = [f"{problem}: {request}" for problem, request in wrong.items()]
    assert not told, f"seed {SEED}, {len(told)} kinds:\n" + "\n".join(told[:20])
    assert codes[200] > count / 20, f"hardly anything was right: {codes}"
    assert memory() - resident < GROWTH_LIMIT
