"""Passes `/exchange/…` on to the exchange's own process, streams included."""

from __future__ import annotations

import ssl

import httpx2

from bidplane.web.asgi import Receive, Scope, Send, answer_status, read_body

_PASSED = (b"authorization", b"content-type", b"accept")


class ExchangeProxy:
    def __init__(self, url: str, *, ca_file: str) -> None:
        self._url = url
        self._http = httpx2.AsyncClient(
            verify=ssl.create_default_context(cafile=ca_file),
            timeout=httpx2.Timeout(10.0, read=None),
            trust_env=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope["query_string"].decode()
        url = f"{self._url}{scope['path']}" + (f"?{query}" if query else "")
        headers = [(key, value) for key, value in scope["headers"] if key in _PASSED]
        body = await read_body(receive)
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
