"""Proxy of `/exchange/…` to the exchange's own process, streams included."""

from __future__ import annotations

from urllib.parse import quote

from bidplane.http.asgi import Receive, Scope, Send, while_connected
from bidplane.http.client.caller import HttpCaller, NoAnswer, UnreadableUrl, trust
from bidplane.http.replies import refusal, refuse, send_reply
from bidplane.http.request import BodyLimit, Disconnected, Request
from bidplane.wire.status import StatusError

LARGEST_BODY = 1 << 20
_BODY = BodyLimit(LARGEST_BODY, too_large=f"the most is {LARGEST_BODY} bytes")
_READY_SECONDS = 2.0
_ANSWER_SECONDS = 20.0  # a stream of rounds may be silent for longer, nothing else

_PASSED = (b"authorization", b"content-type", b"accept")


class ExchangeProxy:
    def __init__(self, url: str, *, ca_file: str) -> None:
        self._url = url
        # The response is passed on unchanged.
        self._http = HttpCaller(
            trust=trust(ca_file=ca_file), headers={"Accept-Encoding": "identity"}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = await request.body(_BODY)
        except Disconnected:
            return
        except StatusError as error:
            await send_reply(send, refusal(error))
            return
        await while_connected(receive, self._forward(scope, body, send))

    async def readiness(self) -> dict[str, str]:
        """Ask the exchange whether it is ready, for the server's own `/readyz`."""
        try:
            answer = await self._http.call("GET", f"{self._url}/readyz", seconds=_READY_SECONDS)
        except NoAnswer as error:
            if error.timed_out:
                return {"exchange": f"no answer within {_READY_SECONDS:g} s"}
            return {"exchange": "it cannot be reached"}
        if answer.code == 200:
            return {"exchange": ""}
        failed = [line for line in answer.text.splitlines() if line.startswith("[-]")]
        return {"exchange": "; ".join(line.removeprefix("[-]") for line in failed) or "not ready"}

    async def _forward(self, scope: Scope, body: bytes, send: Send) -> None:
        # The path as sent: a decoded one may have characters that end a path or begin a query.
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        query = scope["query_string"]
        url = self._url + (path + (b"?" + query if query else b"")).decode("latin-1")
        headers = [(key, value) for key, value in scope["headers"] if key in _PASSED]
        idle_seconds = None if b"follow=" in query else _ANSWER_SECONDS
        started = False
        try:
            async with await self._http.open(
                scope["method"], url, headers=headers, body=body, idle_seconds=idle_seconds
            ) as answer:
                kind = answer.headers.get("content-type", "application/json").encode()
                await send(
                    {
                        "type": "http.response.start",
                        "status": answer.code,
                        "headers": [(b"content-type", kind)],
                    }
                )
                started = True
                async for chunk in answer.chunks():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except UnreadableUrl:
            await refuse(send, 400, "BadRequest", "the path cannot be read")
            return
        except NoAnswer:
            if not started:
                await refuse(
                    send,
                    503,
                    "ServiceUnavailable",
                    "the exchange does not answer; try again in a moment: `bidplane status` says"
                    " how it is",
                )
                return
            # The response had begun: ending it early makes the client ask again.
        await send({"type": "http.response.body", "body": b""})

    async def close(self) -> None:
        await self._http.close()
