"""Refusal of kinds that a plane serves but cannot act on, such as webhook configurations."""

from __future__ import annotations

from bidplane.plane.call import Call
from bidplane.wire import status

_GROUP = "admissionregistration.k8s.io"
_WEBHOOKS = (
    "a plane calls no webhooks; write the check as a ValidatingAdmissionPolicy, which it enforces"
)
_MUTATING = (
    "a plane mutates nothing by policy; set the fields where the object is written, and check them"
    " with a ValidatingAdmissionPolicy"
)
_REASONS = {
    f"validatingwebhookconfigurations.{_GROUP}": _WEBHOOKS,
    f"mutatingwebhookconfigurations.{_GROUP}": _WEBHOOKS,
    f"mutatingadmissionpolicies.{_GROUP}": _MUTATING,
    f"mutatingadmissionpolicybindings.{_GROUP}": _MUTATING,
    "apiservices.apiregistration.k8s.io": (
        "a plane passes requests to no other API server; serve the kinds with a"
        " CustomResourceDefinition"
    ),
}


def refuse_unsupported(call: Call) -> None:
    """Raise 403 for an object of a kind that would have no effect in a plane."""
    reason = _REASONS.get(call.resource.storage)
    if reason is not None:
        raise status.forbidden(call.about, f"{call.resource.kind} is not supported: {reason}")
