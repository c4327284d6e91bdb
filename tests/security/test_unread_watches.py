"""Watches and lists that nobody reads: what is made for them is bounded, and given back."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from bidplane.http import replies
from bidplane.plane import fairness, output
from bidplane.plane.fairness import Fairness
from bidplane.plane.output import OutputBudget
from bidplane.plane.storage.feed import Key
from bidplane.sim.loop import run

from .test_large_lists import MAPS, Answer, big_plane, request

sys.path.insert(0, str(Path(__file__).parents[1]))

from plane.conftest import Embedded, embedded

__all__ = ["embedded"]

WATCHES = 69
MOST_BYTES = 256 << 10  # handed to one connection before it takes anything


class Unread:
    """A connection that takes the headers, and then nothing."""

    def __init__(self) -> None:
        self.bytes = 0

    async def send(self, message: Any) -> None:
        self.bytes += len(message.get("body", b""))
        if self.bytes:
            await asyncio.Event().wait()


@pytest.mark.parametrize("query", ["watch=true", "", "labelSelector=even"])
def test_what_is_made_for_a_reader_that_reads_nothing(tmp_path: Path, query: str) -> None:
    async def story() -> None:
        planes, token = await big_plane(tmp_path, 2000, size=2000)
        connections = [Unread() for _ in range(WATCHES)]
        tasks = [
            asyncio.create_task(request(planes, token, MAPS, query, connection.send))
            for connection in connections
        ]
        for _ in range(3000):
            await asyncio.sleep(0)
        begun = [connection.bytes for connection in connections if connection.bytes]
        assert len(begun) == fairness.SNAPSHOTS, "the others wait until those are read"
        assert max(begun) <= MOST_BYTES
        items = planes.plane("big").store.items("configmaps", "default")
        assert sum(item._obj is not None for item in items) <= 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await planes.close()

    asyncio.run(story())


def test_a_reader_that_stalls_makes_room_for_the_next(tmp_path: Path) -> None:
    async def story() -> None:
        planes, token = await big_plane(tmp_path, 2000, size=2000)
        connections = [Unread() for _ in range(fairness.SNAPSHOTS + 1)]
        tasks = [
            asyncio.create_task(request(planes, token, MAPS, "watch=true", connection.send))
            for connection in connections
        ]
        await asyncio.sleep(replies.STALL_SECONDS * 2)
        assert all(connection.bytes for connection in connections)
        assert sum(task.done() for task in tasks) >= fairness.SNAPSHOTS
        await asyncio.sleep(replies.STALL_SECONDS * 2)
        assert all(task.done() for task in tasks)
        await planes.close()

    run(story())


LARGE = 1_000_000
GET_ONE = f"{MAPS}/m-000001"


@pytest.mark.parametrize(
    ("path", "query"), [(MAPS, "watch=true"), (MAPS, ""), (MAPS, "limit=5"), (GET_ONE, "")]
)
def test_large_objects_for_readers_that_read_nothing(tmp_path: Path, path: str, query: str) -> None:
    """A piece may be as large as an object: all that wait for a plane's readers are bounded."""

    async def story() -> None:
        planes, token = await big_plane(tmp_path, 12, size=LARGE)
        connections = [Unread() for _ in range(3 * WATCHES)]
        tasks = [
            asyncio.create_task(request(planes, token, path, query, connection.send))
            for connection in connections
        ]
        for _ in range(300):
            await asyncio.sleep(0)
        unread = sum(connection.bytes for connection in connections)
        assert 0 < unread <= output.PLANE_BYTES
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(planes.fairness.output("big", streams=at).used == 0 for at in (True, False))
        answer = Answer()
        await request(planes, token, MAPS, "", answer.send)
        assert len(answer.names) >= 12, "room was given back"
        await planes.close()

    asyncio.run(story())


def test_a_large_event_waits_for_room(tmp_path: Path) -> None:
    async def story() -> None:
        planes, token = await big_plane(tmp_path, 1)
        connections = [Unread() for _ in range(WATCHES)]
        store = planes.plane("big").store
        query = f"watch=true&resourceVersion={store.revision}"
        tasks = [
            asyncio.create_task(request(planes, token, MAPS, query, connection.send))
            for connection in connections
        ]
        for _ in range(10):
            await asyncio.sleep(0)
        key = Key("configmaps", "default", "large")
        await store.put(key, {"metadata": {"name": "large"}, "data": {"x": "x" * LARGE}})
        for _ in range(300):
            await asyncio.sleep(0)
        assert LARGE < sum(connection.bytes for connection in connections) <= output.PLANE_BYTES
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await planes.close()

    asyncio.run(story())


def test_a_connection_reports_what_its_reader_has_not_taken(
    embedded: Embedded,
) -> None:
    """On real connections: events of a megabyte for clients that read nothing."""
    plane = embedded.make("unread")
    host, port = plane.url.removeprefix("https://").partition("/")[0].split(":")
    tls = ssl.create_default_context(cafile=str(plane.ca_file))
    path = "/api/v1/namespaces/default/configmaps"
    now = plane.ok("GET", path)["metadata"]["resourceVersion"]
    head = (
        f"GET /planes/unread{path}?watch=1&resourceVersion={now} HTTP/1.1\r\nHost: h\r\n"
        f"Authorization: Bearer {plane.token}\r\n\r\n"
    )
    waiting = embedded.planes.fairness.output("unread", streams=True)
    sockets = []
    for _ in range(60):
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect((host, int(port)))
        connection = tls.wrap_socket(plain, server_hostname=host)
        connection.sendall(head.encode())
        sockets.append(connection)
    data = {"x": "x" * LARGE}
    for number in range(6):  # the kernel takes the first few megabytes
        plane.ok("POST", path, {"metadata": {"name": f"large-{number}"}, "data": data})
    plane.eventually(lambda: waiting.waiting >= 20)
    assert LARGE * 20 < waiting.used <= output.PLANE_BYTES
    for connection in sockets:
        connection.close()
    plane.eventually(lambda: waiting.used == 0)


def test_room_is_given_in_order_and_given_back() -> None:
    async def story() -> None:
        budget = OutputBudget(100)
        await budget.take(1000)  # alone, a piece may be of any size
        second = asyncio.create_task(budget.take(60))
        third = asyncio.create_task(budget.take(30))
        fourth = asyncio.create_task(budget.take(30))
        await asyncio.sleep(0)
        assert repr(budget) == "<OutputBudget [1000 of 100 bytes, 3 waiting]>"
        budget.give_back(1000)
        await asyncio.gather(second, third)
        await asyncio.sleep(0)
        assert not fourth.done()
        fourth.cancel()
        await asyncio.gather(fourth, return_exceptions=True)
        assert repr(budget) == "<OutputBudget [90 of 100 bytes, 0 waiting]>"

    asyncio.run(story())


def test_snapshots_of_a_plane_are_few_in_bytes_too() -> None:
    async def story() -> None:
        turns = Fairness()
        half = fairness.SNAPSHOT_BYTES // 2
        first = await turns.snapshot("a", 2 * half + 1)  # alone, it may be of any size
        waiting = [asyncio.create_task(turns.snapshot("a", half)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        await turns.snapshot("b", half)
        first.release()
        await asyncio.gather(*waiting[:2])
        await asyncio.sleep(0)
        assert not waiting[2].done()
        waiting[0].result().release()
        await waiting[2]

    asyncio.run(story())
