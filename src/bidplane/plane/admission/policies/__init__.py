"""Enforcement of ValidatingAdmissionPolicies, and refusal of the kinds a plane cannot act on."""

from bidplane.plane.admission.policies.enforce import enforce
from bidplane.plane.admission.policies.unsupported import refuse_unsupported

__all__ = ["enforce", "refuse_unsupported"]
