"""
ValidatingAdmissionPolicies: the requests that one matches (`matching`), and its expressions
(`programs`). Pure; `plane/admission/policies` gives them requests, parameters and namespaces.
"""
