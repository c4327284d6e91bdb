"""
People's decisions on Proposals, each by the sender's own credential.

    POST /bidplane/v1/proposals/NAME/approve?digest=…   of exactly the action with that digest
    POST /bidplane/v1/proposals/NAME/reject?reason=…
    POST /bidplane/v1/proposals/NAME/undo               makes a Proposal that takes it back
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar
from urllib.parse import unquote

from bidplane.api.gate.policy import ActorRole
from bidplane.core.gate.judgement import GateActor
from bidplane.gate import proposing
from bidplane.gate.actors import PEOPLE_ROLES, actor_of
from bidplane.gate.service import Gate
from bidplane.http.asgi import Receive, Scope, Send
from bidplane.http.replies import Reply, answer, json_reply
from bidplane.http.request import Request
from bidplane.http.routes import Route, Routes
from bidplane.machinery.clock import Clock
from bidplane.runtime.identity.credentials import HOST_PLANE, InvalidToken, Tokens
from bidplane.wire import status

BASE = "/bidplane/v1/proposals"
_APPROVE, _REJECT, _UNDO = "approve", "reject", "undo"
_MOST_REASON = 512


class DecisionsApp:
    routes: ClassVar[Routes[str]] = Routes(
        *(Route("POST", f"{BASE}/{{name}}/{verb}", verb) for verb in (_APPROVE, _REJECT, _UNDO))
    )

    def __init__(
        self,
        gate: Gate,
        tokens: Tokens,
        *,
        host_uid: Callable[[], str | None],
        clock: Clock,
        decided: Callable[[str], None],
    ) -> None:
        """`decided` has the controller look at a Proposal again."""
        self._gate, self._tokens, self._clock = gate, tokens, clock
        self._host_uid, self._decided = host_uid, decided

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await answer(request, send, self._answer(request))

    async def _answer(self, request: Request) -> Reply:
        actor = self._person(request)
        match = self.routes.find(request.method, request.parts)
        if match is None:
            path = unquote(request.path)
            raise status.refuse(404, "NotFound", f"{request.method} {path} is not served")
        (name,) = match.arguments
        name = unquote(name)
        undo = ""
        if match.handler == _APPROVE:
            digest = request.first("digest")
            if not digest:
                raise status.bad_request(
                    "give the digest of the action that you approve (?digest=…): `bidplane"
                    f" proposals show {name}` prints it"
                )
            await proposing.approve(self._gate, actor, name, digest)
        elif match.handler == _REJECT:
            reason = request.first("reason")[:_MOST_REASON]
            await proposing.reject(self._gate, actor, name, reason)
        else:
            undo = await proposing.take_back(self._gate, actor, name)
        self._decided(name)
        return json_reply({"name": undo or name, "by": actor.name, "did": match.handler})

    def _person(self, request: Request) -> GateActor:
        """Return the person who sends the request; raise 401, or 403 for everything else."""
        try:
            identity = self._tokens.verify(request.bearer, now=self._clock.now())
        except InvalidToken as error:
            raise status.unauthorized(str(error)) from None
        actor = actor_of(identity.user, identity.groups)
        if (identity.plane, identity.uid) != (HOST_PLANE, self._host_uid()):
            raise status.refuse(403, "Forbidden", "an agent decides on no Proposal")
        if actor is None or actor.role not in PEOPLE_ROLES:
            role = actor.role if actor is not None else ActorRole.NONE
            raise status.refuse(403, "Forbidden", f"only people decide on Proposals, not a {role}")
        return actor
