"""Admission of Policies: one that does not compile is refused, so that the old one stays."""

from __future__ import annotations

from collections.abc import Callable

from bidplane.api.kinds import POLICY, Kind, Object
from bidplane.api.objects import spec_of
from bidplane.api.reading import Invalid, read_policy
from bidplane.core.gate.rules import policy_problems

# (plane, CREATE or UPDATE, kind, new, old) → problems; any refuses the write.
Admission = Callable[[str, str, Kind, Object, Object | None], list[str]]


def with_policies(admit: Admission) -> Admission:
    """Return an admission that checks Policies, too."""

    def admit_policies(
        plane: str, operation: str, kind: Kind, new: Object, old: Object | None
    ) -> list[str]:
        if kind != POLICY:
            return admit(plane, operation, kind, new, old)
        if old is not None and spec_of(new) == spec_of(old):
            return []
        policy = read_policy(new)
        return [policy.problem] if isinstance(policy, Invalid) else policy_problems(policy.spec)

    return admit_policies
