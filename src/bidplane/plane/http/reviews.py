"""Reviews: access reviews, rules reviews, self reviews and token reviews. Nothing is stored."""

from __future__ import annotations

from typing import Any

from bidplane.http.replies import Reply, json_reply
from bidplane.plane.call import Call, User
from bidplane.plane.http.auth import review_token
from bidplane.plane.http.hosting import Hosting
from bidplane.plane.http.message import PlaneRequest
from bidplane.plane.identity import accounts
from bidplane.plane.plane import Plane
from bidplane.plane.verbs import prepare
from bidplane.runtime.identity.credentials import OWNERS, InvalidToken
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


async def review(planes: Hosting, plane: Plane, call: Call, request: PlaneRequest) -> Reply:
    """Return the review with its status filled in."""
    if request.method != "POST":
        raise status.method_not_allowed(call.about)
    sent = prepare.decode_object(call, await request.decoded())
    spec = sent.get("spec") or {}
    reviewed = {
        "kind": call.resource.kind,
        "apiVersion": call.resource.api_version,
        "metadata": {"creationTimestamp": None},
        **({"spec": spec} if call.resource.plural != "selfsubjectreviews" else {}),
        "status": _status(planes, plane, call, spec),
    }
    return json_reply(reviewed, 201)


def _status(planes: Hosting, plane: Plane, call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    match call.resource.plural:
        case "selfsubjectreviews":
            return {"userInfo": user_info(call.user)}
        case "selfsubjectaccessreviews":
            return _access_status(plane, call, call.user, spec)
        case "subjectaccessreviews" | "localsubjectaccessreviews":
            return _access_status(plane, call, _subject(call, spec), spec)
        case "selfsubjectrulesreviews":
            return _rules_status(plane, call, spec)
        case "tokenreviews":
            return _token_status(planes, plane, call, spec)
        case other:
            raise status.refuse(501, "NotImplemented", f"{other} are not supported by this plane")


def user_info(user: User) -> dict[str, Any]:
    """Return the UserInfo of a user."""
    info: dict[str, Any] = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra}
    return info


def _subject(call: Call, spec: dict[str, Any]) -> User:
    if not spec.get("user") and not spec.get("groups"):
        message = 'Invalid value: "": at least one of user or group must be specified'
        raise status.invalid(call.about, [Cause(message, "spec.user")])
    return User(spec.get("user", ""), tuple(spec.get("groups") or ()))


def _access_status(plane: Plane, call: Call, user: User, spec: dict[str, Any]) -> dict[str, Any]:
    resource_attributes: Any = spec.get("resourceAttributes")
    path_attributes: Any = spec.get("nonResourceAttributes")
    if (resource_attributes is None) == (path_attributes is None):
        message = (
            "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must"
            " be specified"
        )
        raise status.invalid(call.about, [Cause(message, "spec.resourceAttributes")])
    if path_attributes is not None:
        attributes = Attributes(
            verb=path_attributes.get("verb", ""), path=path_attributes.get("path", "") or "/"
        )
    else:
        if call.namespace and resource_attributes.get("namespace") != call.namespace:
            namespace = resource_attributes.get("namespace", "")
            message = f'Invalid value: "{namespace}": must match metadata.namespace'
            path = "spec.resourceAttributes.namespace"
            raise status.invalid(call.about, [Cause(message, path)])
        attributes = Attributes(
            verb=resource_attributes.get("verb", ""),
            group=resource_attributes.get("group", ""),
            resource=resource_attributes.get("resource", ""),
            subresource=resource_attributes.get("subresource", ""),
            namespace=resource_attributes.get("namespace", ""),
            name=resource_attributes.get("name", ""),
        )
    allowed, reason = plane.access.decide(user, attributes)
    return {"allowed": allowed, **({"reason": reason} if reason else {})}


def _rules_status(plane: Plane, call: Call, spec: dict[str, Any]) -> dict[str, Any]:
    namespace = spec.get("namespace", "")
    if not namespace:
        raise status.bad_request("no namespace on request")
    rules = [grant.rule for grant in plane.access.grants(call.user, namespace)]
    if OWNERS in call.user.groups:
        rules = [*_MASTER_RULES, *rules]
    unique: list[Any] = []
    for rule in rules:
        if rule not in unique:
            unique.append(rule)
    return {
        "resourceRules": [rule for rule in unique if not rule.get("nonResourceURLs")],
        "nonResourceRules": [rule for rule in unique if rule.get("nonResourceURLs")],
        "incomplete": False,
    }


def _token_status(
    planes: Hosting, plane: Plane, call: Call, spec: dict[str, Any]
) -> dict[str, Any]:
    token = spec.get("token", "")
    if not token:
        raise status.bad_request("token is required for TokenReview in authentication")
    audiences = list(spec.get("audiences") or [accounts.AUDIENCE])
    try:
        user = review_token(planes, plane, token, audiences)
    except InvalidToken as error:
        return {"user": {}, "error": f"invalid bearer token: {error}"}
    claims = planes.tokens.claims(token)
    shared = [
        audience for audience in audiences if audience in claims.get("aud", [accounts.AUDIENCE])
    ]
    return {"authenticated": True, "user": user_info(user), "audiences": shared}
