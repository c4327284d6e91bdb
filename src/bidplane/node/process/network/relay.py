"""
A relay from a pod's network to an API server on this machine's loopback.

A pod with a network of its own has another 127.0.0.1. There the node listens at the server's
port, and passes on what comes: to a pod, its API is where its variables say.
"""

from __future__ import annotations

import asyncio
import ipaddress
from contextlib import suppress

from bidplane.node.process.network.addresses import PodNetwork, listen_inside

_CHUNK = 64 << 10


class Relay:
    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    @staticmethod
    def needed(place: PodNetwork, host: str) -> bool:
        try:
            return bool(place.namespace) and ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    async def open(self, place: PodNetwork) -> None:
        """Listen in the pod's network; raises `OSError`."""
        inside = await asyncio.to_thread(listen_inside, place, self._host, self._port)
        self._server = await asyncio.start_server(self._pass_on, sock=inside)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, server_writer))
                group.create_task(_copy(server_reader, writer))
        finally:
            server_writer.close()
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of the stream, and pass the end on."""
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
