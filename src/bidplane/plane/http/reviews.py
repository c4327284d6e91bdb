"""Questions asked as objects: may I, who am I. Nothing is stored."""

from __future__ import annotations

from typing import Any

from bidplane.plane.call import Call
from bidplane.plane.http.message import Answer, Request, answer
from bidplane.runtime.credentials import OWNERS
from bidplane.wire import status
from bidplane.wire.resources import Resource

_GROUPS = ("authorization.k8s.io", "authentication.k8s.io")
_ALL = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}


def handles(resource: Resource) -> bool:
    return resource.group in _GROUPS and resource.verbs == ("create",)


async def review(call: Call, request: Request) -> Answer:
    if request.method != "POST":
        raise status.method_not_allowed(call.about)
    asked = await request.decoded()
    if not isinstance(asked, dict):
        raise status.bad_request("the body must be a JSON object")
    said = {
        "kind": call.resource.kind,
        "apiVersion": call.resource.api_version,
        "metadata": {"creationTimestamp": None},
        **({"spec": asked["spec"]} if "spec" in asked else {}),
        "status": _status(call),
    }
    return answer(said, 201)


def _status(call: Call) -> dict[str, Any]:
    user = {"username": call.user.name, "groups": list(call.user.groups)}
    match call.resource.plural:
        case "selfsubjectreviews":
            return {"userInfo": user}
        case "selfsubjectaccessreviews":
            return {"allowed": OWNERS in call.user.groups}
        case "selfsubjectrulesreviews":
            everything = {"verbs": ["*"], "nonResourceURLs": ["*"]}
            return {"resourceRules": [_ALL], "nonResourceRules": [everything], "incomplete": False}
        case other:
            # To answer for somebody else needs roles, which planes do not have yet.
            raise status.refuse(501, "NotImplemented", f"{other} are not supported by this plane")
