"""Passes `/exchange/…` on to the exchange's own process, streams included."""

from __future__ import annotations

import ssl
from urllib.parse import quote

import httpx2

from bidplane.runtime.serve import while_connected
from bidplane.web.asgi import (
    LARGEST_BODY,
    Disconnected,
    Receive,
    Scope,
    Send,
    TooLarge,
    answer_status,
    read_body,
)

_PASSED = (b"authorization", b"content-type", b"accept")


class ExchangeProxy:
    def __init__(self, url: str, *, ca_file: str) -> None:
        self._url = url
        self._http = httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=ca_file),
            timeout=httpx2.Timeout(10.0, read=None),
            # A stream keeps its connection; those who watch must not shut out those who ask.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            # What comes is passed on as it is.
            headers={"Accept-Encoding": "identity"},
            trust_env=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive)
        except Disconnected:
            return
        except TooLarge:
            await answer_status(
                send, 413, "RequestEntityTooLarge", f"the most is {LARGEST_BODY} bytes"
            )
            return
        await while_connected(receive, self._pass_on(scope, body, send))

    async def _pass_on(self, scope: Scope, body: bytes, send: Send) -> None:
        # As it was sent: a decoded path may hold what ends one, or begins a query.
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        query = scope["query_string"]
        url = self._url + (path + (b"?" + query if query else b"")).decode("latin-1")
        headers = [(key, value) for key, value in scope["headers"] if key in _PASSED]
        started = False
        try:
            async with self._http.stream(
                scope["method"], url, headers=headers, content=body
            ) as response:
                kind = response.headers.get("content-type", "application/json").encode()
                await send(
                    {
                        "type": "http.response.start",
                        "status": response.status_code,
                        "headers": [(b"content-type", kind)],
                    }
                )
                started = True
                async for chunk in response.aiter_raw():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except httpx2.InvalidURL:
            await answer_status(send, 400, "BadRequest", "the path cannot be read")
            return
        except httpx2.TransportError:
            if not started:
                await answer_status(
                    send,
                    503,
                    "ServiceUnavailable",
                    "the exchange does not answer; it is restarting, try again in a moment",
                )
                return
            # The answer had begun: ending it early tells the client to ask again.
        await send({"type": "http.response.body", "body": b""})

    async def close(self) -> None:
        await self._http.aclose()
