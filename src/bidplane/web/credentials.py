"""New credentials for agents: a kubeconfig that expires by itself."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import ClassVar
from urllib.parse import unquote

import msgspec

from bidplane.api.kinds import Object
from bidplane.api.times import rfc3339
from bidplane.http.asgi import Receive, Scope, Send
from bidplane.http.replies import Reply, answer
from bidplane.http.request import Request
from bidplane.http.routes import Route, Routes
from bidplane.machinery.clock import Clock
from bidplane.runtime.identity.clientcerts import Signer, as_data
from bidplane.runtime.identity.credentials import HOST_PLANE, OWNERS, Identity, InvalidToken, Tokens
from bidplane.wire import status

DEFAULT_SECONDS = 24 * 3600
_LONGEST_SECONDS = 30 * 24 * 3600
_NUMBER = re.compile(r"[0-9]{1,9}")
RENEW, ROTATE = "renew", "rotate"


class CredentialsApp:
    """
    `POST /bidplane/v1/agents/NAME/kubeconfig?seconds=86400`, for owners and for the agent itself,
    which renews its own while that is valid. The header `expires` is the time of its end.

    `POST /bidplane/v1/agents/NAME/rotate`, for owners: the same, after every credential of that
    plane that was issued before has been revoked.

    With `&certificate=true` the credential is a client certificate: it opens the plane's API, and
    not the exchange, which reads tokens only.
    """

    routes: ClassVar[Routes[str]] = Routes(
        Route("POST", "/bidplane/v1/agents/{agent}/kubeconfig", RENEW),
        Route("POST", "/bidplane/v1/agents/{agent}/rotate", ROTATE),
    )

    def __init__(
        self,
        tokens: Tokens,
        *,
        plane_uid: Callable[[str], str | None],
        url: str,
        ca: bytes,
        clock: Clock,
        signer: Signer | None = None,
        hang_up: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        """
        `hang_up` ends the watches of a plane, which began with credentials that are now revoked.
        """
        self._hang_up = hang_up
        self._tokens = tokens
        self._signer = signer
        self._plane_uid = plane_uid
        self._url = url
        self._ca = ca
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await answer(request, send, self._answer(request))

    async def _answer(self, request: Request) -> Reply:
        match = self.routes.find(request.method, request.parts)
        if match is None:
            path = unquote(request.path)
            raise status.refuse(404, "NotFound", f"nothing is served at {path}")
        try:
            asker = self._tokens.verify(request.bearer, now=self._clock.now())
        except InvalidToken as error:
            raise status.unauthorized(str(error)) from None
        (name,) = match.arguments
        return await self._issue(asker, name, request, rotates=match.handler == ROTATE)

    async def _issue(self, asker: Identity, name: str, request: Request, *, rotates: bool) -> Reply:
        """Return a kubeconfig for the plane `name`, if `asker` may have it."""
        uid = self._plane_uid(name)
        if rotates and not asker.is_owner:
            raise status.refuse(403, "Forbidden", "only the owner revokes credentials")
        if rotates and name == HOST_PLANE:
            raise status.bad_request("the owner's credentials end by themselves within an hour")
        if not asker.is_owner and (asker.plane, asker.uid) != (name, uid):
            message = "only the owner makes credentials for others; an agent renews its own"
            raise status.refuse(403, "Forbidden", message)
        if uid is None:
            raise status.refuse(404, "NotFound", f'there is no plane "{name}"')
        seconds = _seconds(request, longest=_LONGEST_SECONDS if asker.is_owner else DEFAULT_SECONDS)
        by_certificate = request.values("certificate") == ["true"]
        if by_certificate and self._signer is None:
            message = "this installation signs no certificates; ask for a token"
            raise status.refuse(501, "NotImplemented", message)
        if rotates:
            self._tokens.generations.advance(uid)
            if self._hang_up is not None:
                await self._hang_up(name)
        config = self.kubeconfig(name, uid, seconds, by_certificate=by_certificate)
        ends = rfc3339(int(self._clock.now()) + seconds)
        body = f"# good until {ends}\n".encode() + msgspec.yaml.encode(config)
        reply = Reply(body, content_type=b"application/yaml")
        reply.headers.append((b"expires", ends.encode()))
        return reply

    def kubeconfig(
        self, plane: str, uid: str, seconds: int, *, by_certificate: bool = False
    ) -> Object:
        """Return a kubeconfig for a plane with a new token or client certificate."""
        now = self._clock.now()
        identity = Identity(
            plane=plane, uid=uid, user=plane, groups=(OWNERS,), expires=int(now) + seconds
        )
        if by_certificate and self._signer is not None:
            pair = self._signer.pair(identity, now=now)
            user = {
                "client-certificate-data": as_data(pair.certificate),
                "client-key-data": as_data(pair.key),
            }
        else:
            user = {"token": self._tokens.issue(identity)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": plane,
            "contexts": [{"name": plane, "context": {"cluster": plane, "user": plane}}],
            "clusters": [
                {
                    "name": plane,
                    "cluster": {
                        "server": f"{self._url}/planes/{plane}",
                        "certificate-authority-data": as_data(self._ca),
                    },
                }
            ],
            "users": [{"name": plane, "user": user}],
        }


def _seconds(request: Request, *, longest: int) -> int:
    """Return how long the credential is to be good; raise 400 for too short or too long."""
    text = request.first("seconds") or str(DEFAULT_SECONDS)
    if not _NUMBER.fullmatch(text) or not 60 <= int(text) <= longest:
        raise status.bad_request(f"seconds must be a number from 60 to {longest}, not {text!r}")
    return int(text)
