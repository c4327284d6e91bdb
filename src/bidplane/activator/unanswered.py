"""
Requests that were passed on and get no answer: `responseSeconds` of an Endpoint.

The data path has a limit of its own, between any two bytes. This one is shorter, and ends with the
head of the answer, so that a stream may then take its time.
"""

from __future__ import annotations

from collections.abc import Iterable

from bidplane.activator.refusals import refuse
from bidplane.http.proxy.request import ProxiedRequest


class AnswerLimit:
    """Since when each request waits for the head of its answer; on the loop's clock."""

    def __init__(self) -> None:
        self._since: dict[ProxiedRequest, float] = {}

    def expired(
        self, requests: Iterable[ProxiedRequest], seconds: int, loop_now: float
    ) -> list[ProxiedRequest]:
        """Return the requests that have waited for longer; each is seen at every tick."""
        waiting = {
            request: self._since.get(request, loop_now)
            for request in requests
            if seconds and request.response is None and request.backend is not None
        }
        self._since = waiting
        return [request for request, since in waiting.items() if loop_now - since >= seconds]


def give_up(request: ProxiedRequest, seconds: int) -> None:
    """Answer 504, and end the connection to the backend."""
    backend, request.backend = request.backend, None
    if backend is not None:
        backend.cancel()
    refuse(request, 504, f"the service sent no answer within {seconds} seconds\n")
