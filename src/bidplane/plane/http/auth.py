"""Who asks, and whether this plane is theirs."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.plane import accounts
from bidplane.plane.call import User
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import Request
from bidplane.plane.plane import Plane
from bidplane.runtime import clientcerts
from bidplane.runtime.credentials import OWNERS, InvalidToken
from bidplane.wire import rbac, status
from bidplane.wire.rbac import Attributes

AUTHENTICATED, ANONYMOUS = "system:authenticated", "system:anonymous"


def authenticate(planes: Hosting, plane: str, request: Request) -> User:
    """The user of a request to `plane`; 401 or 403 for anybody else."""
    authorization = request.header(b"authorization")
    if request.certificate:
        try:
            return _by_certificate(planes, plane, request.certificate)
        except status.Refused:
            if not authorization:
                raise
    return _by_token(planes, plane, authorization)


def _by_certificate(planes: Hosting, plane: str, certificate: bytes) -> User:
    """Of a certificate this installation signed. It opens one plane, the host's too."""
    try:
        identity = clientcerts.identity(certificate)
    except clientcerts.InvalidCertificate as error:
        raise status.unauthorized(f"Unauthorized: {error}") from None
    if identity.expires <= planes.clock.now():
        raise status.unauthorized("Unauthorized: the certificate has expired")
    if planes.uid(identity.plane) != identity.uid:
        raise status.unauthorized(
            f"Unauthorized: the plane {identity.plane!r} this certificate was made for is gone;"
            " create it again, and ask for a new kubeconfig"
        )
    if identity.plane != plane:
        raise status.refuse(
            403, "Forbidden", f"this certificate is for the plane {identity.plane!r} only"
        )
    told = f"X509SHA256={clientcerts.fingerprint(certificate)}"
    extra = (("authentication.kubernetes.io/credential-id", (told,)),)
    return User(identity.user, (*identity.groups, AUTHENTICATED), extra=extra)


def _by_token(planes: Hosting, plane: str, authorization: str) -> User:
    """A plane's own token has every right in it; a service account's has what roles give."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise status.unauthorized(
            "Unauthorized: send the plane's token (Authorization: Bearer …), or its certificate"
        )
    try:
        identity = planes.tokens.verify(token.strip(), now=planes.clock.now(), accounts=True)
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
        # Whether there is such a plane is nobody else's business.
        raise status.refuse(
            403, "Forbidden", f"this token is for the plane {identity.plane!r} only"
        )
    if is_account:
        try:
            claims = planes.tokens.claims(token.strip())
            return accounts.user(planes.plane(plane), claims, [accounts.AUDIENCE])
        except InvalidToken as error:
            raise status.unauthorized(f"Unauthorized: {error}") from None
    groups = (*identity.groups, "system:authenticated")
    return User(identity.user, groups if OWNERS in groups else (OWNERS, *groups))


def reviewed(planes: Hosting, plane: Plane, token: str, audiences: list[str]) -> User:
    """Whose a token is that somebody else asks about; raises `InvalidToken`."""
    identity = planes.tokens.verify(token, now=planes.clock.now(), accounts=True)
    if identity.plane != plane.name or identity.uid != plane.uid:
        raise InvalidToken("the token is not for this plane")
    if identity.user.startswith(rbac.ACCOUNT):
        return accounts.user(plane, planes.tokens.claims(token), audiences)
    if accounts.AUDIENCE not in audiences:
        raise InvalidToken("the token is for another audience")
    groups = (*identity.groups, "system:authenticated")
    return User(identity.user, groups if OWNERS in groups else (OWNERS, *groups))


def impersonated(plane: Plane, user: User, request: Request) -> User:
    """The user that the request asks to be taken for, if its own may do that."""
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
    for asked in _impersonations(name, groups, uid, extra):
        plane.access.require(user, asked)
    if name.startswith(rbac.ACCOUNT) and not groups:
        groups = list(rbac.account_groups(name))
    if name != ANONYMOUS and AUTHENTICATED not in groups:
        groups.append(AUTHENTICATED)
    told: dict[str, tuple[str, ...]] = {}
    for key, value in extra:
        told[key] = (*told.get(key, ()), value)
    return User(name, tuple(groups), uid=uid, extra=tuple(told.items()))


def _impersonations(
    name: str, groups: list[str], uid: str, extra: list[tuple[str, str]]
) -> Iterator[Attributes]:
    verb, group = "impersonate", "authentication.k8s.io"
    if name.startswith(rbac.ACCOUNT) and name.count(":") == 3:
        namespace, account = name.removeprefix(rbac.ACCOUNT).split(":")
        yield Attributes(verb=verb, resource="serviceaccounts", namespace=namespace, name=account)
    else:
        yield Attributes(verb=verb, resource="users", name=name)
    for one in groups:
        yield Attributes(verb=verb, resource="groups", name=one)
    if uid:
        yield Attributes(verb=verb, group=group, resource="uids", name=uid)
    for key, value in extra:
        yield Attributes(verb=verb, group=group, resource="userextras", subresource=key, name=value)


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


def attributes(request: Request) -> Attributes:
    """What a request asks for, in the words of roles."""
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
