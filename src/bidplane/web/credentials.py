"""New credentials for agents and people: a kubeconfig that expires by itself."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import ClassVar
from urllib.parse import unquote

import msgspec

from bidplane.api.gate.policy import ActorRole
from bidplane.api.kinds import Object
from bidplane.api.times import rfc3339
from bidplane.errors import UserError
from bidplane.gate.actors import PEOPLE_ROLES, group_of, require_person_name
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
RENEW, ROTATE, USER = "renew", "rotate", "user"


class CredentialsApp:
    """
    `POST /bidplane/v1/agents/NAME/kubeconfig?seconds=86400`, for owners and for the agent itself,
    which renews its own while that is valid. The header `expires` is the time of its end.

    `POST /bidplane/v1/agents/NAME/rotate`, for owners: the same, after every credential of that
    plane that was issued before has been revoked.

    `POST /bidplane/v1/users/NAME?role=operator&seconds=86400`, for owners: a kubeconfig of the host
    for a person of that name, with the rights of the role.

    With `&certificate=true` the credential is a client certificate: it opens the plane's API, and
    not the exchange, which reads tokens only.
    """

    routes: ClassVar[Routes[str]] = Routes(
        Route("POST", "/bidplane/v1/agents/{agent}/kubeconfig", RENEW),
        Route("POST", "/bidplane/v1/agents/{agent}/rotate", ROTATE),
        Route("POST", "/bidplane/v1/users/{user}", USER),
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
        if asker.has_role:
            # Of the host as an owner is, and yet no owner.
            message = "only the owner makes credentials for others"
            raise status.refuse(403, "Forbidden", message)
        (name,) = match.arguments
        if match.handler == USER:
            return self._issue_for_person(asker, unquote(name), request)
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
        return _file(config, ends)

    def _issue_for_person(self, asker: Identity, name: str, request: Request) -> Reply:
        """Return a kubeconfig of the host for a person with a role."""
        if not asker.is_owner:
            message = "only the owner makes credentials for people"
            raise status.refuse(403, "Forbidden", message)
        text, roles = request.first("role"), ", ".join(PEOPLE_ROLES)
        if text not in PEOPLE_ROLES:
            raise status.bad_request(f"role must be one of {roles}, not {text!r}")
        try:
            require_person_name(name)
        except UserError as error:
            raise status.bad_request(str(error)) from None
        uid = self._plane_uid(HOST_PLANE)
        if uid is None:
            raise status.unavailable("the host plane is being made: try again")
        seconds = _seconds(request, longest=_LONGEST_SECONDS)
        groups = (group_of(ActorRole(text)),)
        config = self.kubeconfig(HOST_PLANE, uid, seconds, user=name, groups=groups)
        return _file(config, rfc3339(int(self._clock.now()) + seconds))

    def kubeconfig(
        self,
        plane: str,
        uid: str,
        seconds: int,
        *,
        by_certificate: bool = False,
        user: str = "",
        groups: tuple[str, ...] = (OWNERS,),
    ) -> Object:
        """
        Return a kubeconfig for a plane with a new token or client certificate; by default with
        every right, under the plane's own name.
        """
        now = self._clock.now()
        identity = Identity(
            plane=plane, uid=uid, user=user or plane, groups=groups, expires=int(now) + seconds
        )
        if by_certificate and self._signer is not None:
            pair = self._signer.pair(identity, now=now)
            login = {
                "client-certificate-data": as_data(pair.certificate),
                "client-key-data": as_data(pair.key),
            }
        else:
            login = {"token": self._tokens.issue(identity)}
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
            "users": [{"name": plane, "user": login}],
        }


def _file(config: Object, ends: str) -> Reply:
    """Return a kubeconfig as a file that says when it ends."""
    body = f"# good until {ends}\n".encode() + msgspec.yaml.encode(config)
    reply = Reply(body, content_type=b"application/yaml")
    reply.headers.append((b"expires", ends.encode()))
    return reply


def _seconds(request: Request, *, longest: int) -> int:
    """Return how long the credential is to be good; raise 400 for too short or too long."""
    text = request.first("seconds") or str(DEFAULT_SECONDS)
    if not _NUMBER.fullmatch(text) or not 60 <= int(text) <= longest:
        raise status.bad_request(f"seconds must be a number from 60 to {longest}, not {text!r}")
    return int(text)
