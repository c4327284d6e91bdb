"""
Enforcement of ValidatingAdmissionPolicies (`enforce`), and refusal of the kinds a plane cannot act
on (`unsupported`). Reads policies, bindings and parameters of one plane; `core.policies` decides.
"""

from bidplane.plane.admission.policies.enforce import enforce
from bidplane.plane.admission.policies.unsupported import refuse_unsupported

__all__ = ["enforce", "refuse_unsupported"]
