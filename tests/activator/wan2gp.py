"""
A small server that behaves as Wan2GP does by its documentation, and by that of Gradio 5, which it
is an application of; it is not Wan2GP, and renders nothing.

- There is no health route; `GET /` is the page.
- A tab holds the stream `/gradio_api/heartbeat/SESSION` for as long as it is open.
- `POST /gradio_api/queue/join` answers at once, and the render begins: one at a time, on the GPU.
  A tab follows it at `/gradio_api/queue/data`; it goes on if the tab is closed.
- Its renders are in a queue of its own, which no route tells. Gradio's tells what waits for Gradio.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JOIN, FOLLOW = "/gradio_api/queue/join", "/gradio_api/queue/data"
HEARTBEAT, STATUS = "/gradio_api/heartbeat", "/gradio_api/queue/status"


class Wan2gp:
    """One process of it; a test ends its renders."""

    def __init__(self) -> None:
        self.renders: list[str] = []  # the first runs
        self.tabs = 0
        self.asked: list[str] = []
        self._changed = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        """Listen, at a free port in place of 7860; return the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def end(self) -> None:
        """End as a pod's process does: with its tabs and renders."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    @property
    def gpu_percent(self) -> float:
        return 97.0 if self.renders else 0.0

    async def finish(self) -> None:
        """End the render that runs."""
        async with self._changed:
            self.renders.pop(0)
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split("\r\n", 1)[0].split(" ")
                sizes = [line for line in head.lower().split("\r\n") if "content-length" in line]
                size = int(sizes[0].partition(":")[2]) if sizes else 0
                body = await reader.readexactly(size)
                route = f"{method} {target.partition('?')[0]}"
                if route.startswith(f"GET {HEARTBEAT}/"):
                    await self._hold_tab(reader, writer)
                    break
                await self._answer(route, target, body, writer)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    async def _answer(
        self, route: str, target: str, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        self.asked.append(route)
        if route == "GET /":
            writer.write(_reply(200, b"<html>Wan2GP</html>"))
        elif route == f"GET {STATUS}":
            waiting = {"msg": "estimation", "rank": None, "queue_size": 0, "rank_eta": None}
            writer.write(_reply(200, json.dumps(waiting).encode()))
        elif route == f"POST {JOIN}":
            job = f"{json.loads(body)['session_hash']}-{len(self.asked)}"
            self.renders.append(job)
            writer.write(_reply(200, json.dumps({"event_id": job}).encode()))
        elif route == f"GET {FOLLOW}":
            await self._follow(target.partition("session_hash=")[2], writer)
        else:
            writer.write(_reply(404, b'{"detail":"Not Found"}'))

    async def _hold_tab(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + _event("ALIVE"))
        self.tabs += 1
        with contextlib.suppress(ConnectionError):
            await reader.read(1)  # until it is closed: a tab sends nothing
        self.tabs -= 1

    async def _follow(self, session: str, writer: asyncio.StreamWriter) -> None:
        """Tell a tab of its renders until they have ended."""
        writer.write(STREAM + _event({"msg": "process_starts"}))
        async with self._changed:
            while any(job.startswith(session) for job in self.renders):
                await self._changed.wait()
        writer.write(_event({"msg": "process_completed", "success": True}))
        writer.write(_event({"msg": "close_stream"}) + b"0\r\n\r\n")


def _reply(code: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (code, len(body), body)


def _event(message: Any) -> bytes:
    text = message if isinstance(message, str) else json.dumps(message)
    event = b"data: %s\n\n" % text.encode()
    return b"%x\r\n%s\r\n" % (len(event), event)
