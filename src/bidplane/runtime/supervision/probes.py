"""
The paths by which a process is probed, in front of its own app.

    /healthz, /livez   it answers
    /readyz            every check passes; `?verbose` lists them
    /metrics           for Prometheus: owners, and clients with a token for it
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bidplane.http.asgi import App, Message, Receive, Scope, Send
from bidplane.http.replies import TEXT, Reply, refusal, send_reply
from bidplane.http.request import bearer_of
from bidplane.runtime.identity.credentials import METRICS_PLANE, InvalidToken, Tokens
from bidplane.runtime.metrics import CONTENT_TYPE, ProcessMetrics
from bidplane.runtime.supervision.health import Health, readiness_page
from bidplane.wire import status

OtherChecks = Callable[[], Awaitable[dict[str, str]]]  # by check, its problem or ""

_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/metrics"})


async def _no_other_checks() -> dict[str, str]:
    return {}


class ProbedApp:
    """
    An ASGI app with probes. `other_checks` are those that must be awaited, such as of another
    process.
    """

    def __init__(
        self,
        app: App,
        *,
        health: Health,
        metrics: ProcessMetrics,
        tokens: Tokens,
        now: Callable[[], float],
        other_checks: OtherChecks = _no_other_checks,
    ) -> None:
        self._app, self._health, self._metrics = app, health, metrics
        self._tokens, self._now, self._other_checks = tokens, now, other_checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        requests = self._metrics.requests

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                requests.labels(method, str(message["status"])).inc()
            await send(message)

        path = scope["path"]
        if path in _PATHS and method in ("GET", "HEAD"):
            await send_reply(counted, await self._answer(path, scope))
        else:
            await self._app(scope, receive, counted)

    async def _answer(self, path: str, scope: Scope) -> Reply:
        if path == "/metrics":
            problem = self._metrics_refusal(scope)
            if problem:
                return refusal(status.unauthorized(problem))
            return Reply(self._metrics.page(), content_type=CONTENT_TYPE.encode())
        if path == "/readyz":
            results = {**self._health.results(), **await self._other_checks()}
            verbose = b"verbose" in scope.get("query_string", b"")
            code, page = readiness_page(results, verbose=verbose)
            return Reply(page, code, TEXT)
        return Reply(b"ok", content_type=TEXT)

    def _metrics_refusal(self, scope: Scope) -> str:
        token = bearer_of(scope)
        if not token:
            return "show a bearer token: `bidplane metrics token` makes one"
        try:
            identity = self._tokens.verify(token, now=self._now())
        except InvalidToken as error:
            return str(error)
        if identity.is_owner or identity.plane == METRICS_PLANE:
            return ""
        return "metrics are for owners: `bidplane metrics token` makes a token for Prometheus"
