"""
Tokens of service accounts: made by TokenRequest, signed by the installation, good in one plane.

A token dies with its plane, its account, the pod or Secret it is bound to, or its time.
"""

from __future__ import annotations

from typing import Any

from bidplane.machinery.clock import rfc3339
from bidplane.plane.call import Call, User
from bidplane.plane.feed import Key
from bidplane.plane.plane import Plane
from bidplane.runtime.credentials import Identity, InvalidToken, Tokens
from bidplane.wire import rbac, status
from bidplane.wire.status import Cause

AUDIENCE = "https://kubernetes.default.svc"
SHORTEST, LONGEST, USUAL = 600, 1 << 32, 3600  # seconds
_BOUND = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}


def request(plane: Plane, tokens: Tokens, call: Call, sent: dict[str, Any]) -> dict[str, Any]:
    """POST serviceaccounts/NAME/token: the TokenRequest, with the token in its status."""
    account = plane.store.get(call.key)
    if account is None:
        raise status.not_found(call.about)
    spec = sent.get("spec") or {}
    seconds = spec.get("expirationSeconds", USUAL)
    problems = []
    if not isinstance(seconds, int) or seconds < SHORTEST:
        words = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
        problems.append(Cause(words, "spec.expirationSeconds"))
    elif seconds > LONGEST:
        words = f"Too long: may not specify a duration larger than 2^32 seconds: {seconds}"
        problems.append(Cause(words, "spec.expirationSeconds"))
    if problems:
        about = status.About(group="authentication.k8s.io", kind="TokenRequest")
        raise status.invalid(about, problems)
    now = int(plane.clock.now())
    audiences = list(spec.get("audiences") or [AUDIENCE])
    facts: dict[str, Any] = {
        "namespace": call.namespace,
        "serviceaccount": {"name": call.name, "uid": account.uid},
    }
    _bind(plane, call, spec.get("boundObjectRef"), facts)
    user = f"{rbac.ACCOUNT}{call.namespace}:{call.name}"
    identity = Identity(plane=plane.name, uid=plane.uid, user=user, expires=now + seconds)
    token = tokens.issue(
        identity,
        {
            "iss": AUDIENCE,
            "sub": user,
            "aud": audiences,
            "iat": now,
            "nbf": now,
            "exp": now + seconds,
            "jti": plane.new_uid(),
            "kubernetes.io": facts,
        },
    )
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {
            "name": call.name,
            "namespace": call.namespace,
            "creationTimestamp": plane.now(),
        },
        "spec": {
            "audiences": audiences,
            "expirationSeconds": seconds,
            "boundObjectRef": spec.get("boundObjectRef"),
        },
        "status": {"token": token, "expirationTimestamp": rfc3339(now + seconds)},
    }


def _bind(plane: Plane, call: Call, bound: Any, facts: dict[str, Any]) -> None:
    if not bound:
        return
    kind, name = bound.get("kind", ""), bound.get("name", "")
    storage = _BOUND.get(kind)
    if storage is None:
        words = f"cannot bind token for serviceaccount to object of type {kind}"
        raise status.bad_request(words)
    namespace = "" if kind == "Node" else call.namespace
    found = plane.store.get(Key(storage, namespace, name))
    if found is None:
        raise status.not_found(status.About(storage, "", name))
    uid = bound.get("uid") or found.uid
    if uid != found.uid:
        about = status.About(storage, "", name)
        raise status.conflict(
            about,
            f"the UID in the bound object reference ({uid}) does not match the UID in record."
            " The object might have been deleted and then recreated",
        )
    facts[kind.lower()] = {"name": name, "uid": uid}


def user(plane: Plane, claims: dict[str, Any], audiences: list[str]) -> User:
    """Who an account's token speaks for, if all that it is bound to is still there."""
    facts = claims["kubernetes.io"]
    if not set(audiences) & set(claims.get("aud") or ()):
        raise InvalidToken("the token is for another audience")
    namespace = facts["namespace"]
    account = facts["serviceaccount"]
    found = plane.store.get(Key("serviceaccounts", namespace, account["name"]))
    if found is None or found.uid != account["uid"]:
        raise InvalidToken("the service account of this token is gone")
    for kind, storage in _BOUND.items():
        bound = facts.get(kind.lower())
        if bound:
            space = "" if kind == "Node" else namespace
            held = plane.store.get(Key(storage, space, bound["name"]))
            if held is None or held.uid != bound["uid"]:
                raise InvalidToken(f"the {kind} this token was bound to is gone")
    name = f"{rbac.ACCOUNT}{namespace}:{account['name']}"
    extra = [("authentication.kubernetes.io/credential-id", (f"JTI={claims['jti']}",))]
    if "pod" in facts:
        extra += [
            ("authentication.kubernetes.io/pod-name", (facts["pod"]["name"],)),
            ("authentication.kubernetes.io/pod-uid", (facts["pod"]["uid"],)),
        ]
    groups = (*rbac.account_groups(name), "system:authenticated")
    return User(name, groups, uid=account["uid"], extra=tuple(extra))
