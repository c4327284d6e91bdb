"""
A connection to a backend, which carries one request at a time.

A backend may break off, stall, answer nonsense or answer early: each ends in a named error for the
client, or, once the client has part of an answer, in a connection that is visibly cut off.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import httptools

from bidplane.http.proxy import heads
from bidplane.http.proxy.heads import BadResponse, Framing, Headers, ResponseHead
from bidplane.http.proxy.request import ProxiedRequest

if TYPE_CHECKING:
    from bidplane.http.proxy.pool import Address, BackendPool

NEVER = float("inf")


class BackendConnection(asyncio.Protocol):
    """One connection to `address`; `request` is what it carries now."""

    __slots__ = (
        "_body_sent",
        "_complete",
        "_extra",
        "_framing_bytes",
        "_head_bytes",
        "_headers",
        "_interim",
        "_keep_alive",
        "_parser",
        "_pool",
        "_reason",
        "_response",
        "_trailers",
        "_transport",
        "active_at",
        "address",
        "answered",
        "deadline",
        "is_reused",
        "request",
        "tunnel",
        "usable",
        "used_at",
    )

    def __init__(self, pool: BackendPool, address: Address) -> None:
        self._pool, self.address = pool, address
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._parser: httptools.HttpResponseParser | None = None
        self.request: ProxiedRequest | None = None
        self.usable = False
        self.is_reused = False
        self.answered = False  # a byte of the answer came
        self.used_at = 0.0
        self.deadline = NEVER
        self.tunnel = False
        self.active_at = 0.0  # when something last passed through the tunnel
        self._reset()

    def __repr__(self) -> str:
        state = "tunnel" if self.tunnel else "busy" if self.request else "idle"
        return f"<BackendConnection {self.address[0]}:{self.address[1]} {state}>"

    def _reset(self) -> None:
        self._response: ResponseHead | None = None
        self._headers: Headers = []
        self._trailers: Headers = []
        self._reason = b""
        self._head_bytes = 0
        self._framing_bytes = 0
        self._interim = self._complete = self._extra = self._keep_alive = False

    # The request.

    def begin(self, request: ProxiedRequest) -> None:
        """Send a request: its head and what has arrived of its body."""
        self._reset()
        self.request, request.backend = request, self
        self.answered = False
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        client = request.client
        head = heads.backend_head(request.head, client.peer, client.proto, trusted=client.trusted)
        parts = [head]
        for data in request.buffered:
            self._frame(data, parts)
        request.buffered.clear()
        request.buffered_size = 0
        if request.is_complete and request.head.framing is Framing.CHUNKED:
            parts.append(heads.trailer_block(request.trailers))
        self.deadline = self._pool.now() + self._pool.limits.response_seconds
        self._transport.write(b"".join(parts) if len(parts) > 1 else head)
        client.resume_reading()

    def _frame(self, data: bytes, parts: list[bytes]) -> None:
        assert self.request is not None
        if self.request.head.framing is Framing.CHUNKED:
            parts.append(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            parts.append(data)

    def send_body(self, data: bytes) -> None:
        parts: list[bytes] = []
        self._frame(data, parts)
        self._transport.write(parts[0])
        self.deadline = self._pool.now() + self._pool.limits.response_seconds

    def send_end(self, trailers: Headers) -> None:
        assert self.request is not None
        if self.request.head.framing is Framing.CHUNKED:
            self._transport.write(heads.trailer_block(trailers))

    def cancel(self) -> None:
        """End the connection: its request has nobody left to answer."""
        self.request = None
        self.close()

    def close(self) -> None:
        self.usable = False
        self.deadline = NEVER
        self._transport.abort()

    def send_tunnel(self, data: bytes) -> None:
        self._transport.write(data)
        self._passed()

    def _passed(self) -> None:
        self.active_at = self._pool.now()
        self.deadline = self.active_at + self._pool.limits.tunnel_seconds

    def close_tunnel(self) -> None:
        """Close after what was written is sent."""
        self._transport.close()

    def expire(self) -> None:
        """Act on a deadline that has passed."""
        request = self.request
        if request is None:
            self.close()
        elif self.tunnel:
            request.client.abort()
        else:
            limit = self._pool.limits.response_seconds
            self._fail(504, f"the backend sent nothing for {limit:g} seconds")

    # The client reads slower than the backend answers, or faster again.

    def pause_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()
            self.deadline = NEVER  # the client's limit counts now

    def resume_reading(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self.deadline = self._pool.now() + self._pool.limits.response_seconds

    def pause_writing(self) -> None:
        if self.request is not None:
            self.request.client.pause_reading()

    def resume_writing(self) -> None:
        if self.request is not None:
            self.request.client.resume_reading()

    # The answer.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.usable = True
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        request = self.request
        if request is None:  # bytes that no request asked for
            self.close()
            return
        if self.tunnel:
            self._passed()
            request.client.send_tunnel(data)
            return
        self.answered = True
        self._framing_bytes += len(data)
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
            self._check_framing()
        except httptools.HttpParserUpgrade as error:
            self._switch(request, data[error.args[0] :])
            return
        except httptools.HttpParserCallbackError as error:
            self._fail(502, f"the backend's answer was not accepted: {error.__context__}")
            return
        except (httptools.HttpParserError, BadResponse) as error:
            if not self._complete:
                self._fail(502, f"the backend's answer is not HTTP/1.1: {error}")
                return
            self._extra = True
        if self._complete:
            self._finish(request)
        else:
            self.deadline = self._pool.now() + self._pool.limits.response_seconds
            request.client.flush_part()

    def _check_framing(self) -> None:
        """Bound what is neither head nor body: chunk extensions and trailers."""
        if self._response is None and self._framing_bytes > heads.HEAD_BYTES * 2:
            raise BadResponse("its head is too long")
        if self._framing_bytes > heads.HEAD_BYTES * 4:
            raise BadResponse("its chunks' extensions or trailers are too long")

    def _switch(self, request: ProxiedRequest, rest: bytes) -> None:
        if self._response is None or not self._response.websocket:
            self._fail(502, "the backend switched to a protocol that was not asked for")
            return
        self.tunnel = True
        self._passed()
        request.client.start_tunnel(self)
        if rest:
            request.client.send_tunnel(rest)

    def _finish(self, request: ProxiedRequest) -> None:
        reusable = not self._extra and request.is_complete and self._keep_alive
        if request.head.method == b"HEAD":
            self._parser = None  # it may still wait for a body
        self.request = None
        self.deadline = NEVER
        request.response_end(self._trailers)
        if reusable and self.usable:
            self._pool.release(self)
        else:
            self.close()

    def eof_received(self) -> None:
        return  # closes the transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._pool.lost(self)
        request = self.request
        if request is None:
            return
        if self.tunnel:
            self.request = None
            request.client.end_tunnel()
            return
        response = self._response
        if response is not None and response.framing is Framing.CLOSE and exc is None:
            self.request = None
            request.response_end([])
            return
        if not self.answered and self.is_reused and request.is_replayable:
            self.request = request.backend = None
            self._pool.forward(request, self.address, new=True)
            return
        when = "in the middle of its answer" if response else "before it answered"
        self._fail(502, f"the backend closed the connection {when}")

    def _fail(self, status: int, text: str) -> None:
        request = self.request
        self.request = None
        self.close()
        if request is not None:
            request.backend = None
            request.fail(status, text + "\n")

    # The parser's callbacks.

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_message_begin(self) -> None:
        if self._complete:
            self._extra = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > heads.HEAD_BYTES:
            raise BadResponse("its headers are too long")
        headers = self._headers if self._response is None else self._trailers
        headers.append((name, value))
        if len(headers) > heads.HEAD_COUNT:
            raise BadResponse("it has too many headers")

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        request = self.request
        assert request is not None
        assert self._parser is not None
        status = self._parser.get_status_code()
        if not 100 <= status <= 599:
            raise BadResponse(f"the status {status}")
        head = heads.read_response(status, self._reason, self._headers, request.head)
        self._framing_bytes = 0
        if status < 200 and status != 101:
            self._interim, self._headers, self._reason = True, [], b""
            request.interim(head)
            return
        self._response = head
        self._head_bytes = 0
        chunked = any(name.lower() == b"transfer-encoding" for name, _ in self._headers)
        request.start_response(head, announce_chunked=chunked and request.head.method == b"HEAD")
        if request.head.method == b"HEAD":
            self._complete, self._keep_alive = True, self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._framing_bytes -= len(data) + 16  # what framing a chunk may cost
        self._framing_bytes = max(self._framing_bytes, 0)
        if self._complete:
            self._extra = True
        elif self.request is not None:
            self.request.response_body(data)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif not self._complete:
            assert self._parser is not None
            self._complete, self._keep_alive = True, self._parser.should_keep_alive()
