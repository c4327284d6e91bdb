"""Who asks, and whether this plane is theirs."""

from __future__ import annotations

from bidplane.plane.call import User
from bidplane.plane.http.hosting import Hosting
from bidplane.runtime.credentials import OWNERS, InvalidToken
from bidplane.wire import status


def authenticate(planes: Hosting, plane: str, authorization: str) -> User:
    """The user of a request to `plane`; 401 or 403 for anybody else."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise status.unauthorized("Unauthorized: send the plane's token (Authorization: Bearer …)")
    try:
        identity = planes.tokens.verify(token.strip(), now=planes.clock.now())
    except InvalidToken as error:
        raise status.unauthorized(f"Unauthorized: {error}") from None
    # The token's own plane must still be the one it was made for, the host's too.
    if planes.uid(identity.plane) != identity.uid:
        raise status.unauthorized(
            f"Unauthorized: the plane {identity.plane!r} this token was made for is gone; create"
            " it again, and ask for a new kubeconfig"
        )
    if identity.plane != plane and not identity.is_owner:
        # Whether there is such a plane is nobody else's business.
        raise status.refuse(
            403, "Forbidden", f"this token is for the plane {identity.plane!r} only"
        )
    groups = (*identity.groups, "system:authenticated")
    # Until there is RBAC, a plane's user has every right in it.
    return User(identity.user, groups if OWNERS in groups else (OWNERS, *groups))
