"""
Servers with the APIs by which applications sleep and tell their queues, written after their
documentation: vLLM's sleep mode, ComfyUI's `/free` and `/queue`, llama.cpp's `/props`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class Application:
    """A pod's answers, by its state."""

    def __init__(self) -> None:
        self.asleep = False
        self.calls: list[str] = []
        self.refuses: set[str] = set()  # paths that answer 500
        self.running: list[int] = []  # of ComfyUI's queue
        self.queue_body: bytes | None = None  # in place of that
        self.on_call: Callable[[str], None] = lambda call: None

    def answer(self, head: bytes) -> bytes:
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        path = target.partition("?")[0]
        routes: dict[str, Callable[[], Any]] = {
            "/sleep": lambda: self._turn(True),
            "/wake_up": lambda: self._turn(False),
            "/collective_rpc": dict,
            "/is_sleeping": lambda: {"is_sleeping": self.asleep},
            "/props": lambda: {"is_sleeping": self.asleep},
            "/completion": lambda: self._turn(False),
            "/free": dict,
            "/system_stats": lambda: {"devices": []},
            "/queue": lambda: {"queue_running": self.running, "queue_pending": []},
        }
        if path not in routes:
            # vLLM does not answer while it sleeps; a test sees that it was asked.
            self.calls.append(f"client {path}{' asleep' if self.asleep else ''}")
            return _reply(200, b"ok")
        self.calls.append(f"{method} {target}")
        if path in self.refuses:
            return _reply(500, b"it failed")
        if path == "/queue" and self.queue_body is not None:
            return _reply(200, self.queue_body)
        body = json.dumps(routes[path]()).encode()
        self.on_call(f"{method} {target}")
        return _reply(200, body)

    def _turn(self, asleep: bool) -> dict[str, Any]:
        self.asleep = asleep
        return {}


def _reply(code: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (code, len(body), body)
