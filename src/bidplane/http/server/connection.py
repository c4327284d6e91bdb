"""
One HTTP connection of our servers: uvicorn's, and three things that it lacks.

An app that is asked to switch protocols finds an `Upgrade` in its scope; it may answer as
usual, which refuses, or `take` the connection and speak whatever it likes on it. The
certificate a client showed is in the request's state. And the head of a request has a largest
size, and a time in which it must arrive: both apply before authentication.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bidplane.http.asgi import CLIENT_CERTIFICATE
from bidplane.http.extensions import ABORT, DRAINED, UPGRADE, Upgrade

HEAD_BYTES = 64 << 10  # a request's line and headers
HEAD_SECONDS = 10.0  # for them to arrive
_BUFFER = 128 << 10  # bytes read ahead of the new owner of the connection
_UNSENT = 64 << 10  # bytes that wait for a reader before `drained` waits, too; TLS has 512 KiB


class _HeadBufferingTransport:
    """
    A transport that sends the head of an answer with its body: one record, one system call.

    A head whose body is not there yet (a watch) goes out by itself, one turn of the loop later.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head: bytes | None = b""  # held; None once it is sent

    def write(self, data: bytes) -> None:
        if self._head is None:
            self._transport.write(data)
        elif self._head:
            head, self._head = self._head, None
            self._transport.write(head + data)
        else:
            self._head = data
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        if self._head:
            head, self._head = self._head, None
            self._transport.write(head)

    def close(self) -> None:
        self._send()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _HandedOverProtocol(asyncio.StreamReaderProtocol):
    """The protocol of a connection after it was handed over."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(reader, loop=loop)
        self._on_lost = on_lost

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_lost()


class HttpConnection(HttpToolsProtocol):
    _ahead: bytearray | None = None  # bytes after a request to switch protocols
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _is_head_too_large = False
    _unfinished = 0  # bytes of a head that has not ended
    _has_body_to_come = False  # the request's head has arrived, and its end has not

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.on_lost: Callable[[], None] = lambda: None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # The kernel else keeps a second small message until the first is acknowledged, for up to
        # 40 ms: an event after its watch's headers. asyncio asks for this only of sockets that
        # say their protocol, which `socket.create_server` and those it accepts do not.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=_UNSENT)
        self._await_head()
        tls = transport.get_extra_info("ssl_object")
        client_certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if client_certificate:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: client_certificate}

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)
        self.on_lost()

    def _await_head(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._refuse(408, "Request Timeout", f"no whole request in {HEAD_SECONDS:.0f} seconds")

    def _refuse(self, code: int, reason: str, message: str) -> None:
        if self._is_answered_early():
            # The rest of a body that nobody reads. It has its answer: a second one would be taken
            # for that of the next request.
            self.transport.close()
        elif not self.transport.is_closing():
            body = f"{message}\n".encode()
            head = (
                f"HTTP/1.1 {code} {reason}\r\ncontent-type: text/plain; charset=utf-8\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            self.transport.close()

    def _is_answered_early(self) -> bool:
        """Return whether a request was answered before all of its body had arrived."""
        return self._has_body_to_come and self.cycle is not None and self.cycle.response_complete

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            self._is_head_too_large = True
            raise ValueError("the request's head is too large")  # ends the parsing

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._has_body_to_come = False
        super().on_message_complete()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        extensions: dict[str, Any] = {ABORT: self.transport.abort, DRAINED: self.flow.drain}
        protocol = self._get_upgrade()
        if protocol is not None:
            extensions[UPGRADE] = Upgrade(self, protocol.decode("latin-1"))
        self.scope["extensions"] = extensions
        self._has_body_to_come = True
        super().on_headers_complete()
        self.cycle.transport = _HeadBufferingTransport(self.transport, self.loop)  # type: ignore[assignment]

    def _should_upgrade(self) -> bool:
        return False  # the app decides, not uvicorn

    def data_received(self, data: bytes) -> None:
        if self._ahead is not None:
            self._ahead += data
            return
        self._unset_keepalive_if_required()
        between = self.cycle is None or self.cycle.response_complete
        if between and self._head_timer is None:
            self._await_head()
        waiting = self._head_timer is not None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Everything after the request is in another protocol, or was never to be sent.
            self._ahead = bytearray(data[upgrade.args[0] :])
            self.cycle.keep_alive = False
            self.flow.pause_reading()
        except httptools.HttpParserError:
            if self._is_head_too_large:
                self._refuse_head()
            else:
                self.send_400_response("Invalid HTTP request received.")
        else:
            if (
                waiting and self._head_timer is not None
            ):  # the data are part of a head, without its end
                self._unfinished += len(data)
                if self._unfinished > HEAD_BYTES:
                    self._refuse_head()
            else:
                self._unfinished = 0

    def _refuse_head(self) -> None:
        self._refuse(
            431,
            "Request Header Fields Too Large",
            f"the line and headers of a request may have {HEAD_BYTES} bytes",
        )

    def hand_over(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Detach the connection from uvicorn and return its streams."""
        if self._ahead is None or self.cycle.response_started:
            raise RuntimeError("this connection was answered, or asks for no other protocol")
        # For uvicorn the exchange is over; the task that serves it goes on.
        self.cycle.response_started = self.cycle.response_complete = True
        self.cycle.message_event.set()
        self.connections.discard(self)
        reader = asyncio.StreamReader(limit=_BUFFER, loop=self.loop)
        protocol = _HandedOverProtocol(reader, self.loop, self.on_lost)
        writer = asyncio.StreamWriter(self.transport, protocol, reader, self.loop)
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        if self._ahead:
            reader.feed_data(bytes(self._ahead))
        if self.transport.is_closing():
            reader.feed_eof()
        else:
            self.flow.resume_reading()
        return reader, writer
