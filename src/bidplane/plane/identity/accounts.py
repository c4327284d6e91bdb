"""
Tokens of service accounts: made by TokenRequest, signed by the installation, good in one plane.

A token dies with its plane, its account, the pod or Secret it is bound to, or its time.
"""

from __future__ import annotations

from typing import Any

from bidplane.api.times import rfc3339
from bidplane.plane.call import Call, User
from bidplane.plane.plane import Plane
from bidplane.plane.storage.feed import Key
from bidplane.runtime.identity.credentials import Identity, InvalidToken, Tokens
from bidplane.wire import rbac, status
from bidplane.wire.status import Cause

AUDIENCE = "https://kubernetes.default.svc"
SHORTEST, LONGEST, USUAL = 600, 1 << 32, 3600  # seconds
GRANTED = 24 * 3600  # the longest life of a token; a request for more gets that, as upstream
_BOUND = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}


def request(plane: Plane, tokens: Tokens, call: Call, sent: dict[str, Any]) -> dict[str, Any]:
    """Return the TokenRequest of POST serviceaccounts/NAME/token, with the token in its status."""
    account = plane.store.get(call.key)
    if account is None:
        raise status.not_found(call.about)
    spec = sent.get("spec") or {}
    seconds = spec.get("expirationSeconds", USUAL)
    problems = []
    if not isinstance(seconds, int) or seconds < SHORTEST:
        message = f"Invalid value: {seconds}: may not specify a duration less than 10 minutes"
        problems.append(Cause(message, "spec.expirationSeconds"))
    elif seconds > LONGEST:
        message = f"Too long: may not specify a duration larger than 2^32 seconds: {seconds}"
        problems.append(Cause(message, "spec.expirationSeconds"))
    if problems:
        about = status.About(group="authentication.k8s.io", kind="TokenRequest")
        raise status.invalid(about, problems)
    seconds = min(seconds, GRANTED)
    now = int(plane.clock.now())
    audiences = list(spec.get("audiences") or [AUDIENCE])
    token_facts: dict[str, Any] = {
        "namespace": call.namespace,
        "serviceaccount": {"name": call.name, "uid": account.uid},
    }
    _bind_to_object(plane, call, spec.get("boundObjectRef"), token_facts)
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
            "kubernetes.io": token_facts,
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


def _bind_to_object(plane: Plane, call: Call, bound: Any, token_facts: dict[str, Any]) -> None:
    """Add the object that a token is bound to; raise 404 or 409 unless it exists with that uid."""
    if not bound:
        return
    kind, name = bound.get("kind", ""), bound.get("name", "")
    storage = _BOUND.get(kind)
    if storage is None:
        message = f"cannot bind token for serviceaccount to object of type {kind}"
        raise status.bad_request(message)
    namespace = "" if kind == "Node" else call.namespace
    item = plane.store.get(Key(storage, namespace, name))
    if item is None:
        raise status.not_found(status.About(storage, "", name))
    uid = bound.get("uid") or item.uid
    if uid != item.uid:
        about = status.About(storage, "", name)
        raise status.conflict(
            about,
            f"the UID in the bound object reference ({uid}) does not match the UID in record."
            " The object might have been deleted and then recreated",
        )
    token_facts[kind.lower()] = {"name": name, "uid": uid}


def user(plane: Plane, claims: dict[str, Any], audiences: list[str]) -> User:
    """
    Return the user of an account's token; raise unless all objects that it is bound to still exist.
    """
    token_facts = claims["kubernetes.io"]
    if not set(audiences) & set(claims.get("aud") or ()):
        raise InvalidToken("the token is for another audience")
    namespace = token_facts["namespace"]
    account = token_facts["serviceaccount"]
    account_item = plane.store.get(Key("serviceaccounts", namespace, account["name"]))
    if account_item is None or account_item.uid != account["uid"]:
        raise InvalidToken("the service account of this token is gone")
    for kind, storage in _BOUND.items():
        bound = token_facts.get(kind.lower())
        if bound:
            bound_namespace = "" if kind == "Node" else namespace
            bound_item = plane.store.get(Key(storage, bound_namespace, bound["name"]))
            if bound_item is None or bound_item.uid != bound["uid"]:
                raise InvalidToken(f"the {kind} this token was bound to is gone")
    name = f"{rbac.ACCOUNT}{namespace}:{account['name']}"
    extra = [("authentication.kubernetes.io/credential-id", (f"JTI={claims['jti']}",))]
    if "pod" in token_facts:
        extra += [
            ("authentication.kubernetes.io/pod-name", (token_facts["pod"]["name"],)),
            ("authentication.kubernetes.io/pod-uid", (token_facts["pod"]["uid"],)),
        ]
    groups = (*rbac.account_groups(name), "system:authenticated")
    return User(name, groups, uid=account["uid"], extra=tuple(extra))
