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

HOST_PLANE = "host"
OWNERS = "system:masters"  # the group Kubernetes gives every right
ACCOUNT_PREFIX = "system:serviceaccount:"
_KEY_BYTES = 32
_KNOWN_LIMIT = 4096
_HEADER = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")


class InvalidToken(Exception):
    """The token was not made here, was altered, or is over."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who a token speaks for."""

    plane: str
    uid: str  # of the plane
    user: str
    groups: tuple[str, ...] = ()
    expires: int = 0

    @property
    def is_owner(self) -> bool:
        """The owner of the installation: may see every plane and every wallet."""
        return self.plane == HOST_PLANE


class Tokens:
    """Makes and checks the tokens of one installation."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        # A token is sent with every request, and says the same each time.
        self._known: dict[str, Identity] = {}

    def issue(self, identity: Identity, claims: Mapping[str, Any] | None = None) -> str:
        """A token for `identity`; `claims` are what else it says, to whoever reads it."""
        said = {**(claims or {}), **msgspec.to_builtins(identity)}
        body = _HEADER + b"." + _encode(msgspec.json.encode(said))
        return (body + b"." + _encode(self._sign(body))).decode()

    def verify(self, token: str, *, now: float, accounts: bool = False) -> Identity:
        """
        The identity in `token`; raises `InvalidToken`.

        The token of a service account is for its plane's API alone, which asks for `accounts`:
        nowhere else may a pod act for the plane it runs in.
        """
        identity = self._known.get(token) or self._read(token)
        if identity.expires <= now:
            self._known.pop(token, None)
            raise InvalidToken("the token has expired")
        if identity.user.startswith(ACCOUNT_PREFIX) and not accounts:
            raise InvalidToken("a service account's token is for its plane's API only")
        return identity

    def _read(self, token: str) -> Identity:
        body, _, signature = token.encode(errors="replace").rpartition(b".")
        if not hmac.compare_digest(_encode(self._sign(body)), signature):
            raise InvalidToken("the token was not made by this installation")
        try:
            identity = msgspec.json.decode(_decode(body.partition(b".")[2]), type=Identity)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidToken("the token cannot be read") from error
        if len(self._known) >= _KNOWN_LIMIT:
            self._known.clear()
        self._known[token] = identity
        return identity

    def claims(self, token: str) -> dict[str, Any]:
        """Everything a verified token says."""
        body = token.encode().rpartition(b".")[0]
        said: dict[str, Any] = msgspec.json.decode(_decode(body.partition(b".")[2]))
        return said

    def _sign(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, hashlib.sha256).digest()


def load_key(path: Path) -> bytes:
    """The key in `path`, made on first use; readable by its owner alone."""
    if not path.exists():
        # Whole or not at all: an empty key would let anyone sign. And never replaced:
        # whichever process was first, all read the same.
        fresh = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        fresh.touch(mode=0o600)
        fresh.write_bytes(secrets.token_bytes(_KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
    key = path.read_bytes()
    if len(key) < _KEY_BYTES:
        raise UserError(f"{path} is damaged; delete it, and every credential must be made anew")
    return key


def _encode(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _decode(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
