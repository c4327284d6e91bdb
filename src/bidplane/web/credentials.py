"""Fresh credentials for agents: a kubeconfig that ends by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import msgspec

from bidplane.machinery.clock import Clock
from bidplane.runtime.clientcerts import Signer, as_data
from bidplane.runtime.credentials import OWNERS, Identity, InvalidToken, Tokens
from bidplane.web.asgi import Receive, Scope, Send, answer, answer_status, bearer

DEFAULT_SECONDS = 24 * 3600
_LONGEST_SECONDS = 30 * 24 * 3600
_NUMBER = re.compile(r"[0-9]{1,9}")
_PATH = re.compile(r"/bidplane/v1/agents/([^/]+)/kubeconfig")


class CredentialsApp:
    """
    `POST /bidplane/v1/agents/NAME/kubeconfig?seconds=86400`, for owners.

    With `&certificate=true` the credential is a client certificate: it opens the plane's API, and
    not the exchange, which reads tokens only.
    """

    def __init__(
        self,
        tokens: Tokens,
        *,
        plane_uid: Callable[[str], str | None],
        url: str,
        ca: bytes,
        clock: Clock,
        signer: Signer | None = None,
    ) -> None:
        self._tokens = tokens
        self._signer = signer
        self._plane_uid = plane_uid
        self._url = url
        self._ca = ca
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = _PATH.fullmatch(scope["path"])
        if match is None or scope["method"] != "POST":
            await answer_status(send, 404, "NotFound", f"nothing is served at {scope['path']}")
            return
        try:
            asker = self._tokens.verify(bearer(scope), now=self._clock.now())
        except InvalidToken as error:
            await answer_status(send, 401, "Unauthorized", str(error))
            return
        name = match.group(1)
        if not asker.is_owner:
            await answer_status(send, 403, "Forbidden", "only the owner makes credentials")
            return
        uid = self._plane_uid(name)
        if uid is None:
            await answer_status(send, 404, "NotFound", f'there is no plane "{name}"')
            return
        query = parse_qs(scope["query_string"].decode("latin-1"))
        asked = query.get("seconds", [str(DEFAULT_SECONDS)])[0]
        if not _NUMBER.fullmatch(asked) or not 60 <= int(asked) <= _LONGEST_SECONDS:
            await answer_status(
                send,
                400,
                "BadRequest",
                f"seconds must be a number from 60 to {_LONGEST_SECONDS}, not {asked!r}",
            )
            return
        by_certificate = query.get("certificate") == ["true"]
        if by_certificate and self._signer is None:
            words = "this installation signs no certificates; ask for a token"
            await answer_status(send, 501, "NotImplemented", words)
            return
        config = self.kubeconfig(name, uid, int(asked), by_certificate=by_certificate)
        body = msgspec.yaml.encode(config)
        await answer(send, 200, body, "application/yaml")

    def kubeconfig(
        self, plane: str, uid: str, seconds: int, *, by_certificate: bool = False
    ) -> dict[str, Any]:
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
