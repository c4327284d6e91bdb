"""The rights that a host's account needs, and those it lacks."""

from __future__ import annotations

from collections.abc import Iterator

from bidplane.core.diagnosis.model import ClusterFacts, Finding, Level, Right

_READ = ("get", "list", "watch")
_WRITE = (*_READ, "create", "patch", "delete")
_DRA = "resource.k8s.io"


def _rights(group: str, resource: str, verbs: tuple[str, ...]) -> tuple[Right, ...]:
    return tuple(Right(verb, group, resource) for verb in verbs)


NEEDED: tuple[Right, ...] = (
    *_rights("", "nodes", _READ),
    *_rights("", "namespaces", ("get", "list", "watch", "create", "delete")),
    *_rights("", "pods", _WRITE),
    *_rights("", "pods/log", ("get",)),
    *_rights("", "pods/exec", ("create",)),
    *_rights("", "pods/portforward", ("create",)),
    *_rights("", "configmaps", _WRITE),
    *_rights("", "secrets", _WRITE),
    *_rights("", "services", _WRITE),
    *_rights("", "events", ("create", "patch")),
    *_rights(_DRA, "resourceslices", _READ),
    *_rights(_DRA, "deviceclasses", (*_READ, "create")),
    *_rights(_DRA, "resourceclaims", _WRITE),
    *_rights(_DRA, "resourceclaims/status", ("update", "patch")),
    *_rights("apiextensions.k8s.io", "customresourcedefinitions", ("get", "create", "patch")),
    *_rights("bidplane.dev", "gpuleases", _WRITE),
)
# Writing an allocation needs this one since 1.36, by name; kube-apiserver serves no such resource.
BINDING = _rights(_DRA, "resourceclaims/binding", ("update", "patch"))
TAINT_RULES = _rights(_DRA, "devicetaintrules", _WRITE)


def needed(served: frozenset[str]) -> tuple[Right, ...]:
    """Return the rights that are needed on a cluster that serves these resources."""
    reserves = any(resource.endswith("/devicetaintrules") for resource in served)
    return (*NEEDED, *BINDING, *(TAINT_RULES if reserves else ()))


def check_rights(facts: ClusterFacts) -> Iterator[Finding]:
    """The account of the kubeconfig may do what a host must do."""
    for resource, reason in sorted(facts.unread.items()):
        yield Finding(
            check="rights",
            level=Level.PROBLEM,
            fact=f"{resource} cannot be listed: {reason}",
            cost="what this diagnosis says of them is unknown",
            command=f"kubectl auth can-i list {resource} --all-namespaces",
        )
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in facts.denied:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    for (group, resource), missing in verbs.items():
        full = f"{resource}.{group}" if group and "/" not in resource else resource
        plural, _, subresource = resource.partition("/")
        target = f"{plural}{'.' + group if group else ''}{'/' + subresource if subresource else ''}"
        yield Finding(
            check="rights",
            level=Level.PROBLEM,
            fact=f"the account may not {', '.join(missing)} {full}",
            cost="a part of Bidplane stops where it needs that right",
            command=f"kubectl create clusterrole bidplane-{plural}-{subresource or 'all'}"
            f" --verb={','.join(missing)} --resource={target}",
        )
    if not facts.denied and not facts.unread:
        yield Finding(check="rights", level=Level.OK, fact="the account has every right it needs")
