"""
The one public address: what is served where.

    /planes/NAME/…                    the agents' and the owner's Kubernetes APIs
    /exchange/v1/…                    prices, wallets, rounds: passed on to the exchange
    /bidplane/v1/agents/NAME/kubeconfig  a fresh credential (POST, owners)
    /bidplane/v1/planes/…             the life of planes (owners)
    /healthz
"""

from __future__ import annotations

from bidplane.web.asgi import App, Receive, Scope, Send, answer, answer_status


class WebApp:
    def __init__(
        self, *, planes: App, exchange: App, credentials: App, life: App | None = None
    ) -> None:
        self._routes = {"planes": planes, "exchange": exchange, "bidplane": credentials}
        self._life = life

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path in ("/healthz", "/livez", "/readyz"):
            await answer(send, 200, b"ok", "text/plain")
            return
        if self._life is not None and path.startswith("/bidplane/v1/planes"):
            await self._life(scope, receive, send)
            return
        route = self._routes.get(path.lstrip("/").partition("/")[0])
        if route is None:
            await answer_status(
                send,
                404,
                "NotFound",
                f"nothing is served at {path}; a plane is at /planes/NAME",
            )
            return
        await route(scope, receive, send)
