"""Authentication of a request, and the attributes that authorization decides on."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.gate.actors import COMPONENTS
from bidplane.plane.call import User
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import PlaneRequest
from bidplane.plane.identity import accounts
from bidplane.plane.plane import Plane
from bidplane.runtime.identity import clientcerts
from bidplane.runtime.identity.credentials import OWNERS, Identity, InvalidToken
from bidplane.wire import rbac, status
from bidplane.wire.rbac import Attributes

AUTHENTICATED, ANONYMOUS = "system:authenticated", "system:anonymous"


def authenticate(planes: Hosting, plane: str, request: PlaneRequest) -> User:
    """Return the user of a request to `plane`; raise 401 or 403 without valid credentials."""
    if certificate := request.certificate:
        try:
            return _by_certificate(planes, plane, certificate)
        except status.StatusError:
            if not request.header(b"authorization"):
                raise
    return _by_token(planes, plane, request.bearer)


def _by_certificate(planes: Hosting, plane: str, certificate: bytes) -> User:
    """
    Return the user of a client certificate of this installation, which is valid in one plane only.
    """
    try:
        identity = clientcerts.identity(certificate)
    except clientcerts.InvalidCertificate as error:
        raise status.unauthorized(f"Unauthorized: {error}") from None
    if identity.expires <= planes.clock.now():
        raise status.unauthorized("Unauthorized: the certificate has expired")
    if not planes.tokens.is_current(identity):
        raise status.unauthorized(
            "Unauthorized: the certificate was revoked; ask the owner for a new kubeconfig"
        )
    if planes.uid(identity.plane) != identity.uid:
        raise status.unauthorized(
            f"Unauthorized: the plane {identity.plane!r} this certificate was made for is gone;"
            " create it again, and ask for a new kubeconfig"
        )
    if identity.plane != plane:
        raise status.refuse(
            403, "Forbidden", f"this certificate is for the plane {identity.plane!r} only"
        )
    credential_id = f"X509SHA256={clientcerts.fingerprint(certificate)}"
    extra = (("authentication.kubernetes.io/credential-id", (credential_id,)),)
    return User(identity.user, (*identity.groups, AUTHENTICATED), extra=extra)


def _by_token(planes: Hosting, plane: str, token: str) -> User:
    """
    Return the user of a token: a plane's own has every right in it, an account's has its roles.
    """
    if not token:
        raise status.unauthorized(
            "Unauthorized: send the plane's token (Authorization: Bearer …), or its certificate"
        )
    try:
        identity = planes.tokens.verify(token, now=planes.clock.now(), accounts=True)
    except InvalidToken as error:
        raise status.unauthorized(f"Unauthorized: {error}") from None
    # The token's own plane must still be the one it was made for, the host's too.
    if planes.uid(identity.plane) != identity.uid:
        raise status.unauthorized(
            f"Unauthorized: the plane {identity.plane!r} this token was made for is gone; create"
            " it again, and ask for a new kubeconfig"
        )
    is_account = identity.user.startswith(rbac.ACCOUNT)
    if identity.plane != plane and (is_account or not identity.is_owner):
        # The refusal does not tell whether the other plane exists.
        raise status.refuse(
            403, "Forbidden", f"this token is for the plane {identity.plane!r} only"
        )
    if is_account:
        try:
            claims = planes.tokens.claims(token)
            return accounts.user(planes.plane(plane), claims, [accounts.AUDIENCE])
        except InvalidToken as error:
            raise status.unauthorized(f"Unauthorized: {error}") from None
    return _user_of(identity)


def _user_of(identity: Identity) -> User:
    """Return the user of a token that is no service account's."""
    groups = (*identity.groups, AUTHENTICATED)
    if OWNERS in groups or identity.has_role:
        return User(identity.user, groups)
    return User(identity.user, (OWNERS, *groups))


def review_token(planes: Hosting, plane: Plane, token: str, audiences: list[str]) -> User:
    """Return the user of the token in a TokenReview; raise `InvalidToken`."""
    identity = planes.tokens.verify(token, now=planes.clock.now(), accounts=True)
    if identity.plane != plane.name or identity.uid != plane.uid:
        raise InvalidToken("the token is not for this plane")
    if identity.user.startswith(rbac.ACCOUNT):
        return accounts.user(plane, planes.tokens.claims(token), audiences)
    if accounts.AUDIENCE not in audiences:
        raise InvalidToken("the token is for another audience")
    return _user_of(identity)


def impersonate(plane: Plane, user: User, request: PlaneRequest) -> User:
    """Return the user that the request impersonates, if its own user may do that."""
    name = request.header(b"impersonate-user")
    groups = request.header_values(b"impersonate-group")
    extra = request.headers_after(b"impersonate-extra-")
    uid = request.header(b"impersonate-uid")
    if not name:
        if groups or extra or uid:
            raise status.refuse(
                500,
                "InternalError",
                "Internal error occurred: requested groups, a uid or extra without impersonating"
                " a user",
            )
        return user
    if name in COMPONENTS:
        raise status.refuse(
            403, "Forbidden", f"{name!r} is a part of Bidplane and cannot be impersonated"
        )
    for permission in _impersonation_attributes(name, groups, uid, extra):
        plane.access.require(user, permission)
    if name.startswith(rbac.ACCOUNT) and not groups:
        groups = list(rbac.account_groups(name))
    if name != ANONYMOUS and AUTHENTICATED not in groups:
        groups.append(AUTHENTICATED)
    extra_values: dict[str, tuple[str, ...]] = {}
    for key, value in extra:
        extra_values[key] = (*extra_values.get(key, ()), value)
    return User(name, tuple(groups), uid=uid, extra=tuple(extra_values.items()))


def _impersonation_attributes(
    name: str, groups: list[str], uid: str, extra: list[tuple[str, str]]
) -> Iterator[Attributes]:
    """Yield the permissions that an impersonation needs."""
    verb, group = "impersonate", "authentication.k8s.io"
    if name.startswith(rbac.ACCOUNT) and name.count(":") == 3:
        namespace, account = name.removeprefix(rbac.ACCOUNT).split(":")
        yield Attributes(verb=verb, resource="serviceaccounts", namespace=namespace, name=account)
    else:
        yield Attributes(verb=verb, resource="users", name=name)
    for group_name in groups:
        yield Attributes(verb=verb, resource="groups", name=group_name)
    if uid:
        yield Attributes(verb=verb, group=group, resource="uids", name=uid)
    for key, value in extra:
        yield Attributes(verb=verb, group=group, resource="userextras", subresource=key, name=value)


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


def attributes(request: PlaneRequest) -> Attributes:
    """Return the attributes of a request for RBAC: verb, resource, namespace, name."""
    target = request.target
    if target is None:
        verb = "get" if request.method == "HEAD" else request.method.lower()
        return Attributes(verb=verb, path=request.path)
    verb, name = _VERBS.get(request.method, ""), target.name
    if request.method in ("GET", "HEAD"):
        verb = "get" if name else "list"
        if request.flag("watch"):
            verb = "watch"
        if not name:
            # A list of one by its name may be allowed by that name.
            only = request.query.get("fieldSelector", "")
            key, _, value = only.partition("=")
            name = value if key == "metadata.name" and "," not in value else ""
    elif request.method == "DELETE":
        verb = "delete" if name else "deletecollection"
    namespace = target.namespace
    if target.plural == "namespaces" and not target.group:
        namespace = target.name
    return Attributes(
        verb=verb,
        group=target.group,
        resource=target.plural,
        subresource=target.subresource,
        namespace=namespace,
        name=name,
    )
