"""
Authentication and authorization of requests to a node.

As a kubelet does: a client certificate of the trusted authority, or a bearer token that a
TokenReview accepts, names the user; a SubjectAccessReview decides whether that user may do this to
this node. A request needs both.
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
from bidplane.kube.client import KubeClient
from bidplane.machinery.clock import Clock
from bidplane.runtime.identity import clientcerts
from bidplane.runtime.identity.credentials import HOST_PLANE, InvalidToken, Tokens

_TOKEN_REVIEW = Kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False)
_ACCESS_REVIEW = Kind(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
# As long as the kubelet caches: a user for 120 s, a permission for 300 s, a refusal for 30 s.
_USER_SECONDS, _YES_SECONDS, _NO_SECONDS = 120.0, 300.0, 30.0
_MOST_CACHED = 1000

K = TypeVar("K")
V = TypeVar("V")


class Credentials(msgspec.Struct, frozen=True):
    """The credentials of a request."""

    token: str = ""
    certificate: bytes | None = None  # DER, verified in the handshake


class NodeAuthorizer(Protocol):
    """Decides who may send which requests to a node."""

    async def admit(self, credentials: Credentials, verb: str, subresources: Sequence[str]) -> None:
        """
        Return if `verb` is allowed on any of these subresources of the node.

        Raises `ApiError`: 401 for an unknown user, 403 for one without the right.
        """


class InstallationGate:
    """The gate of nodes that run with their installation: admits only its owner's tokens."""

    def __init__(self, tokens: Tokens, *, clock: Clock) -> None:
        self._tokens, self._clock = tokens, clock

    async def admit(self, credentials: Credentials, verb: str, subresources: Sequence[str]) -> None:
        try:
            identity = self._tokens.verify(credentials.token, now=self._clock.now())
        except InvalidToken as error:
            raise _unauthorized(str(error)) from error
        if not identity.is_owner:
            raise ApiError(
                "only the installation's owner may send requests to a node",
                code=403,
                reason="Forbidden",
            )


class NodeUser(msgspec.Struct, frozen=True):
    """An authenticated user."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()


class ReviewGate:
    """The gate of nodes of any cluster: asks the API server, as the kubelet does."""

    def __init__(self, client: KubeClient, node: str, *, clock: Clock) -> None:
        self._client, self._node = client, node
        self._users: _Cache[bytes, NodeUser | None] = _Cache(clock)
        self._verdicts: _Cache[tuple[NodeUser, str, str], bool] = _Cache(clock)

    async def admit(self, credentials: Credentials, verb: str, subresources: Sequence[str]) -> None:
        user = await self._user(credentials)
        for subresource in subresources:
            if await self._is_allowed(user, verb, subresource):
                return
        raise ApiError(
            f"Forbidden (user={user.name}, verb={verb}, resource=nodes,"
            f" subresource({','.join(subresources)}))",
            code=403,
            reason="Forbidden",
        )

    async def _user(self, credentials: Credentials) -> NodeUser:
        """The user of these credentials; raises `ApiError` (401) if unknown."""
        if credentials.certificate is not None:
            return user_of_certificate(credentials.certificate)
        if not credentials.token:
            raise _unauthorized("Unauthorized")
        key = hashlib.sha256(credentials.token.encode()).digest()
        is_cached, user = self._users.get(key)
        if not is_cached:
            user = await self._review(credentials.token)
            self._users.put(key, user, _USER_SECONDS if user else _NO_SECONDS)
        if user is None:
            raise _unauthorized("Unauthorized")
        return user

    async def _review(self, token: str) -> NodeUser | None:
        """The user of a token by a TokenReview, or None."""
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
        return NodeUser(user["username"], user.get("uid", ""), tuple(user.get("groups") or ()))

    async def _is_allowed(self, user: NodeUser, verb: str, subresource: str) -> bool:
        """Return True if a SubjectAccessReview allows it."""
        key = user, verb, subresource
        is_cached, allowed = self._verdicts.get(key)
        if is_cached:
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


def user_of_certificate(certificate: bytes) -> NodeUser:
    """
    The user that a client certificate names: CN is the name, O are the groups.

    An installation signs certificates for the users of every plane, and full rights in an agent's
    plane give none here: of its certificates only those for the host are accepted.
    """
    with contextlib.suppress(clientcerts.InvalidCertificate):  # a certificate of another cluster
        if (plane := clientcerts.identity(certificate).plane) != HOST_PLANE:
            raise ApiError(
                f"this certificate is for the plane {plane!r} only", code=403, reason="Forbidden"
            )
    subject = x509.load_der_x509_certificate(certificate).subject
    names = [str(part.value) for part in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not names or not names[0]:
        raise _unauthorized("the certificate has no common name (CN)")
    groups = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    everybody = "system:authenticated"
    return NodeUser(names[0], groups=(*(str(part.value) for part in groups), everybody))


class _Cache(Generic[K, V]):
    """Answers that stay valid for a limited time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> tuple[bool, V | None]:
        """Return (True, value) for a valid entry, else (False, None)."""
        until, value = self._entries.get(key, (0.0, None))
        return (True, value) if until > self._clock.now() else (False, None)

    def put(self, key: K, value: V, seconds: float) -> None:
        if len(self._entries) >= _MOST_CACHED:
            self._entries.clear()
        self._entries[key] = (self._clock.now() + seconds, value)


def _unauthorized(message: str) -> ApiError:
    return ApiError(message, code=401, reason="Unauthorized")
