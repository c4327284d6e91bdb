"""The latest round, for those who wait for the next."""

from __future__ import annotations

import asyncio

from bidplane.core.market import LotResult


class News:
    """The latest round's lots, and a future for those who wait for the next round."""

    def __init__(self) -> None:
        self.lots: tuple[LotResult, ...] | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def publish(self, lots: tuple[LotResult, ...], *, recorded: bool) -> None:
        self.lots = lots
        if recorded:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def next(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future
