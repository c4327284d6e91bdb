"""
Bearer tokens of an installation: short-lived, tied to one plane's life.

A token names a plane *and* the uid that plane had when it was made, so the token of a
deleted plane stays dead when another takes its name. Every process of the installation
holds the same key and can check a token without asking another.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bidplane.errors import UserError
from bidplane.runtime.identity.generations import Generations

HOST_PLANE = "host"
METRICS_PLANE = "-metrics-"  # of tokens that open /metrics and nothing else; no plane's name
OWNERS = "system:masters"  # the group Kubernetes gives every right
ROLE_PREFIX = (
    "bidplane:role:"  # of the groups of people and the pilot, who have a part of the rights
)
ACCOUNT_PREFIX = "system:serviceaccount:"
_KEY_BYTES = 32
_CACHE_LIMIT = 4096
_HEADER = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")


class InvalidToken(Exception):
    """The token was not made here, was altered, or has expired."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a token or certificate, and its plane."""

    plane: str
    uid: str  # of the plane
    user: str
    groups: tuple[str, ...] = ()
    expires: int = 0
    generation: int = 0  # of its plane's credentials; see `generations`

    @property
    def is_owner(self) -> bool:
        """True for the owner of the installation, who may see every plane and every wallet."""
        return self.plane == HOST_PLANE and not self.has_role

    @property
    def has_role(self) -> bool:
        """True for a person or the pilot: the rights are those of the role, and no others."""
        return any(group.startswith(ROLE_PREFIX) for group in self.groups)


class Tokens:
    """Makes and checks the tokens of one installation."""

    def __init__(self, key: bytes, generations: Generations | None = None) -> None:
        self._key = key
        self.generations = generations or Generations()
        # Clients send the same token with every request.
        self._verified: dict[str, Identity] = {}

    def issue(self, identity: Identity, claims: Mapping[str, Any] | None = None) -> str:
        """
        Return a token for `identity`, of its plane's current generation.

        `claims` are further claims in it.
        """
        identity = msgspec.structs.replace(identity, generation=self.generations.of(identity.uid))
        payload = {**(claims or {}), **msgspec.to_builtins(identity)}
        body = _HEADER + b"." + _encode(msgspec.json.encode(payload))
        return (body + b"." + _encode(self._sign(body))).decode()

    def verify(self, token: str, *, now: float, accounts: bool = False) -> Identity:
        """
        Return the identity in `token`; raise `InvalidToken`.

        The token of a service account is for its plane's API alone, which passes `accounts`:
        nowhere else may a pod act for the plane it runs in.
        """
        identity = self._verified.get(token) or self._read(token)
        if identity.expires <= now:
            self._verified.pop(token, None)
            raise InvalidToken("the token has expired")
        if not self.is_current(identity):
            raise InvalidToken("the token was revoked; ask the owner for a new kubeconfig")
        if identity.user.startswith(ACCOUNT_PREFIX) and not accounts:
            raise InvalidToken("a service account's token is for its plane's API only")
        return identity

    def plane_of_account(self, token: str, *, now: float) -> str | None:
        """Return the plane of a service account's token; None for every other token."""
        try:
            identity = self.verify(token, now=now, accounts=True)
        except InvalidToken:
            return None
        return identity.plane if identity.user.startswith(ACCOUNT_PREFIX) else None

    def is_current(self, identity: Identity) -> bool:
        """Return whether the credentials of the identity's plane were not rotated since."""
        return identity.generation >= self.generations.of(identity.uid)

    def _read(self, token: str) -> Identity:
        body, _, signature = token.encode(errors="replace").rpartition(b".")
        if not hmac.compare_digest(_encode(self._sign(body)), signature):
            raise InvalidToken("the token was not made by this installation")
        try:
            identity = msgspec.json.decode(_decode(body.partition(b".")[2]), type=Identity)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidToken("the token cannot be read") from error
        if len(self._verified) >= _CACHE_LIMIT:
            self._verified.clear()
        self._verified[token] = identity
        return identity

    def claims(self, token: str) -> dict[str, Any]:
        """Return all claims of a verified token."""
        body = token.encode().rpartition(b".")[0]
        payload: dict[str, Any] = msgspec.json.decode(_decode(body.partition(b".")[2]))
        return payload

    def _sign(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, hashlib.sha256).digest()


def load_key(path: Path) -> bytes:
    """Return the key in `path`, created on first use; readable by its owner alone."""
    if not path.exists():
        # Whole or not at all: an empty key would let anyone sign. And never replaced:
        # whichever process was first, all read the same.
        temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        temporary.touch(mode=0o600)
        temporary.write_bytes(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        temporary.unlink()
    key = path.read_bytes()
    if len(key) < _KEY_BYTES:
        raise UserError(f"{path} is damaged; delete it, and every credential must be made anew")
    return key


def _encode(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _decode(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
