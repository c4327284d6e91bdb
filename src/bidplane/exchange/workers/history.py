"""
Reads of the ledger's history, a page at a time, off the loop that runs rounds.

Each reader has one question in work, and readers take turns: whoever asks for everything delays
the others by a page.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import msgspec

from bidplane.exchange.workers.historyprocess import LEDGER, READS, Argument, HistoryQuery
from bidplane.exchange.workers.worker import WorkerDied, WorkerProcess
from bidplane.ledger.ledger import Ledger

ANSWER_SECONDS = 30.0  # for one page


class Unreadable(Exception):
    """A page could not be read in time."""


class History(Protocol):
    async def read(self, reader: str, query: str, *args: Argument) -> bytes:
        """Return what one of `historyprocess.READS` makes of `args`. `reader`: whose turn it is."""
        ...

    async def close(self) -> None: ...


class OwnHistory:
    """Reads in this process: for tests, and for a loop whose time is not real."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def read(self, reader: str, query: str, *args: Argument) -> bytes:
        return READS[query](self._ledger, *args)

    async def close(self) -> None:
        pass


class HistoryReader:
    """Reads in a process of its own."""

    def __init__(self, ledger: Path | str, *, seconds: float = ANSWER_SECONDS) -> None:
        self._worker = WorkerProcess(
            "bidplane.exchange.workers.historyprocess", env={LEDGER: str(ledger)}
        )
        self._seconds = seconds
        self._turn = asyncio.Lock()  # first come, first served
        self._readers: dict[str, asyncio.Lock] = {}

    async def read(self, reader: str, query: str, *args: Argument) -> bytes:
        question = msgspec.msgpack.encode(HistoryQuery(query, args))
        own = self._readers.setdefault(reader, asyncio.Lock())
        try:
            async with own, self._turn:
                return await self._worker.ask(question, seconds=self._seconds)
        except WorkerDied:
            raise Unreadable(f"it could not be read within {self._seconds:.0f} s") from None
        finally:
            if not own.locked():
                self._readers.pop(reader, None)

    async def close(self) -> None:
        await self._worker.stop()
