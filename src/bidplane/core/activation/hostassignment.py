"""
Assignment of host names: which Endpoint has which, and why another has not. Pure.

The owner delegates names to agents (`Agent.spec.hosts`). Of several agents that may use a name,
the one with the oldest Endpoint has it, alone. Endpoints of one agent may share a name if their
paths or headers differ; of two equal rules the older Endpoint has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bidplane.api import labels
from bidplane.api.agent import AgentSpec
from bidplane.api.reading import Endpoint
from bidplane.core.activation.routes import RouteRule, rules_of

DEFAULT_DOMAIN = "localhost"


class HostAssignment(msgspec.Struct, frozen=True):
    """The names of one Endpoint, or the reason that it has none."""

    hosts: tuple[str, ...] = ()
    reason: str = ""  # "" if it has them
    message: str = ""


def delegated(agent: str, spec: AgentSpec, domain: str) -> tuple[str, ...]:
    """Return the patterns of the names that an agent may use."""
    return spec.hosts or (f"*.{agent}.{domain}",)


def is_delegated(host: str, patterns: Iterable[str]) -> bool:
    return any(
        host.endswith(pattern[1:]) and len(host) >= len(pattern)
        if pattern.startswith("*.")
        else host == pattern
        for pattern in patterns
    )


def hosts_of(endpoint: Endpoint, agent: str, domain: str) -> tuple[str, ...]:
    """Return the names that an Endpoint asks for; `endpoint` is the host's copy."""
    name = endpoint.annotations.get(labels.PLANE_NAME, endpoint.name)
    spec = endpoint.spec
    names = [*spec.hosts, *(host for route in spec.routes for host in route.hosts)]
    if not names or (not spec.hosts and any(not route.hosts for route in spec.routes)):
        names.append(f"{name}.{agent}.{domain}")
    return tuple(dict.fromkeys(names))


def assign_hosts(
    endpoints: Iterable[Endpoint], agents: Mapping[str, AgentSpec], domain: str
) -> dict[str, HostAssignment]:
    """Return the assignment of each Endpoint, by uid; `endpoints` are the host's copies."""
    owners: dict[str, str] = {}  # of host names
    holders: dict[RouteRule, Endpoint] = {}
    assignments: dict[str, HostAssignment] = {}
    for endpoint in sorted(endpoints, key=lambda e: (e.creation_timestamp, e.uid)):
        agent = endpoint.labels.get(labels.AGENT, "")
        spec = agents.get(agent)
        if spec is None or endpoint.is_deleted:
            continue
        hosts = hosts_of(endpoint, agent, domain)
        assignment = _refusal(
            endpoint, agent, hosts, delegated(agent, spec, domain), owners, holders
        )
        if assignment is None:
            assignment = HostAssignment(hosts)
            owners.update(dict.fromkeys(hosts, agent))
            for rule in rules_of(endpoint.spec, hosts):
                holders[rule] = endpoint
        assignments[endpoint.uid] = assignment
    return assignments


def _refusal(
    endpoint: Endpoint,
    agent: str,
    hosts: Sequence[str],
    patterns: Sequence[str],
    owners: Mapping[str, str],
    holders: Mapping[RouteRule, Endpoint],
) -> HostAssignment | None:
    for host in hosts:
        if not is_delegated(host, patterns):
            return HostAssignment(
                reason="HostNotDelegated",
                message=f"{host} is not delegated to this agent, which may use"
                f" {', '.join(patterns)}: use such a name, or let the owner add it to the Agent's"
                " spec.hosts",
            )
        if owners.get(host, agent) != agent:
            return HostAssignment(
                reason="HostTaken",
                message=f"{host} is held by an older Endpoint of another agent: use another name",
            )
    target = _target(endpoint)
    for other in holders.values():
        if _target(other) == target and other.labels.get(labels.AGENT) == agent:
            return HostAssignment(
                reason="TargetTaken",
                message=f"the Deployment {target[1]} is the target of the Endpoint"
                f" {_plane_name(other)}: give that one both host names",
            )
    for rule in rules_of(endpoint.spec, hosts):
        holder = holders.get(rule)
        if holder is not None:
            return HostAssignment(
                reason="HostTaken",
                message=f"{rule} is held by the Endpoint {_plane_name(holder)}, created at"
                f" {holder.creation_timestamp}: give this one another host, path prefix or header",
            )
    return None


def _plane_name(endpoint: Endpoint) -> str:
    """Return the namespace and name that an Endpoint has in its plane."""
    notes = endpoint.annotations
    return f"{notes.get(labels.PLANE_NAMESPACE)}/{notes.get(labels.PLANE_NAME)}"


def _target(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.annotations.get(labels.PLANE_NAMESPACE, ""), endpoint.spec.target.deployment
