"""
The life of planes, for owners.

    GET    /bidplane/v1/planes                  all of them
    POST   /bidplane/v1/planes/NAME             create
    DELETE /bidplane/v1/planes/NAME
    GET    /bidplane/v1/planes/NAME/usage       its usage and its limits
    POST   /bidplane/v1/planes/NAME/limit?pods=N&objects=N&bytes=N&disk=N&definitions=N
    POST   /bidplane/v1/planes/NAME/release     lift its quarantine
    POST   /bidplane/v1/planes/NAME/sleep, …/wake, …/fork?to=NAME
    GET    /bidplane/v1/planes/NAME/snapshot    one file
    PUT    /bidplane/v1/planes/NAME?same=true   restore that file (under its old uid)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, Protocol
from urllib.parse import parse_qs, unquote

from bidplane.api.agent import PlaneLimits
from bidplane.api.http.planes import PlaneSummary, PlaneUsage, QuarantineRelease
from bidplane.http.asgi import Receive, Scope, Send
from bidplane.http.replies import Reply, answer, json_reply
from bidplane.http.request import BodyLimit, Request
from bidplane.http.routes import Route, Routes
from bidplane.machinery.clock import Clock
from bidplane.runtime.identity.credentials import InvalidToken, Tokens
from bidplane.wire import status

BASE = "/bidplane/v1/planes"
LARGEST_SNAPSHOT = 256 << 20
_SNAPSHOT = BodyLimit(
    LARGEST_SNAPSHOT,
    seconds=3600,
    too_large=f"a snapshot may have at most {LARGEST_SNAPSHOT} bytes",
)


class PlaneOperations(Protocol):
    """The operations on planes; each raises `ApiError` when it fails."""

    def list(self) -> Sequence[PlaneSummary]: ...

    async def create(self, name: str) -> None: ...

    async def delete(self, name: str) -> None: ...

    async def limit(self, name: str, limits: Mapping[str, int]) -> None: ...

    async def release(self, name: str) -> QuarantineRelease: ...

    async def usage(self, name: str) -> PlaneUsage: ...

    async def sleep(self, name: str) -> None: ...

    async def wake(self, name: str) -> None: ...

    async def fork(self, name: str, new: str) -> None: ...

    async def snapshot(self, name: str) -> bytes: ...

    async def restore(self, name: str, snapshot: bytes, *, same_uid: bool) -> None: ...


class PlanesApp:
    def __init__(self, operations: PlaneOperations, tokens: Tokens, *, clock: Clock) -> None:
        self._operations, self._tokens, self._clock = operations, tokens, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await answer(request, send, self._answer(request))

    async def _answer(self, request: Request) -> Reply:
        """Do what an owner's request demands."""
        try:
            asker = self._tokens.verify(request.bearer, now=self._clock.now())
        except InvalidToken as error:
            raise status.unauthorized(str(error)) from None
        if not asker.is_owner:
            raise status.refuse(403, "Forbidden", "only the owner changes planes")
        match = self.routes.find(request.method, request.parts)
        if match is None:
            raise _not_served(request)
        return await match.handler(self, request, *match.arguments)

    async def _list(self, request: Request) -> Reply:
        return json_reply(list(self._operations.list()))

    async def _create(self, request: Request, name: str) -> Reply:
        await self._operations.create(name)
        return json_reply({})

    async def _delete(self, request: Request, name: str) -> Reply:
        await self._operations.delete(name)
        return json_reply({})

    async def _usage(self, request: Request, name: str) -> Reply:
        return json_reply(await self._operations.usage(name))

    async def _limit(self, request: Request, name: str) -> Reply:
        query = parse_qs(request.query_text)
        if not query:
            raise _not_served(request)
        await self._operations.limit(name, _limits_in(query))
        return json_reply({})

    async def _release(self, request: Request, name: str) -> Reply:
        return json_reply(await self._operations.release(name))

    async def _sleep(self, request: Request, name: str) -> Reply:
        await self._operations.sleep(name)
        return json_reply({})

    async def _wake(self, request: Request, name: str) -> Reply:
        await self._operations.wake(name)
        return json_reply({})

    async def _fork(self, request: Request, name: str) -> Reply:
        new = request.first("to")
        if not new:
            raise _not_served(request)
        await self._operations.fork(name, new)
        return json_reply({})

    async def _snapshot(self, request: Request, name: str) -> Reply:
        return Reply(await self._operations.snapshot(name), content_type=b"application/vnd.sqlite3")

    async def _restore(self, request: Request, name: str) -> Reply:
        body = await request.body(_SNAPSHOT)
        same_uid = request.values("same") == ["true"]
        await self._operations.restore(name, body, same_uid=same_uid)
        return json_reply({})

    routes: ClassVar[Routes[Callable[..., Awaitable[Reply]]]] = Routes(
        Route("GET", BASE, _list),
        Route("POST", BASE + "/{name}", _create),
        Route("PUT", BASE + "/{name}", _restore),
        Route("DELETE", BASE + "/{name}", _delete),
        Route("GET", BASE + "/{name}/usage", _usage),
        Route("POST", BASE + "/{name}/limit", _limit),
        Route("POST", BASE + "/{name}/release", _release),
        Route("POST", BASE + "/{name}/sleep", _sleep),
        Route("POST", BASE + "/{name}/wake", _wake),
        Route("POST", BASE + "/{name}/fork", _fork),
        Route("GET", BASE + "/{name}/snapshot", _snapshot),
    )


def _not_served(request: Request) -> status.StatusError:
    path = unquote(request.path)
    return status.refuse(404, "NotFound", f"{request.method} {path} is not served")


def _limits_in(query: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the limits in a query; raise 400 for an unknown name or no number."""
    numbers: dict[str, int] = {}
    for name, values in query.items():
        if name not in PlaneLimits.__struct_fields__ or not values[0].isdecimal():
            names = ", ".join(PlaneLimits.__struct_fields__)
            raise status.bad_request(
                f"{name}={values[0]} is no limit: use a number for one of {names}"
            )
        numbers[name] = int(values[0])
    return numbers
