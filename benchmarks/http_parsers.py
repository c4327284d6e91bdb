"""
CPU time of reading one request with httptools (llhttp) and with h11.

    python benchmarks/http_parsers.py
"""

from __future__ import annotations

import time

import h11
import httptools

REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: llm.alice.example\r\nUser-Agent: bench\r\n"
    b"Accept: */*\r\nAccept-Encoding: gzip, deflate\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer 0123456789abcdef\r\nContent-Length: 32\r\n\r\n" + b"x" * 32
)
ROUNDS = 20_000


class Reader:
    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.count = 0

    def on_url(self, url: bytes) -> None:
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        pass

    def on_message_complete(self) -> None:
        self.count += 1


def with_httptools() -> None:
    reader = Reader()
    parser = httptools.HttpRequestParser(reader)
    for _ in range(ROUNDS):
        parser.feed_data(REQUEST)
    assert reader.count == ROUNDS


def with_h11() -> None:
    for _ in range(ROUNDS):
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(REQUEST)
        while not isinstance(connection.next_event(), h11.EndOfMessage):
            pass


for work in (with_httptools, with_h11):
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        work()
        seconds.append(time.process_time() - begin)
    print(f"{work.__name__:15} {min(seconds) / ROUNDS * 1e6:6.1f} µs a request")
