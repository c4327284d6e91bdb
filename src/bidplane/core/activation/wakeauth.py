"""
Tokens of requests that may wake a service (`wake.auth`). Pure.

The activator reads the host only, and the token is in the agent's plane: so the host has a digest,
which is bound to its Endpoint. Without a digest nobody may wake it.
"""

from __future__ import annotations

import hashlib
import hmac

from bidplane.api.endpoint import WakeRules

HEADER = b"bidplane-wake-token"  # for clients whose Authorization is the service's own


def digest_of(uid: str, token: bytes) -> str:
    """Return the digest of an Endpoint's token; `uid` is that of its copy on the host."""
    return hashlib.sha256(uid.encode() + b"\0" + token).hexdigest() if token else ""


def token_of(authorization: bytes, own_header: bytes) -> bytes:
    """Return the token of a request; an empty one if it has none."""
    if own_header:
        return own_header.strip()
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def refusal(rules: WakeRules, uid: str, digest: str, token: bytes) -> str:
    """Return why a request may not wake the service; "" if it may."""
    if rules.auth is None:
        return ""
    if not digest:
        return f"nobody can wake it: the Secret {rules.auth.secret} has no key {rules.auth.key}"
    if not token:
        return "only a request with its bearer token wakes it"
    if not hmac.compare_digest(digest_of(uid, token), digest):
        return "this token does not wake it"
    return ""
