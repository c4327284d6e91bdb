"""
A request on its way: held, answered, or forwarded to one backend.

Its bytes come from a client connection and leave through a backend connection; whichever side is
slower stops the other one from reading. Until there is a backend, at most BUFFER_BYTES of its body
(and what one read brought beyond) wait here. `on_end` is called exactly once, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bidplane.http.proxy import heads
from bidplane.http.proxy.heads import Framing, Headers, RequestHead, ResponseHead

if TYPE_CHECKING:
    from bidplane.http.proxy.backend import BackendConnection
    from bidplane.http.proxy.client import ClientConnection

BUFFER_BYTES = 64 << 10
_IDEMPOTENT = frozenset([b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"])


def _ignore(request: ProxiedRequest) -> None:
    pass


def _answer_unreachable(request: ProxiedRequest, reason: str) -> None:
    request.fail(502, f"the backend cannot be reached: {reason}\n")


class ProxiedRequest:
    """One request of a client, and the state of its answer."""

    __slots__ = (
        "added",
        "backend",
        "buffered",
        "buffered_size",
        "client",
        "ended",
        "error_event",
        "head",
        "is_complete",
        "on_end",
        "on_unreachable",
        "response",
        "trailers",
    )

    def __init__(self, head: RequestHead, client: ClientConnection) -> None:
        self.head, self.client = head, client
        self.buffered: list[bytes] = []
        self.buffered_size = 0
        self.is_complete = False  # its body has arrived whole
        self.trailers: Headers = []
        self.backend: BackendConnection | None = None
        self.response: ResponseHead | None = None  # what the client got the head of
        self.ended = False
        self.added: list[bytes] = []  # header lines for its answer
        # Called with the request itself, which holds no reference to itself: it goes at once.
        self.on_end: Callable[[ProxiedRequest], None] = _ignore
        # Nothing was sent yet: whoever dispatched may hold the request instead.
        self.on_unreachable: Callable[[ProxiedRequest, str], None] = _answer_unreachable
        # The error of a stream that had begun, in the form its client's library raises.
        self.error_event: Callable[[str], bytes] | None = None

    def __repr__(self) -> str:
        where = "ended" if self.ended else "forwarded" if self.backend else "waiting"
        return f"<ProxiedRequest {self.head.method.decode()} {self.head.target.decode()} {where}>"

    @property
    def is_replayable(self) -> bool:
        """Tell if it can be sent again after a connection broke before any answer."""
        return (
            self.head.framing is Framing.NONE
            and self.head.method in _IDEMPOTENT
            and not self.head.websocket
        )

    # From the client.

    def body(self, data: bytes) -> None:
        if self.backend is not None:
            self.backend.send_body(data)
        elif not self.ended:
            self.buffered.append(data)
            self.buffered_size += len(data)
            if self.buffered_size > BUFFER_BYTES:
                self.client.pause_reading()

    def body_end(self, trailers: Headers) -> None:
        self.is_complete, self.trailers = True, trailers
        if self.backend is not None:
            self.backend.send_end(trailers)

    def client_gone(self) -> None:
        if self.backend is not None:
            self.backend.cancel()
            self.backend = None
        self._end()

    # From whoever dispatches.

    def answer(self, status: int, text: str, headers: Headers | None = None) -> None:
        """Answer with a text of ours, and end."""
        body = text.encode()
        fields = headers or []
        if not any(name.lower() == b"content-type" for name, _ in fields):
            fields = [(b"Content-Type", b"text/plain; charset=utf-8"), *fields]
        lines = [name + b": " + value for name, value in fields]
        lines.append(b"Content-Length: %d" % len(body))
        head = ResponseHead(status, heads.reason(status), lines, Framing.LENGTH, len(body))
        self.start_response(head)
        if self.head.method != b"HEAD":
            self.client.write(body)
        self.finish()

    def await_backend(self) -> None:
        """Tell that it may wait long: its client sees a reset if this process is killed."""
        self.client.reset_at_death()

    def start_stream(self, lines: list[bytes], error_event: Callable[[str], bytes]) -> None:
        """
        Commit to a stream before there is a backend; its answer's body is appended later.

        From here on a failure is `error_event`, then a broken connection: a stream that ends well
        looks complete.
        """
        self.error_event = error_event
        self.start_response(ResponseHead(200, b"OK", lines, Framing.CHUNKED))
        self.client.flush_part()

    def write_stream(self, data: bytes) -> None:
        """Send a part of a stream that `start_stream` began."""
        self.response_body(data)
        self.client.flush_part()

    def fail(self, status: int, text: str, headers: Headers | None = None) -> None:
        """Answer with an error; a response that has begun gets its error event and is cut off."""
        if self.ended:
            return
        if self.response is None:
            self.answer(status, text, headers)
            return
        if self.error_event is not None:
            self.response_body(self.error_event(text))
            self.client.flush()
            self.client.break_off()
        else:
            self.client.abort()

    # From the backend.

    def interim(self, head: ResponseHead) -> None:
        if not self.head.is_old and self.response is None:
            self.client.write(heads.client_head(head, old_client=False, close=False, added=[]))

    def start_response(self, head: ResponseHead, *, announce_chunked: bool = False) -> None:
        """Send the head of the answer; the backend's joins a stream that we began."""
        if self.error_event is not None and self.response is not None:
            self._join_stream(head)
            return
        self.response = head
        self.client.start_response(self, head, announce_chunked=announce_chunked)

    def _join_stream(self, head: ResponseHead) -> None:
        is_stream = any(
            line.lower().startswith(b"content-type: text/event-stream") for line in head.lines
        )
        if head.status != 200 or not is_stream:
            raise heads.BadResponse(f"status {head.status} where an event stream had begun")

    def response_body(self, data: bytes) -> None:
        response = self.response
        assert response is not None, "the head is sent first"
        if response.framing is Framing.LENGTH or self.head.is_old:
            self.client.write(data)
        else:
            self.client.write(b"%x\r\n%b\r\n" % (len(data), data))

    def response_end(self, trailers: Headers) -> None:
        response = self.response
        assert response is not None, "the head is sent first"
        if response.framing in (Framing.CHUNKED, Framing.CLOSE) and not self.head.is_old:
            self.client.write(heads.trailer_block(trailers) if trailers else b"0\r\n\r\n")
        self.finish()

    def finish(self) -> None:
        self.backend = None
        self.client.flush()
        self._end()
        self.client.finished(self)

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self.buffered.clear()
            self.on_end(self)
