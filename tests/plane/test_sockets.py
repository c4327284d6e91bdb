"""Over real connections: a busy plane and its neighbour, and a watcher that stops reading."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

import pytest

from bidplane.http import replies
from bidplane.plane import Planes, turns
from bidplane.plane.fairness import Fairness

from .conftest import Embedded, Endpoint, config_map

MAPS = "/api/v1/namespaces/default/configmaps"
CROWD = 160  # clients of the busy plane, each with a request under way at all times
ASKED = 40  # requests of the neighbour, one after the other


class Counter:
    """Counts at the server what was served of one plane while another's request was there."""

    def __init__(self, busy: str, quiet: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.busy, self.quiet = f"/planes/{busy}/", f"/planes/{quiet}/"
        self.served = 0
        self.meanwhile: list[int] = []
        serve = Planes.__call__

        async def counted(planes: Planes, scope: Any, receive: Any, send: Any) -> None:
            before = self.served
            await serve(planes, scope, receive, send)
            path = scope.get("path", "")
            if path.startswith(self.busy):
                self.served += 1
            elif path.startswith(self.quiet):
                self.meanwhile.append(self.served - before)

        monkeypatch.setattr(Planes, "__call__", counted)


async def _post(endpoint: Endpoint, context: ssl.SSLContext, count: int, over: Any) -> None:
    """Creations on one connection, by hand: a client that costs next to nothing."""
    place = urlsplit(endpoint.url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, ssl=context)
    head = f"POST {place.path}{MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    while count and not over():
        count -= 1
        body = json.dumps(config_map(f"m-{secrets.token_hex(8)}")).encode()
        told = (
            f"{head}Authorization: Bearer {endpoint.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(told.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 201"), answer
        length = int(answer.lower().partition(b"content-length:")[2].split()[0])
        await reader.readexactly(length)
    writer.close()


def _measured(embedded: Embedded, turns: Fairness, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the busy plane's requests, the usual number that went before one of the neighbour's."""
    monkeypatch.setattr(embedded.planes, "fairness", turns)
    names = [f"p-{secrets.token_hex(4)}" for _ in range(2)]
    busy, quiet = (embedded.make(name) for name in names)
    counter = Counter(names[0], names[1], monkeypatch)

    async def story() -> None:
        context = ssl.create_default_context(cafile=str(embedded.ca_file))
        over = asyncio.Event()
        crowd = [
            asyncio.create_task(_post(busy, context, 10**6, over.is_set)) for _ in range(CROWD)
        ]
        while counter.served < CROWD:  # everybody is at it
            await asyncio.sleep(0.01)
        await _post(quiet, context, ASKED, lambda: False)
        over.set()
        await asyncio.gather(*crowd)

    try:
        asyncio.run(story())
        return sorted(counter.meanwhile)[ASKED // 2]
    finally:
        monkeypatch.undo()
        for name in names:
            embedded.wait(embedded.planes.delete(name))


@pytest.mark.slow
def test_a_crowd_next_door_is_one_neighbour(
    embedded: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    With turns, the neighbour waits for a plane's share; without, for all of its crowd.

    Counted in requests, not in seconds: how fast the machine is does not matter.
    """
    fair = _measured(embedded, Fairness(share=4), monkeypatch)
    monkeypatch.setattr(turns, "BURST", 10**6)
    unfair = _measured(embedded, Fairness(seats=10**6, share=10**6), monkeypatch)
    assert fair <= unfair / 2, (fair, unfair)


def test_a_watcher_that_stops_reading_is_let_go(
    embedded: Embedded, plane: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "STALL_SECONDS", 0.3)
    place = urlsplit(plane.url)
    raw = socket.create_connection((place.hostname or "", place.port or 0))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    context = ssl.create_default_context(cafile=str(embedded.ca_file))
    name = place.path.rpartition("/")[2]
    turns = embedded.planes.fairness

    def watching() -> int:
        line = turns._lines.get(name)
        return line.streams if line is not None else 0

    with context.wrap_socket(raw, server_hostname=place.hostname) as connection:
        ask = f"GET {place.path}{MAPS}?watch=true HTTP/1.1\r\nHost: x\r\n"
        connection.sendall(f"{ask}Authorization: Bearer {plane.token}\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        plane.eventually(lambda: watching() == 1)
        text = "x" * (1 << 20)
        for at in range(24):  # more than every buffer between here and there
            plane.ok("POST", MAPS, config_map(f"big{at}", text=text[:1_000_000]))
            if not watching():
                break
        plane.eventually(lambda: watching() == 0)
    # The others are served as ever.
    assert plane.call("GET", f"{MAPS}/big0").code == 200
