"""
CertificateSigningRequests: who may ask for a client certificate, who may grant it, and the signing.

One signer is at work here, `kubernetes.io/kube-apiserver-client`: an approved request becomes a
certificate that opens this plane. Requests to other signers are kept for whoever signs them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.runtime.clientcerts import LONGEST_SECONDS
from bidplane.runtime.credentials import OWNERS
from bidplane.wire import status
from bidplane.wire.rbac import Attributes
from bidplane.wire.status import Cause
from bidplane.wire.table.human import seconds

CSRS = "certificatesigningrequests.certificates.k8s.io"
SIGNER = "kubernetes.io/kube-apiserver-client"
_GROUP = "certificates.k8s.io"
_ANSWERS = ("Approved", "Denied")
_SHORTEST = 600  # seconds
# What this signer's certificates may be for, and must.
_ALLOWED = frozenset(("key encipherment", "digital signature", "client auth"))
_NEEDED = "client auth"
# How long a request is kept after it was answered, and unanswered.
_ANSWERED_SECONDS, _PENDING_SECONDS = 3600, 24 * 3600

Object = Mapping[str, Any]


def ask(call: Call, obj: dict[str, Any]) -> None:
    """A new request says who made it, whatever it says itself."""
    spec = {
        key: value
        for key, value in (obj.get("spec") or {}).items()
        if key not in ("username", "uid", "groups", "extra")
    }
    user = call.user
    spec["username"] = user.name
    if user.uid:
        spec["uid"] = user.uid
    if user.groups:
        spec["groups"] = list(user.groups)
    if user.extra:
        spec["extra"] = {key: list(values) for key, values in user.extra}
    obj["spec"] = spec


def only(call: Call, new: dict[str, Any], old: Object, now: str) -> dict[str, Any]:
    """
    `new` with what this path may not change as it was in `old`.

    A request never changes. Who approves writes those conditions, who signs writes the rest.
    """
    kept = {**new, "spec": old["spec"]}
    before, after = old.get("status") or {}, new.get("status") or {}
    given = [_dated(one, before, now) for one in after.get("conditions") or ()]
    if call.subresource == "approval":
        kept["status"] = {**before, "conditions": given}
    elif call.subresource == "status":
        answers = [c for c in before.get("conditions") or () if c.get("type") in _ANSWERS]
        others = [c for c in given if c.get("type") not in _ANSWERS]
        kept["status"] = {**after, "conditions": answers + others}
    else:
        kept["status"] = before
    if not kept["status"].get("conditions"):
        kept["status"] = {k: v for k, v in kept["status"].items() if k != "conditions"}
    return kept


def _dated(condition: Object, before: Object, now: str) -> dict[str, Any]:
    dated = dict(condition)
    dated.setdefault("lastUpdateTime", now)
    if not dated.get("lastTransitionTime"):
        same = (
            one.get("lastTransitionTime")
            for one in before.get("conditions") or ()
            if one.get("type") == condition.get("type")
            and one.get("status") == condition.get("status")
        )
        dated["lastTransitionTime"] = next(same, None) or now
    return dated


# What is refused.


def problems(new: Object, old: Object | None) -> list[Cause]:
    spec = new.get("spec") or {}
    found = [] if old is not None else _asked(spec)
    held = (new.get("status") or {}).get("conditions") or ()
    types = [one.get("type") for one in held]
    for at, one in enumerate(held):
        path = f"status.conditions[{at}]"
        if one.get("type") in (*_ANSWERS, "Failed") and one.get("status") != "True":
            words = f'Unsupported value: "{one.get("status", "")}": supported values: "True"'
            found.append(Cause(words, f"{path}.status", "FieldValueNotSupported"))
        if one.get("type") == "Denied" and "Approved" in types[:at]:
            words = 'Invalid value: "Denied": Approved and Denied conditions are mutually exclusive'
            found.append(Cause(words, f"{path}.type"))
        if one.get("type") == "Approved" and "Denied" in types[:at]:
            words = 'Invalid value: "Approved": Approved and Denied conditions are mutually'
            found.append(Cause(f"{words} exclusive", f"{path}.type"))
    if old is not None:
        for one in (old.get("status") or {}).get("conditions") or ():
            if one.get("type") in (*_ANSWERS, "Failed") and one["type"] not in types:
                words = f"Forbidden: updates may not remove a condition of type {one['type']!r}"
                words = words.replace("'", '"')
                found.append(Cause(words, "status.conditions", "FieldValueForbidden"))
    return found


def _asked(spec: Object) -> list[Cause]:
    found = []
    try:
        request(spec)
    except ValueError as error:
        said = f'Invalid value: "{spec.get("request", "")}": {error}'
        found.append(Cause(said, "spec.request"))
    if not spec.get("usages"):
        found.append(Cause("Required value", "spec.usages", "FieldValueRequired"))
    signer = str(spec.get("signerName") or "")
    if not signer:
        found.append(Cause("Required value", "spec.signerName", "FieldValueRequired"))
    elif "/" not in signer.strip("/"):
        words = (
            f'Invalid value: "{signer}": must be a fully qualified domain and path of the form'
            " 'example.com/signer-name'"
        )
        found.append(Cause(words, "spec.signerName"))
    lasting = spec.get("expirationSeconds")
    if lasting is not None and lasting < _SHORTEST:
        words = (
            f"Invalid value: {lasting}: may not specify a duration less than 600 seconds"
            " (10 minutes)"
        )
        found.append(Cause(words, "spec.expirationSeconds"))
    return found


def request(spec: Object) -> x509.CertificateSigningRequest:
    """What was asked for; raises `ValueError` in upstream's words."""
    try:
        pem = base64.b64decode(spec.get("request") or "", validate=True)
    except (binascii.Error, ValueError):
        pem = b""
    if b"-----BEGIN CERTIFICATE REQUEST-----" not in pem:
        raise ValueError("PEM block type must be CERTIFICATE REQUEST")
    try:
        read = x509.load_pem_x509_csr(pem)
        # A key we could not put into a certificate is refused now, not when it is granted.
        read.public_key()
        if read.is_signature_valid:
            return read
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise ValueError(f"the certificate request cannot be read: {error}") from error
    raise ValueError("the certificate request is not signed with its own key")


def permit(plane: Plane, call: Call, new: Object, old: Object | None) -> None:
    """403 for a group nobody may ask for, and for those who may not approve or sign."""
    spec = new.get("spec") or {}
    signer = str(spec.get("signerName") or "")
    if old is None:
        if signer == SIGNER and OWNERS in _groups(request(spec)):
            why = f"use of {SIGNER} signer with {OWNERS} group is not allowed"
            raise status.forbidden(call.about, why)
        return
    if call.subresource == "approval":
        _require(plane, call, "approve", signer)
    elif call.subresource == "status" and _certificate(new) != _certificate(old):
        _require(plane, call, "sign", signer)


def _require(plane: Plane, call: Call, verb: str, signer: str) -> None:
    domain = signer.partition("/")[0]
    for name in (signer, f"{domain}/*"):
        asked = Attributes(verb=verb, group=_GROUP, resource="signers", name=name)
        if plane.access.decide(call.user, asked)[0]:
            return
    raise status.forbidden(
        call.about, f'user not permitted to {verb} requests with signerName "{signer}"'
    )


def _groups(asked: x509.CertificateSigningRequest) -> list[str]:
    named = asked.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return [str(one.value) for one in named]


# Signing, and forgetting.


def is_due(obj: Object) -> bool:
    """Whether a request waits for us."""
    types = _types(obj)
    return (
        (obj.get("spec") or {}).get("signerName") == SIGNER
        and "Approved" in types
        and "Failed" not in types
        and not _certificate(obj)
    )


def signed(plane: Plane, obj: Object) -> dict[str, Any] | None:
    """The request with its certificate, or with why there is none; None when nobody signs."""
    if plane.signer is None:
        return None
    spec, before = obj["spec"], obj.get("status") or {}
    usages = set(spec.get("usages") or ())
    wrong = ""
    if _NEEDED not in usages or usages - _ALLOWED:
        wrong = f"usages did not match: expected {_NEEDED!r}, at most {sorted(_ALLOWED)}"
    asked = request(spec)
    if not asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME):
        wrong = "the request names no user (CN)"
    if wrong:
        failed = {
            "type": "Failed",
            "status": "True",
            "reason": "SignerValidationFailure",
            "message": wrong,
            "lastUpdateTime": plane.now(),
            "lastTransitionTime": plane.now(),
        }
        return {**obj, "status": {**before, "conditions": [*before["conditions"], failed]}}
    now = plane.clock.now()
    end = now + min(spec.get("expirationSeconds") or LONGEST_SECONDS, LONGEST_SECONDS)
    made = plane.signer.sign(asked, plane=plane.name, uid=plane.uid, now=now, end=end)
    return {**obj, "status": {**before, "certificate": base64.b64encode(made).decode()}}


def is_old(obj: Object, now: float) -> bool:
    """Whether everybody had the time to fetch the answer, or to give one."""
    made = seconds(obj["metadata"].get("creationTimestamp")) or now
    answered = [
        seconds(one.get("lastUpdateTime")) or now
        for one in (obj.get("status") or {}).get("conditions") or ()
    ]
    if _certificate(obj) or {"Denied", "Failed"} & _types(obj):
        return bool(answered) and now - max(answered) > _ANSWERED_SECONDS
    return now - made > _PENDING_SECONDS


def _types(obj: Object) -> set[str]:
    return {str(c.get("type")) for c in (obj.get("status") or {}).get("conditions") or ()}


def _certificate(obj: Object) -> str:
    return str((obj.get("status") or {}).get("certificate") or "")
