"""
The life of planes, for owners.

    GET    /bidplane/v1/planes                  all of them
    POST   /bidplane/v1/planes/NAME             create
    DELETE /bidplane/v1/planes/NAME
    POST   /bidplane/v1/planes/NAME/sleep, …/wake, …/fork?to=NAME
    GET    /bidplane/v1/planes/NAME/snapshot    one file
    PUT    /bidplane/v1/planes/NAME?same=true   restore that file (under its old uid)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from bidplane.errors import ApiError
from bidplane.machinery.clock import Clock
from bidplane.runtime.credentials import InvalidToken, Tokens
from bidplane.web.asgi import (
    Disconnected,
    Receive,
    Scope,
    Send,
    TooLarge,
    answer,
    answer_status,
    bearer,
    read_body,
)

LARGEST_SNAPSHOT = 256 << 20
_PATH = re.compile(r"/bidplane/v1/planes(?:/([^/]+)(?:/(sleep|wake|fork|snapshot))?)?")


class Life(Protocol):
    """What can be done to a plane; each raises `ApiError` when it cannot."""

    def list(self) -> Sequence[Mapping[str, Any]]: ...

    async def create(self, name: str) -> None: ...

    async def delete(self, name: str) -> None: ...

    async def sleep(self, name: str) -> None: ...

    async def wake(self, name: str) -> None: ...

    async def fork(self, name: str, new: str) -> None: ...

    async def snapshot(self, name: str) -> bytes: ...

    async def restore(self, name: str, snapshot: bytes, *, same: bool) -> None: ...


class PlanesApp:
    def __init__(self, life: Life, tokens: Tokens, *, clock: Clock) -> None:
        self._life, self._tokens, self._clock = life, tokens, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            asker = self._tokens.verify(bearer(scope), now=self._clock.now())
        except InvalidToken as error:
            await answer_status(send, 401, "Unauthorized", str(error))
            return
        if not asker.is_owner:
            await answer_status(send, 403, "Forbidden", "only the owner changes planes")
            return
        found = _PATH.fullmatch(scope["path"])
        query = parse_qs(scope["query_string"].decode("latin-1"))
        try:
            said = await self._do(scope["method"], found, query, receive)
        except Disconnected:
            return
        except TooLarge:
            words = f"a snapshot may have at most {LARGEST_SNAPSHOT} bytes"
            await answer_status(send, 413, "RequestEntityTooLarge", words)
        except ApiError as error:
            await answer_status(send, error.code, error.reason, str(error))
        else:
            if said is None:
                words = f"{scope['method']} {scope['path']} is nothing that is served"
                await answer_status(send, 404, "NotFound", words)
            else:
                await answer(send, 200, said[0], said[1])

    async def _do(
        self,
        method: str,
        found: re.Match[str] | None,
        query: Mapping[str, Sequence[str]],
        receive: Receive,
    ) -> tuple[bytes, str] | None:
        if found is None:
            return None
        name, action = found[1], found[2]
        match method, action:
            case "GET", None if not name:
                return msgspec.json.encode(list(self._life.list())), "application/json"
            case "GET", "snapshot":
                return await self._life.snapshot(name), "application/vnd.sqlite3"
            case "POST", None if name:
                await self._life.create(name)
            case "POST", "sleep":
                await self._life.sleep(name)
            case "POST", "wake":
                await self._life.wake(name)
            case "POST", "fork" if query.get("to"):
                await self._life.fork(name, query["to"][0])
            case "PUT", None if name:
                body = await read_body(receive, most=LARGEST_SNAPSHOT)
                same = query.get("same") == ["true"]
                await self._life.restore(name, body, same=same)
            case "DELETE", None if name:
                await self._life.delete(name)
            case _:
                return None
        return b"{}", "application/json"
