"""
Admission of objects beyond Kubernetes' own rules: what a pod or bid asks for can be read, and pods
of agents that are not trusted have no access to the machines.
"""

from __future__ import annotations

from collections.abc import Callable

from bidplane.api.kinds import (
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    POD,
    REPLICA_SET,
    STATEFUL_SET,
    Kind,
    Object,
)
from bidplane.api.objects import annotations_of, spec_of
from bidplane.api.reading import Invalid, read_agent
from bidplane.core.bidding import asks
from bidplane.core.bidding.annotations import unread
from bidplane.core.hosting import hostaccess

# (plane, CREATE or UPDATE, kind, new, old) → problems; any refuses the write.
Admission = Callable[[str, str, Kind, Object, Object | None], list[str]]


def admit(plane: str, operation: str, kind: Kind, new: Object, old: Object | None) -> list[str]:
    """Return the problems of what an object asks for."""
    return [] if _is_same_ask(new, old) else asks.problems(kind, new)


_WITH_PODS = (POD, JOB, CRON_JOB, DEPLOYMENT, REPLICA_SET, STATEFUL_SET)


def advise(kind: Kind, obj: Object) -> list[str]:
    """Return warnings about annotations that nothing reads, on pods and on templates of pods."""
    return list(unread(obj)) if kind in _WITH_PODS else []


def admission(agent_of: Callable[[str], Object | None]) -> Admission:
    """
    Return the admission of a server: what `admit` refuses, and access to the machines for agents
    that are not trusted. `agent_of` returns the Agent of a plane; None for planes of no agent.
    """

    def admit_all(
        plane: str, operation: str, kind: Kind, new: Object, old: Object | None
    ) -> list[str]:
        if _is_same_ask(new, old):
            return []
        problems = asks.problems(kind, new)
        if kind == POD and not _is_trusted(agent_of(plane)):
            # Earlier problems stay allowed: the agent may have been trusted before.
            before = hostaccess.problems(old) if old is not None else []
            problems += [problem for problem in hostaccess.problems(new) if problem not in before]
        return problems

    return admit_all


def _is_trusted(obj: Object | None) -> bool:
    """Return True for an agent that is trusted, and for a plane of no agent."""
    if obj is None:
        return True
    agent = read_agent(obj)
    return not isinstance(agent, Invalid) and agent.spec.trusted


def _is_same_ask(new: Object, old: Object | None) -> bool:
    """Return whether spec and annotations are unchanged: most writes are of a status."""
    return (
        old is not None
        and spec_of(new) == spec_of(old)
        and annotations_of(new) == annotations_of(old)
    )
