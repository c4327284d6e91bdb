"""
The tools over HTTP, only for holders of the agent's credential.

Every request carries the bearer token that the server itself acts with; a local process without it
could spend the agent's credits. Host and Origin are checked too, so that a page in a browser
cannot reach the server under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import hmac

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from bidplane.http.asgi import App, Receive, Scope, Send
from bidplane.http.replies import Reply, json_reply, send_reply
from bidplane.http.request import bearer_in

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")


class RequireToken:
    """Passes on requests that carry `token`; answers 401 to the others."""

    def __init__(self, app: App, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_authorized(scope):
            await self._app(scope, receive, send)
        else:
            await send_reply(send, _unauthorized())

    def _is_authorized(self, scope: Scope) -> bool:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1:
            return False
        return hmac.compare_digest(bearer_in(values[0]).encode("latin-1"), self._token)


def _unauthorized() -> Reply:
    reply = json_reply(
        {
            "error": "invalid_token",
            "error_description": "send the agent's token, which is in its kubeconfig, as"
            " `Authorization: Bearer TOKEN`",
        },
        401,
    )
    challenge = b'Bearer realm="bidplane mcp", error="invalid_token"'
    reply.headers.append((b"www-authenticate", challenge))
    return reply


async def serve(server: MCPServer[None], *, token: str, port: int) -> None:
    """Serve the tools at /mcp until cancelled."""
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[f"{name}:{port}" for name in _NAMES],
        allowed_origins=[f"http://{name}:{port}" for name in _NAMES],
    )
    app = server.streamable_http_app(transport_security=security, host=HOST)
    config = uvicorn.Config(
        RequireToken(app, token), host=HOST, port=port, log_level="warning", ws="none"
    )
    await uvicorn.Server(config).serve()
