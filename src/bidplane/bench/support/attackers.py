"""
One agent that does what no agent should, for so many seconds: run as a process of its own.

    python -m bidplane.bench.support.attackers KIND SECONDS PORT PLANE COUNT < token

What it does is bounded in number and in time, and it ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable

from bidplane.bench.support.load import SYSTEM_MAPS, LoadConnection, LoadTarget

LISTS = 8  # at once
WATCHES = 69  # that never read
READERS = 4  # of the exchange's history
WRITERS = 16
BIDS = "/apis/bidplane.dev/v1alpha1/namespaces/default/bids"


class Attack:
    def __init__(self, endpoint: LoadTarget, seconds: float, count: int) -> None:
        self._endpoint, self._count = endpoint, count
        self._end = time.monotonic() + seconds

    async def _open(self, endpoint: LoadTarget | None = None) -> LoadConnection:
        connection = LoadConnection(endpoint or self._endpoint)
        await connection.open()
        return connection

    async def _repeat(self, path: str, endpoint: LoadTarget | None = None) -> None:
        connection = await self._open(endpoint)
        while time.monotonic() < self._end:
            await connection.call("GET", path)
        await connection.close()

    async def selector_lists(self) -> None:
        path = f"{SYSTEM_MAPS}?labelSelector=k%21%3Dv"
        await asyncio.gather(*(self._repeat(path) for _ in range(LISTS)))

    async def short_pages(self) -> None:
        path = f"{SYSTEM_MAPS}?limit=1"
        await asyncio.gather(*(self._repeat(path) for _ in range(LISTS)))

    async def unread_watches(self) -> None:
        connections = [await self._open() for _ in range(WATCHES)]
        for connection in connections:
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            connection.send("GET", f"{SYSTEM_MAPS}?watch=true")
        await asyncio.sleep(self._end - time.monotonic())
        for connection in connections:
            connection.writer.transport.abort()

    async def standing_bids(self) -> None:
        """Create `count` bids that are too low to win; they stay."""
        body = json.dumps(
            {
                "apiVersion": "bidplane.dev/v1alpha1",
                "kind": "Bid",
                "metadata": {"generateName": "low-"},
                "spec": {"gpus": 1, "maxPrice": "0.000001"},
            }
        ).encode()
        remaining = self._count

        async def write() -> None:
            nonlocal remaining
            connection = await self._open()
            while remaining > 0 and time.monotonic() < self._end:
                remaining -= 1
                await connection.call("POST", BIDS, body)
            await connection.close()

        await asyncio.gather(*(write() for _ in range(WRITERS)))

    async def histories(self) -> None:
        exchange = self._endpoint._replace(prefix="")
        path = "/exchange/v1/rounds?after=0"
        await asyncio.gather(*(self._repeat(path, exchange) for _ in range(READERS)))

    async def mix(self) -> None:
        await asyncio.gather(
            self.selector_lists(), self.short_pages(), self.unread_watches(), self.histories()
        )


KINDS: dict[str, Callable[[Attack], Awaitable[None]]] = {
    "8 lists with a selector": Attack.selector_lists,
    "8 × limit=1": Attack.short_pages,
    "69 unread watches": Attack.unread_watches,
    "standing bids": Attack.standing_bids,
    "4 × rounds?after=0": Attack.histories,
    "a mix of these": Attack.mix,
}


async def attack(kind: str, endpoint: LoadTarget, seconds: float, count: int) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(seconds + 5):
            await KINDS[kind](Attack(endpoint, seconds, count))


if __name__ == "__main__":
    kind_, seconds_, port_, plane_, count_ = sys.argv[1:]
    target = LoadTarget(int(port_), sys.stdin.readline().strip(), f"/planes/{plane_}")
    asyncio.run(attack(kind_, target, float(seconds_), int(count_)))
