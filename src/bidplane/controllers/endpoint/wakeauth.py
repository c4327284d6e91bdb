"""The tokens of Endpoints with `wake.auth`: read from the plane, digested for the host."""

from __future__ import annotations

import base64
import binascii

from bidplane.api.kinds import SECRET
from bidplane.api.reading import Endpoint
from bidplane.core.activation.wakeauth import digest_of
from bidplane.errors import NotFound
from bidplane.machinery.planes import PlaneCache

_REREAD_SECONDS = 30.0  # Secrets are not watched; an awake plane's are read again


async def wake_digest(plane: PlaneCache, namespace: str, endpoint: Endpoint) -> str:
    """Return the digest of an Endpoint's token; "" if it has none. `endpoint` is the host's."""
    auth = endpoint.spec.wake.auth
    if auth is None:
        return ""
    try:
        secret = await plane.client.get(SECRET, auth.secret, namespace)
        token = base64.b64decode((secret.get("data") or {}).get(auth.key, ""), validate=True)
    except (NotFound, binascii.Error):
        return ""
    return digest_of(endpoint.uid, token.strip())


def sooner(seconds: float | None, endpoint: Endpoint) -> float | None:
    """Return after how many seconds an Endpoint is reconciled again; None is no such time."""
    if endpoint.spec.wake.auth is None:
        return seconds
    return min(_REREAD_SECONDS, seconds or _REREAD_SECONDS)
