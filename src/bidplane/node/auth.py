"""
Who may ask a node, and for what.

A kubelet believes the API server, and asks it about everybody else: a client certificate
of the authority it trusts, or a bearer token that a TokenReview knows, names the user; a
SubjectAccessReview says whether that user may do this to this node. Nobody is let in
without both.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from bidplane.api.kinds import Kind
from bidplane.errors import ApiError
from bidplane.kube.client import Client
from bidplane.machinery.clock import Clock
from bidplane.runtime import clientcerts
from bidplane.runtime.credentials import HOST_PLANE, InvalidToken, Tokens

_TOKEN_REVIEW = Kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False)
_ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
# As the kubelet remembers: a user for two minutes, a yes for five, a no for half of one.
_USER_SECONDS, _YES_SECONDS, _NO_SECONDS = 120.0, 300.0, 30.0
_MOST_REMEMBERED = 1000

K = TypeVar("K")
V = TypeVar("V")


class Credentials(msgspec.Struct, frozen=True):
    """What a request came with."""

    token: str = ""
    certificate: bytes | None = None  # DER, verified in the handshake


class Gate(Protocol):
    async def admit(self, shown: Credentials, verb: str, subresources: Sequence[str]) -> None:
        """
        Return if `verb` is allowed on any of these subresources of the node.

        Raises `ApiError`: 401 for nobody we know, 403 for somebody who may not.
        """


class InstallationGate:
    """For nodes that run with their installation: its own tokens, the owner's only."""

    def __init__(self, tokens: Tokens, *, clock: Clock) -> None:
        self._tokens, self._clock = tokens, clock

    async def admit(self, shown: Credentials, verb: str, subresources: Sequence[str]) -> None:
        try:
            identity = self._tokens.verify(shown.token, now=self._clock.now())
        except InvalidToken as error:
            raise _unauthorized(str(error)) from error
        if not identity.is_owner:
            raise ApiError("only the owner may ask a node", code=403, reason="Forbidden")


class User(msgspec.Struct, frozen=True):
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()


class ReviewGate:
    """For nodes of any cluster: the API server is asked, as the kubelet asks it."""

    def __init__(self, client: Client, node: str, *, clock: Clock) -> None:
        self._client, self._node = client, node
        self._users: _Memory[bytes, User | None] = _Memory(clock)
        self._verdicts: _Memory[tuple[User, str, str], bool] = _Memory(clock)

    async def admit(self, shown: Credentials, verb: str, subresources: Sequence[str]) -> None:
        user = await self._user(shown)
        for subresource in subresources:
            if await self._may(user, verb, subresource):
                return
        raise ApiError(
            f"Forbidden (user={user.name}, verb={verb}, resource=nodes,"
            f" subresource({','.join(subresources)}))",
            code=403,
            reason="Forbidden",
        )

    async def _user(self, shown: Credentials) -> User:
        if shown.certificate is not None:
            return certified(shown.certificate)
        if not shown.token:
            raise _unauthorized("Unauthorized")
        key = hashlib.sha256(shown.token.encode()).digest()
        known, user = self._users.get(key)
        if not known:
            user = await self._review(shown.token)
            self._users.put(key, user, _USER_SECONDS if user else _NO_SECONDS)
        if user is None:
            raise _unauthorized("Unauthorized")
        return user

    async def _review(self, token: str) -> User | None:
        review = await self._client.create(
            _TOKEN_REVIEW,
            {
                "apiVersion": _TOKEN_REVIEW.api_version,
                "kind": _TOKEN_REVIEW.kind,
                "spec": {"token": token},
            },
        )
        status = review.get("status") or {}
        user = status.get("user") or {}
        if not status.get("authenticated") or not user.get("username"):
            return None
        return User(user["username"], user.get("uid", ""), tuple(user.get("groups") or ()))

    async def _may(self, user: User, verb: str, subresource: str) -> bool:
        key = user, verb, subresource
        known, allowed = self._verdicts.get(key)
        if known:
            return bool(allowed)
        review = await self._client.create(
            _ACCESS_REVIEW,
            {
                "apiVersion": _ACCESS_REVIEW.api_version,
                "kind": _ACCESS_REVIEW.kind,
                "spec": {
                    "user": user.name,
                    "uid": user.uid,
                    "groups": list(user.groups),
                    "resourceAttributes": {
                        "verb": verb,
                        "resource": "nodes",
                        "subresource": subresource,
                        "name": self._node,
                        "version": "v1",
                    },
                },
            },
        )
        allowed = bool((review.get("status") or {}).get("allowed"))
        self._verdicts.put(key, allowed, _YES_SECONDS if allowed else _NO_SECONDS)
        return allowed


def certified(certificate: bytes) -> User:
    """
    CN is the user, O are the groups.

    An installation signs for the users of every plane, and who has all rights in an agent's
    plane has none here: of its certificates only those for the host count.
    """
    with contextlib.suppress(clientcerts.InvalidCertificate):  # of any other cluster
        if (plane := clientcerts.identity(certificate).plane) != HOST_PLANE:
            raise ApiError(
                f"this certificate is for the plane {plane!r} only", code=403, reason="Forbidden"
            )
    subject = x509.load_der_x509_certificate(certificate).subject
    names = [str(part.value) for part in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not names or not names[0]:
        raise _unauthorized("the certificate names nobody")
    groups = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    everybody = "system:authenticated"
    return User(names[0], groups=(*(str(part.value) for part in groups), everybody))


class _Memory(Generic[K, V]):
    """Answers that hold for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> tuple[bool, V | None]:
        until, value = self._known.get(key, (0.0, None))
        return (True, value) if until > self._clock.now() else (False, None)

    def put(self, key: K, value: V, seconds: float) -> None:
        if len(self._known) >= _MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = (self._clock.now() + seconds, value)


def _unauthorized(message: str) -> ApiError:
    return ApiError(message, code=401, reason="Unauthorized")
