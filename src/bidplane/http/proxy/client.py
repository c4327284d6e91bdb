"""
A client's connection: requests are read, dispatched one after the other, and answered in order.

What a client may take is bounded: the size of a head, the time for it, the time without a byte of
a body, the time without reading an answer, and the requests it may send ahead of their answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import httptools
import structlog

from bidplane.http.proxy import heads
from bidplane.http.proxy.backend import NEVER, BackendConnection
from bidplane.http.proxy.heads import Framing, Headers, Refusal, ResponseHead
from bidplane.http.proxy.request import BUFFER_BYTES, ProxiedRequest

if TYPE_CHECKING:
    from bidplane.http.proxy.server import Site

log = structlog.get_logger(__name__)

PIPELINED_COUNT = 16  # requests read ahead of their answers
_PREFACE = b"PRI * HTTP/2.0\r\n"
# SETTINGS, then GOAWAY with HTTP_1_1_REQUIRED and a text: an HTTP/2 client shows both.
_HTTP2_TEXT = b"HTTP/2 is not served here: use HTTP/1.1"
_HTTP2_REFUSAL = (
    b"\0\0\0\x04\0\0\0\0\0"
    + struct.pack(">I", 8 + len(_HTTP2_TEXT))[1:]
    + b"\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0d"
    + _HTTP2_TEXT
)
# SO_LINGER: a close sends a reset, or what is left to send.
_RESET, _ORDERLY = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)


class ClientConnection(asyncio.Protocol):
    """One connection of a client."""

    __slots__ = (
        "_broken",
        "_closing",
        "_early",
        "_extra_bytes",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_leave",
        "_lingering",
        "_out",
        "_paused",
        "_queue",
        "_receiving",
        "_resets",
        "_site",
        "_target",
        "_trailers",
        "_transport",
        "_tunnel",
        "_unsent",
        "deadline",
        "parser",
        "peer",
        "proto",
        "trusted",
    )

    def __init__(self, site: Site, on_lost: Callable[[], None] | None = None) -> None:
        """`on_lost` is given if the connection was counted when it was accepted."""
        self._site = site
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.parser = httptools.HttpRequestParser(self)
        self._queue: deque[ProxiedRequest] = deque()  # the first one is being answered
        self._receiving: ProxiedRequest | None = None  # whose body is arriving
        self._tunnel: BackendConnection | None = None
        self._out: list[bytes] = []
        self._early: bytes | None = None  # bytes behind a request for a WebSocket; None: no such
        self._paused = self._closing = self._lingering = self._in_head = self._broken = False
        self._resets = False
        self._unsent = -1  # bytes not taken by a client that stopped reading; -1: it reads
        self._new_head()
        self.deadline = NEVER
        self.peer, self.proto, self.trusted = b"", b"http", False
        self._leave = on_lost

    def __repr__(self) -> str:
        state = "tunnel" if self._tunnel else "closing" if self._closing else "open"
        return f"<ClientConnection {self.peer.decode()} {state}, requests {len(self._queue)}>"

    def _new_head(self) -> None:
        self._target = b""
        self._headers: Headers = []
        self._trailers: Headers = []
        self._head_bytes = self._extra_bytes = 0

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        if self._leave is None:
            self._leave = self._site.gate.enter(address)
        if self._leave is None:
            self._closing = True
            self._transport.abort()
            return
        self.peer = address.encode() or b"unknown"
        self.proto = b"https" if transport.get_extra_info("sslcontext") else b"http"
        self.trusted = self._site.trusts(address)
        self._site.connections.add(self)
        self._rearm()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._leave is not None:
            self._leave()
        self._site.connections.discard(self)
        self._closing = True
        self.deadline = NEVER
        if self._tunnel is not None:
            tunnel, self._tunnel = self._tunnel, None
            self._queue[0].backend = tunnel.request = None
            tunnel.close_tunnel()
        while self._queue:
            self._queue.popleft().client_gone()

    def eof_received(self) -> None:
        return  # closes the transport: a client that sends no more is gone

    def data_received(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel.send_tunnel(data)
        elif self._lingering or self._closing:
            return
        elif self._early is not None:
            self._keep_early(data)
        else:
            self._feed(data)
            if not self._closing:
                self._rearm()

    def _feed(self, data: bytes) -> None:
        while data:
            self._extra_bytes += len(data)
            try:
                self.parser.feed_data(data)
                if self._extra_bytes > heads.HEAD_BYTES * 4 and self._in_head:
                    raise Refusal(431, "the request's head is too long")
                if self._extra_bytes > heads.HEAD_BYTES * 4:
                    raise Refusal(400, "chunk extensions or trailers are too long")
                return
            except httptools.HttpParserUpgrade as error:
                # Everything but a WebSocket goes on as HTTP/1.1, which a server may choose.
                data = data[error.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                last = self._queue[-1] if self._queue else None
                if last is not None and last.head.websocket:
                    self._early = b""
                    self._keep_early(data)
                    return
            except httptools.HttpParserCallbackError as error:
                cause = error.__context__
                if isinstance(cause, Refusal):
                    self._refuse(cause)
                else:
                    log.error("a request failed", exc_info=cause)
                    self.abort()
                return
            except Refusal as refusal:
                self._refuse(refusal)
                return
            except httptools.HttpParserError as error:
                self._not_http(data, error)
                return

    def _not_http(self, data: bytes, error: httptools.HttpParserError) -> None:
        if self._closing:
            return
        if self._queue and self._receiving is None and not self._queue[-1].head.keep_alive:
            return  # bytes behind a request that asked to close
        if data.startswith(_PREFACE) and not self._queue:
            self._closing = True
            self._transport.write(_HTTP2_REFUSAL)
            self._linger()
            return
        self._refuse(Refusal(400, f"not HTTP/1.1: {error}"))

    def _keep_early(self, data: bytes) -> None:
        assert self._early is not None
        self._early += data
        if len(self._early) > BUFFER_BYTES:
            self.pause_reading()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer a message that is not accepted, and close."""
        self._closing = True
        incomplete, self._receiving = self._receiving, None
        if incomplete is not None and incomplete in self._queue:
            self._queue.remove(incomplete)
            incomplete.client_gone()
            if incomplete.response is not None:
                self.abort()  # a part of its answer is sent: nothing may follow
                return
        if self._queue:  # an earlier request is being answered; then the connection ends
            self._broken = True
            return
        self._in_head = False
        text = f"{refusal.message}\n".encode()
        lines = [b"Content-Type: text/plain; charset=utf-8", b"Content-Length: %d" % len(text)]
        reason = heads.reason(refusal.status)
        head = ResponseHead(refusal.status, reason, lines, Framing.LENGTH)
        self._transport.write(
            heads.client_head(head, old_client=False, close=True, added=[]) + text
        )
        self._linger()

    def _linger(self) -> None:
        """
        Close, but read on for a moment.

        A close with unread bytes would take the answer from the client.
        """
        self._lingering = self._closing = True
        self._end_orderly()
        self.deadline = self._site.now() + self._site.limits.linger_seconds
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError, RuntimeError):
                self._transport.write_eof()
            self._resume_transport()
        else:
            self._transport.close()

    # Time.

    def _rearm(self) -> None:
        """Set the deadline for what is waited for now."""
        if self._unsent >= 0 or self._lingering or self._tunnel is not None:
            return
        limits = self._site.limits
        if self._in_head:
            return  # set when it began: a slow head is not given more time for each byte
        if self._receiving is not None:
            self.deadline = NEVER if self._paused else self._site.now() + limits.body_seconds
        elif self._queue:
            self.deadline = NEVER
        else:
            self.deadline = self._site.now() + limits.idle_seconds

    def expire(self) -> None:
        """Act on a deadline that has passed."""
        if self._unsent >= 0:
            unsent = self._transport.get_write_buffer_size()
            if unsent < self._unsent:  # it is slow, but it reads
                self._unsent = unsent
                self.deadline = self._site.now() + self._site.limits.stall_seconds
            else:
                self.abort()
        elif self._lingering:
            self.abort()
        elif self._in_head:
            self.deadline = NEVER
            self._refuse(Refusal(408, "the request's head did not arrive in time"))
        elif self._receiving is not None:
            self._refuse(Refusal(408, "the request's body stopped arriving"))
        else:
            self._closing = True
            self._transport.close()

    # Flow control.

    def pause_reading(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()
            self._rearm()

    def resume_reading(self) -> None:
        if self._paused:
            self._resume_transport()
            self._rearm()

    def _resume_transport(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._unsent = self._transport.get_write_buffer_size()
        self.deadline = self._site.now() + self._site.limits.stall_seconds
        if (backend := self._backend()) is not None:
            backend.pause_reading()

    def resume_writing(self) -> None:
        self._unsent = -1
        self._rearm()
        if self._tunnel is not None:
            self.deadline = NEVER
        if (backend := self._backend()) is not None:
            backend.resume_reading()

    def _backend(self) -> BackendConnection | None:
        if self._tunnel is not None:
            return self._tunnel
        return self._queue[0].backend if self._queue else None

    # The answer, from the first request of the queue.

    def start_response(
        self, request: ProxiedRequest, head: ResponseHead, *, announce_chunked: bool
    ) -> None:
        if not request.head.keep_alive or not request.is_complete:
            self._closing = self._closing or request.is_complete
            close = True
        else:
            close = self._closing
        self._out.append(
            heads.client_head(
                head,
                old_client=request.head.is_old,
                close=close,
                added=request.added,
                announce_chunked=announce_chunked,
            )
        )

    def write(self, data: bytes) -> None:
        self._out.append(data)

    def flush_part(self) -> None:
        """Send what was written of an answer that goes on."""
        self.reset_at_death()
        self.flush()

    def flush(self) -> None:
        if self._out:
            out = self._out
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()

    def finished(self, request: ProxiedRequest) -> None:
        """Go on with the next request; `request` has been answered."""
        if not self._queue or self._queue[0] is not request:
            return
        self._queue.popleft()
        self._end_orderly()
        if not request.is_complete:  # the rest of its body would be read as a request
            self._queue.clear()
            self._receiving = None
            self._linger()
            return
        if not request.head.keep_alive or (self._closing and not self._queue):
            self._close_finished()
            return
        if self._queue:
            if len(self._queue) == 1:
                self.resume_reading()
            self._site.dispatch(self._queue[0])
            return
        if self._early is not None:
            early, self._early = self._early, None
            self._feed(early)
        self.resume_reading()
        if not self._closing:
            self._rearm()

    def _close_finished(self) -> None:
        self._closing = True
        while self._queue:
            self._queue.pop().client_gone()
        if self._broken:
            self._linger()
        else:
            self._transport.close()

    def break_off(self) -> None:
        """Send what was written, then end the connection without the end of the message."""
        self._closing = True
        self._end_orderly()
        self._transport.close()

    def abort(self) -> None:
        """End the connection so that its client sees a reset."""
        self._closing = True
        self._out.clear()
        self.reset_at_death()
        self._transport.abort()

    def reset_at_death(self) -> None:
        """
        From now on the client sees a reset when the socket is closed, also by the kernel.

        Should this process be killed while an answer is awaited or has begun, an orderly end would
        look like the answer's own to HTTP/1.0 clients, and to many a reader of events.
        """
        if not self._resets:
            self._resets = True
            self._set_linger(_RESET)

    def _end_orderly(self) -> None:
        """Undo `reset_at_death`: the answer is whole, or has told its client that it is not."""
        if self._resets:
            self._resets = False
            self._set_linger(_ORDERLY)

    def _set_linger(self, value: bytes) -> None:
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, value)

    # WebSockets.

    def start_tunnel(self, backend: BackendConnection) -> None:
        self.flush_part()
        self._tunnel = backend
        self.deadline = NEVER
        early, self._early = self._early, None
        if early:
            backend.send_tunnel(early)
        self.resume_reading()

    def send_tunnel(self, data: bytes) -> None:
        self._transport.write(data)

    def end_tunnel(self) -> None:
        """Close after what the backend sent is delivered."""
        self._end_orderly()
        self._tunnel = None
        self._closing = True
        self._transport.close()

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        self._new_head()
        self._in_head = True
        self.deadline = self._site.now() + self._site.limits.head_seconds

    def on_url(self, target: bytes) -> None:
        self._target += target
        self._count(len(target))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        headers = self._headers if self._in_head else self._trailers
        headers.append((name, value))
        if len(headers) > heads.HEAD_COUNT:
            raise Refusal(431, f"more than {heads.HEAD_COUNT} headers")

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > heads.HEAD_BYTES:
            raise Refusal(431, f"the request's head is longer than {heads.HEAD_BYTES >> 10} KiB")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = self._extra_bytes = 0
        head = heads.read_request(
            self.parser.get_method(),
            self._target,
            self.parser.get_http_version(),
            self._headers,
            keep_alive=self.parser.should_keep_alive(),
        )
        if len(self._queue) >= PIPELINED_COUNT:
            raise Refusal(400, "too many requests ahead of their answers")
        request = ProxiedRequest(head, self)
        self._queue.append(request)
        self._receiving = request
        if head.framing is Framing.NONE:
            request.is_complete = True
            self._receiving = None
        if len(self._queue) == 1:
            self._site.dispatch(request)
        else:
            self.pause_reading()

    def on_body(self, data: bytes) -> None:
        self._extra_bytes = max(0, self._extra_bytes - len(data) - 16)
        if self._receiving is not None:
            self._receiving.body(data)

    def on_message_complete(self) -> None:
        request, self._receiving = self._receiving, None
        if request is not None:
            request.body_end(self._trailers)
