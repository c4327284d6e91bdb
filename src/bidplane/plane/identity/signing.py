"""
CertificateSigningRequests: permission to request and to grant a client certificate, and the
signing.

One signer works here, `kubernetes.io/kube-apiserver-client`: an approved request becomes a
certificate for this plane. Requests to other signers are stored for those signers.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

from bidplane.api.kinds import Object
from bidplane.plane.call import Call
from bidplane.plane.plane import Plane
from bidplane.runtime.identity.clientcerts import LONGEST_SECONDS
from bidplane.runtime.identity.credentials import OWNERS
from bidplane.wire import status
from bidplane.wire.rbac import Attributes
from bidplane.wire.status import Cause
from bidplane.wire.table.human import seconds

CSRS = "certificatesigningrequests.certificates.k8s.io"
SIGNER = "kubernetes.io/kube-apiserver-client"
_GROUP = "certificates.k8s.io"
_ANSWERS = ("Approved", "Denied")
_SHORTEST = 600  # seconds
# The usages that this signer allows, and the one it requires.
_ALLOWED = frozenset(("key encipherment", "digital signature", "client auth"))
_NEEDED = "client auth"
# How long a request is stored after its answer, and without one.
_ANSWERED_SECONDS, _PENDING_SECONDS = 3600, 24 * 3600


def set_requester(call: Call, obj: dict[str, Any]) -> None:
    """Set the requester of a new request to the user of the call."""
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


def keep_unchangeable(call: Call, new: dict[str, Any], old: Object, now: str) -> dict[str, Any]:
    """
    Return `new` with the fields that this path may not change taken from `old`.

    The spec never changes. An approver writes the conditions of approval, a signer writes the rest.
    """
    merged = {**new, "spec": old["spec"]}
    before, after = old.get("status") or {}, new.get("status") or {}
    conditions = [
        _with_times(condition, before, now) for condition in after.get("conditions") or ()
    ]
    if call.subresource == "approval":
        merged["status"] = {**before, "conditions": conditions}
    elif call.subresource == "status":
        answers = [c for c in before.get("conditions") or () if c.get("type") in _ANSWERS]
        other_conditions = [c for c in conditions if c.get("type") not in _ANSWERS]
        merged["status"] = {**after, "conditions": answers + other_conditions}
    else:
        merged["status"] = before
    if not merged["status"].get("conditions"):
        merged["status"] = {k: v for k, v in merged["status"].items() if k != "conditions"}
    return merged


def _with_times(condition: Object, before: Object, now: str) -> dict[str, Any]:
    dated = dict(condition)
    dated.setdefault("lastUpdateTime", now)
    if not dated.get("lastTransitionTime"):
        earlier_times = (
            earlier.get("lastTransitionTime")
            for earlier in before.get("conditions") or ()
            if earlier.get("type") == condition.get("type")
            and earlier.get("status") == condition.get("status")
        )
        dated["lastTransitionTime"] = next(earlier_times, None) or now
    return dated


# Validation.


def problems(new: Object, old: Object | None) -> list[Cause]:
    """Return the errors in a new or changed request."""
    spec = new.get("spec") or {}
    causes = [] if old is not None else _spec_problems(spec)
    conditions = (new.get("status") or {}).get("conditions") or ()
    types = [condition.get("type") for condition in conditions]
    for index, condition in enumerate(conditions):
        path = f"status.conditions[{index}]"
        if condition.get("type") in (*_ANSWERS, "Failed") and condition.get("status") != "True":
            message = (
                f'Unsupported value: "{condition.get("status", "")}": supported values: "True"'
            )
            causes.append(Cause(message, f"{path}.status", "FieldValueNotSupported"))
        if condition.get("type") == "Denied" and "Approved" in types[:index]:
            message = (
                'Invalid value: "Denied": Approved and Denied conditions are mutually exclusive'
            )
            causes.append(Cause(message, f"{path}.type"))
        if condition.get("type") == "Approved" and "Denied" in types[:index]:
            message = 'Invalid value: "Approved": Approved and Denied conditions are mutually'
            causes.append(Cause(f"{message} exclusive", f"{path}.type"))
    if old is not None:
        for condition in (old.get("status") or {}).get("conditions") or ():
            if condition.get("type") in (*_ANSWERS, "Failed") and condition["type"] not in types:
                message = (
                    f"Forbidden: updates may not remove a condition of type {condition['type']!r}"
                )
                message = message.replace("'", '"')
                causes.append(Cause(message, "status.conditions", "FieldValueForbidden"))
    return causes


def _spec_problems(spec: Object) -> list[Cause]:
    causes = []
    try:
        parse_request(spec)
    except ValueError as error:
        error_text = f'Invalid value: "{spec.get("request", "")}": {error}'
        causes.append(Cause(error_text, "spec.request"))
    if not spec.get("usages"):
        causes.append(Cause("Required value", "spec.usages", "FieldValueRequired"))
    signer = str(spec.get("signerName") or "")
    if not signer:
        causes.append(Cause("Required value", "spec.signerName", "FieldValueRequired"))
    elif "/" not in signer.strip("/"):
        message = (
            f'Invalid value: "{signer}": must be a fully qualified domain and path of the form'
            " 'example.com/signer-name'"
        )
        causes.append(Cause(message, "spec.signerName"))
    lifetime = spec.get("expirationSeconds")
    if lifetime is not None and lifetime < _SHORTEST:
        message = (
            f"Invalid value: {lifetime}: may not specify a duration less than 600 seconds"
            " (10 minutes)"
        )
        causes.append(Cause(message, "spec.expirationSeconds"))
    return causes


def parse_request(spec: Object) -> x509.CertificateSigningRequest:
    """Return the parsed certificate request; raise `ValueError` with upstream's message."""
    try:
        pem = base64.b64decode(spec.get("request") or "", validate=True)
    except (binascii.Error, ValueError):
        pem = b""
    if b"-----BEGIN CERTIFICATE REQUEST-----" not in pem:
        raise ValueError("PEM block type must be CERTIFICATE REQUEST")
    try:
        csr = x509.load_pem_x509_csr(pem)
        # A key we could not put into a certificate is refused now, not when it is granted.
        csr.public_key()
        if csr.is_signature_valid:
            return csr
    except (ValueError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise ValueError(f"the certificate request cannot be read: {error}") from error
    raise ValueError("the certificate request is not signed with its own key")


def check_permission(plane: Plane, call: Call, new: Object, old: Object | None) -> None:
    """Raise 403 for a forbidden group, and for a user who may not approve or sign."""
    spec = new.get("spec") or {}
    signer = str(spec.get("signerName") or "")
    if old is None:
        if signer == SIGNER and OWNERS in _groups(parse_request(spec)):
            reason = f"use of {SIGNER} signer with {OWNERS} group is not allowed"
            raise status.forbidden(call.about, reason)
        return
    if call.subresource == "approval":
        _require_signer_permission(plane, call, "approve", signer)
    elif call.subresource == "status" and _certificate(new) != _certificate(old):
        _require_signer_permission(plane, call, "sign", signer)


def _require_signer_permission(plane: Plane, call: Call, verb: str, signer: str) -> None:
    domain = signer.partition("/")[0]
    for name in (signer, f"{domain}/*"):
        attributes = Attributes(verb=verb, group=_GROUP, resource="signers", name=name)
        if plane.access.decide(call.user, attributes)[0]:
            return
    raise status.forbidden(
        call.about, f'user not permitted to {verb} requests with signerName "{signer}"'
    )


def _groups(csr: x509.CertificateSigningRequest) -> list[str]:
    organizations = csr.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return [str(attribute.value) for attribute in organizations]


# Signing and expiry.


def is_due(obj: Object) -> bool:
    """Return whether a request is approved and waits for our signature."""
    types = _types(obj)
    return (
        (obj.get("spec") or {}).get("signerName") == SIGNER
        and "Approved" in types
        and "Failed" not in types
        and not _certificate(obj)
    )


def sign(plane: Plane, obj: Object) -> dict[str, Any] | None:
    """Return the request with its certificate or with its failure; None without a signer."""
    if plane.signer is None:
        return None
    spec, before = obj["spec"], obj.get("status") or {}
    usages = set(spec.get("usages") or ())
    problem = ""
    if _NEEDED not in usages or usages - _ALLOWED:
        problem = f"usages did not match: expected {_NEEDED!r}, at most {sorted(_ALLOWED)}"
    csr = parse_request(spec)
    if not csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME):
        problem = "the request names no user (CN)"
    if problem:
        failed = {
            "type": "Failed",
            "status": "True",
            "reason": "SignerValidationFailure",
            "message": problem,
            "lastUpdateTime": plane.now(),
            "lastTransitionTime": plane.now(),
        }
        return {**obj, "status": {**before, "conditions": [*before["conditions"], failed]}}
    now = plane.clock.now()
    end = now + min(spec.get("expirationSeconds") or LONGEST_SECONDS, LONGEST_SECONDS)
    certificate = plane.signer.sign(csr, plane=plane.name, uid=plane.uid, now=now, end=end)
    return {**obj, "status": {**before, "certificate": base64.b64encode(certificate).decode()}}


def is_expired(obj: Object, now: float) -> bool:
    """Return whether a request is older than the time for its answer, or for fetching that."""
    created = seconds(obj["metadata"].get("creationTimestamp")) or now
    answered = [
        seconds(condition.get("lastUpdateTime")) or now
        for condition in (obj.get("status") or {}).get("conditions") or ()
    ]
    if _certificate(obj) or {"Denied", "Failed"} & _types(obj):
        return bool(answered) and now - max(answered) > _ANSWERED_SECONDS
    return now - created > _PENDING_SECONDS


def _types(obj: Object) -> set[str]:
    return {str(c.get("type")) for c in (obj.get("status") or {}).get("conditions") or ()}


def _certificate(obj: Object) -> str:
    return str((obj.get("status") or {}).get("certificate") or "")
