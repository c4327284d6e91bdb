"""
The gate: judges changes of the fleet by the Policies, the same for people and for the pilot.

`changes` finds the actions in a write to the host, `actions` checks one, `effects` computes what it
touches, `rules` compiles Policies, `judgement` gives the verdict, `lifecycle` has the table of a
Proposal's phases. Upstream's ValidatingAdmissionPolicies are another thing: see `core/policies`.
"""
