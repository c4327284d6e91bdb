"""However a client's bytes are cut into segments, the same requests are read."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bidplane.http.proxy.client import ClientConnection
from bidplane.http.proxy.request import ProxiedRequest
from bidplane.http.proxy.server import Site
from bidplane.http.server.accepting import Bounds

MESSAGES = [
    b"GET /a?b=1 HTTP/1.1\r\nHost: a\r\nAccept: x\r\n\r\n",
    b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"PUT /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;x=1\r\nabc\r\n4\r\ndefg\r\n0\r\nX-Sum: 7\r\n\r\n",
    b"GET /d HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"\r\nHEAD /e HTTP/1.1\r\nHost: a\r\n\r\n",
]
LOOP = asyncio.new_event_loop()  # one for all: making them costs more than the test
REFUSED = b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"


class FakeTransport(asyncio.Transport):
    """A transport without a socket: what is written is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def read(segments: list[bytes]) -> tuple[list[tuple[Any, ...]], bytes]:
    """Return the requests that were read from segments, and what the client was answered."""
    requests: list[ProxiedRequest] = []
    bodies: dict[int, bytes] = {}

    async def feed() -> bytes:
        bounds = Bounds(total=9, per_address=9, per_loopback_address=9)
        connection = ClientConnection(Site(requests.append, bounds=bounds))
        transport = FakeTransport()
        connection.connection_made(transport)
        for segment in segments:
            if not transport.closed:
                connection.data_received(segment)
            while requests and requests[-1].is_complete and not requests[-1].ended:
                bodies[len(requests) - 1] = b"".join(requests[-1].buffered)
                requests[-1].answer(200, "ok")
        return transport.written

    written = LOOP.run_until_complete(feed())
    return [
        (r.head.method, r.head.target, r.head.lines, bodies.get(i), r.trailers)
        for i, r in enumerate(requests)
    ], written


@given(
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.integers(1, 400), max_size=12),
)
def test_segments_do_not_matter(messages: list[bytes], refused_last: bool, cuts: list[int]) -> None:
    data = b"".join(messages) + (REFUSED if refused_last else b"")
    places = sorted({cut for cut in cuts if cut < len(data)})
    segments = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    (whole, answers), (cut, _) = read([data]), read(segments)
    assert cut == whole
    assert len(whole) == len(messages), "one that is refused is never passed on"
    assert answers.count(b"HTTP/1.1 200 OK") == len(messages)
    # Behind an answer that says `Connection: close` nothing may follow, not even a refusal.
    assert answers.count(b"HTTP/1.1 400 ") <= refused_last


def test_every_place_to_cut_a_message() -> None:
    for message in MESSAGES:
        whole = read([message])
        for place in range(1, len(message)):
            assert read([message[:place], message[place:]]) == whole, message[:place]
