"""Questions asked as objects: may I, may they, who am I, whose token is this. Nothing is stored."""

from __future__ import annotations

from typing import Any

from bidplane.plane import accounts
from bidplane.plane.call import Call, User
from bidplane.plane.http.auth import reviewed
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import Answer, Request, answer
from bidplane.plane.plane import Plane
from bidplane.plane.verbs import prepare
from bidplane.runtime.credentials import OWNERS, InvalidToken
from bidplane.wire import status
from bidplane.wire.rbac import Attributes
from bidplane.wire.resources import Resource
from bidplane.wire.status import Cause

_GROUPS = ("authorization.k8s.io", "authentication.k8s.io")
_MASTER_RULES = (
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
)


def handles(resource: Resource) -> bool:
    return resource.group in _GROUPS and resource.verbs == ("create",)


async def review(planes: Hosting, plane: Plane, call: Call, request: Request) -> Answer:
    if request.method != "POST":
        raise status.method_not_allowed(call.about)
    asked = prepare.shaped(call, await request.decoded())
    spec = asked.get("spec") or {}
    said = {
        "kind": call.resource.kind,
        "apiVersion": call.resource.api_version,
        "metadata": {"creationTimestamp": None},
        **({"spec": spec} if call.resource.plural != "selfsubjectreviews" else {}),
        "status": _status(planes, plane, call, spec),
    }
    return answer(said, 201)


def _status(planes: Hosting, plane: Plane, call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    match call.resource.plural:
        case "selfsubjectreviews":
            return {"userInfo": info(call.user)}
        case "selfsubjectaccessreviews":
            return _decided(plane, call, call.user, spec)
        case "subjectaccessreviews" | "localsubjectaccessreviews":
            return _decided(plane, call, _subject(call, spec), spec)
        case "selfsubjectrulesreviews":
            return _rules(plane, call, spec)
        case "tokenreviews":
            return _token(planes, plane, call, spec)
        case other:
            raise status.refuse(501, "NotImplemented", f"{other} are not supported by this plane")


def info(user: User) -> dict[str, Any]:
    told: dict[str, Any] = {"username": user.name}
    if user.uid:
        told["uid"] = user.uid
    if user.groups:
        told["groups"] = list(user.groups)
    if user.extra:
        told["extra"] = {key: list(values) for key, values in user.extra}
    return told


def _subject(call: Call, spec: dict[str, Any]) -> User:
    if not spec.get("user") and not spec.get("groups"):
        words = 'Invalid value: "": at least one of user or group must be specified'
        raise status.invalid(call.about, [Cause(words, "spec.user")])
    return User(spec.get("user", ""), tuple(spec.get("groups") or ()))


def _decided(plane: Plane, call: Call, user: User, spec: dict[str, Any]) -> dict[str, Any]:
    about: Any = spec.get("resourceAttributes")
    other: Any = spec.get("nonResourceAttributes")
    if (about is None) == (other is None):
        words = (
            "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must"
            " be specified"
        )
        raise status.invalid(call.about, [Cause(words, "spec.resourceAttributes")])
    if other is not None:
        asked = Attributes(verb=other.get("verb", ""), path=other.get("path", "") or "/")
    else:
        if call.namespace and about.get("namespace") != call.namespace:
            words = f'Invalid value: "{about.get("namespace", "")}": must match metadata.namespace'
            path = "spec.resourceAttributes.namespace"
            raise status.invalid(call.about, [Cause(words, path)])
        asked = Attributes(
            verb=about.get("verb", ""),
            group=about.get("group", ""),
            resource=about.get("resource", ""),
            subresource=about.get("subresource", ""),
            namespace=about.get("namespace", ""),
            name=about.get("name", ""),
        )
    allowed, reason = plane.access.decide(user, asked)
    return {"allowed": allowed, **({"reason": reason} if reason else {})}


def _rules(plane: Plane, call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    namespace = spec.get("namespace", "")
    if not namespace:
        raise status.bad_request("no namespace on request")
    found = [grant.rule for grant in plane.access.grants(call.user, namespace)]
    if OWNERS in call.user.groups:
        found = [*_MASTER_RULES, *found]
    unique: list[Any] = []
    for rule in found:
        if rule not in unique:
            unique.append(rule)
    return {
        "resourceRules": [rule for rule in unique if not rule.get("nonResourceURLs")],
        "nonResourceRules": [rule for rule in unique if rule.get("nonResourceURLs")],
        "incomplete": False,
    }


def _token(planes: Hosting, plane: Plane, call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    token = spec.get("token", "")
    if not token:
        raise status.bad_request("token is required for TokenReview in authentication")
    audiences = list(spec.get("audiences") or [accounts.AUDIENCE])
    try:
        user = reviewed(planes, plane, token, audiences)
    except InvalidToken as error:
        return {"user": {}, "error": f"invalid bearer token: {error}"}
    claims = planes.tokens.claims(token)
    shared = [one for one in audiences if one in claims.get("aud", [accounts.AUDIENCE])]
    return {"authenticated": True, "user": info(user), "audiences": shared}
