"""
The routes of the one public address.

    /planes/NAME/…                    the agents' and the owner's Kubernetes APIs
    /api, /apis, /version, …          the same, for pods: their token says which plane is theirs
    /exchange/v1/…                    prices, wallets, rounds: passed on to the exchange
    /bidplane/v1/agents/NAME/kubeconfig  a fresh credential (POST, owners)
    /bidplane/v1/users/NAME           a credential for a person (POST, owners)
    /bidplane/v1/planes/…             the life of planes (owners)
    /bidplane/v1/proposals/…          people's decisions on Proposals

In front of it, `runtime/supervision/probes.py` answers /healthz, /readyz and /metrics.
"""

from __future__ import annotations

from collections.abc import Callable

from bidplane.http.asgi import App, Receive, Scope, Send
from bidplane.http.replies import refuse
from bidplane.http.request import bearer_of

_ROOT_PATHS = frozenset({"api", "apis", "version", "openapi"})


class WebApp:
    def __init__(
        self,
        *,
        planes: App,
        exchange: App,
        credentials: App,
        life: App | None = None,
        decisions: App | None = None,
        plane_of: Callable[[str], str | None] = lambda token: None,
    ) -> None:
        self._routes = {"planes": planes, "exchange": exchange, "bidplane": credentials}
        self._planes = planes
        self._life, self._decisions = life, decisions
        self._plane_of = plane_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request at the part that its path names."""
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if self._life is not None and path.startswith("/bidplane/v1/planes"):
            await self._life(scope, receive, send)
            return
        if self._decisions is not None and path.startswith("/bidplane/v1/proposals"):
            await self._decisions(scope, receive, send)
            return
        first = path.lstrip("/").partition("/")[0]
        if first in _ROOT_PATHS and (plane := self._plane_of(bearer_of(scope))):
            # Clients in a pod know only a host and a port. The plane checks the token.
            await self._planes(_with_prefix(f"/planes/{plane}", scope), receive, send)
            return
        route = self._routes.get(first)
        if route is None:
            await refuse(
                send,
                404,
                "NotFound",
                f"nothing is served at {path}; a plane is at /planes/NAME",
            )
            return
        await route(scope, receive, send)


def _with_prefix(prefix: str, scope: Scope) -> Scope:
    moved = {**scope, "path": prefix + scope["path"]}
    if scope.get("raw_path") is not None:
        moved["raw_path"] = prefix.encode() + scope["raw_path"]
    return moved
