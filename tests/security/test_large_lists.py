"""
Lists over many objects: a neighbour waits for a slice of one, not for the list.

Counted in objects looked at between two turns of the event loop, so that nothing here depends on
how fast the machine is.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bidplane.machinery.clock import SystemClock
from bidplane.plane import Planes
from bidplane.plane.storage.feed import Key
from bidplane.plane.storage.journal import Journal, JournalRow
from bidplane.runtime.identity.credentials import Identity, Tokens
from bidplane.wire.selectors import Selector

COUNT = 6000
_EACH = 256  # bytes that a look at an object counts for, at least
MOST = (96 << 10) // _EACH + 1  # objects that one slice may look at
MAPS = "/planes/big/api/v1/namespaces/default/configmaps"


def _fill(path: Path, count: int, size: int = 10) -> None:
    """Write `count` ConfigMaps into a plane's file, as if an agent had created them."""
    journal = Journal(path, durable=False)
    head = journal.head()
    rows = []
    for number in range(count):
        name = f"m-{number:06}"
        obj = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": name,
                "resourceVersion": str(head + number + 1),
                "labels": {"even": str(number % 2 == 0)},
            },
            "data": {"x": "x" * size},
        }
        revision = head + number + 1
        key = str(Key("configmaps", "default", name))
        rows.append(JournalRow(revision, key, revision, False, msgspec.json.encode(obj)))
    journal.append(rows)
    journal.close()


async def big_plane(folder: Path, count: int = COUNT, size: int = 10) -> tuple[Planes, str]:
    """Planes with one named `big`, which has `count` ConfigMaps, and a token for it."""
    tokens = Tokens(secrets.token_bytes(32))
    planes = Planes(folder, clock=SystemClock(), tokens=tokens, durable=False, inline=True)
    uid = await planes.create("big")
    await planes.sleep("big")
    _fill(folder / "big" / "plane.db", count, size)
    identity = Identity(plane="big", uid=uid, user="big", expires=2**40)
    return planes, tokens.issue(identity)


async def request(
    planes: Planes, token: str, path: str, query: str, send: Callable[[Any], Awaitable[None]]
) -> None:
    async def receive() -> Any:
        await asyncio.Event().wait()

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query.encode(),
        "headers": [(b"authorization", f"Bearer {token}".encode())],
    }
    await planes(scope, receive, send)


class Answer:
    def __init__(self) -> None:
        self.body = b""

    async def send(self, message: Any) -> None:
        self.body += message.get("body", b"")

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in msgspec.json.decode(self.body)["items"]]

    @property
    def token(self) -> str:
        return str(msgspec.json.decode(self.body)["metadata"].get("continue", ""))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the objects that selectors have looked at."""
    count = [0]
    matches = Selector.matches

    def counted(self: Selector, obj: Any) -> bool:
        count[0] += 1
        return matches(self, obj)

    monkeypatch.setattr(Selector, "matches", counted)
    return count


def test_eight_lists_with_a_selector_leave_the_loop_to_others(
    tmp_path: Path, looked_at: list[int]
) -> None:
    async def story() -> None:
        planes, token = await big_plane(tmp_path)
        answers = [Answer() for _ in range(8)]
        lists = [
            asyncio.create_task(
                request(planes, token, MAPS, "labelSelector=even%3DTrue", answer.send)
            )
            for answer in answers
        ]
        most, before = 0, 0
        while not all(task.done() for task in lists):
            await asyncio.sleep(0)
            most, before = max(most, looked_at[0] - before), looked_at[0]
        assert [len(answer.names) for answer in answers] == [COUNT // 2] * 8
        assert looked_at[0] >= 8 * COUNT
        # The first slice of each is its own; four lists of one plane begin together.
        assert most <= 5 * MOST
        await planes.close()

    asyncio.run(story())


def test_a_long_selector_counts_for_more(tmp_path: Path, looked_at: list[int]) -> None:
    async def story() -> None:
        planes, token = await big_plane(tmp_path, 300)
        chosen = ",".join(f"a{number}%21%3Db" for number in range(5000))
        planes.plane("big")
        answer, most, before = Answer(), 0, looked_at[0]
        task = asyncio.create_task(
            request(planes, token, MAPS, f"labelSelector={chosen}", answer.send)
        )
        while not task.done():
            await asyncio.sleep(0)
            most, before = max(most, looked_at[0] - before), looked_at[0]
        assert len(answer.names) >= 300
        assert most <= 3
        await planes.close()

    asyncio.run(story())


def test_a_page_of_one_looks_at_one(tmp_path: Path, looked_at: list[int]) -> None:
    async def story() -> None:
        planes, token = await big_plane(tmp_path)
        answer = Answer()
        await request(planes, token, MAPS, "limit=1&labelSelector=even", answer.send)
        assert answer.names == ["m-000000"]
        assert looked_at[0] == 1
        again = Answer()
        query = f"limit=1&labelSelector=even&continue={answer.token}"
        await request(planes, token, MAPS, query, again.send)
        assert again.names == ["m-000001"]
        assert looked_at[0] == 2
        await planes.close()

    asyncio.run(story())


def test_pages_of_one_moment_while_objects_change(tmp_path: Path) -> None:
    async def story() -> None:
        planes, token = await big_plane(tmp_path, 50)
        store = planes.plane("big").store
        names: list[str] = []
        query = "limit=7"
        while query:
            answer = Answer()
            await request(planes, token, MAPS, query, answer.send)
            names += answer.names
            query = f"limit=7&continue={answer.token}" if answer.token else ""
            victim = store.latest(Key("configmaps", "default", names[-1]))
            later = store.latest(Key("configmaps", "default", "m-000040"))
            for item in (victim, later):
                if item is not None:
                    await store.remove(item.key, item.obj)
            new = f"n-{len(names)}"
            await store.put(Key("configmaps", "default", new), {"metadata": {"name": new}})
        assert names == [f"m-{number:06}" for number in range(50)] or "kube-root-ca.crt" in names
        assert [name for name in names if name.startswith("m-")] == [
            f"m-{number:06}" for number in range(50)
        ]
        assert not [name for name in names if name.startswith("n-")]
        await planes.close()

    asyncio.run(story())


def test_a_list_keeps_no_decoded_objects(tmp_path: Path) -> None:
    async def story() -> None:
        planes, token = await big_plane(tmp_path, 1500)
        for query in ("labelSelector=even", "fieldSelector=metadata.name%21%3Da", ""):
            await request(planes, token, MAPS, query, Answer().send)
        items = planes.plane("big").store.items("configmaps", "default")
        assert sum(item._obj is not None for item in items) <= 1  # kube-root-ca.crt
        await planes.close()

    asyncio.run(story())
