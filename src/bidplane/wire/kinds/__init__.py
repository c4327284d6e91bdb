"""
What a kind's own rules add to its schema: defaults, what the server sets, what may change.

`RULES` is the list; a kind that is not in it has the general rules and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from bidplane.wire import crds
from bidplane.wire.kinds import config, events, namespaces, pods, roles, workloads
from bidplane.wire.kinds.rules import Rules

_PLAIN = Rules()
_WITH_GENERATION = Rules(generation=True)

RULES: Mapping[str, Rules] = {
    "pods": pods.RULES,
    "namespaces": namespaces.RULES,
    "configmaps": config.CONFIG_MAP,
    "secrets": config.SECRET,
    "events": events.RULES,
    # A kubelet registers its Node with a status; so do we.
    "nodes": Rules(keeps_status=True),
    "podtemplates": workloads.POD_TEMPLATE,
    "deployments.apps": workloads.DEPLOYMENT,
    "replicasets.apps": workloads.REPLICA_SET,
    "daemonsets.apps": workloads.TEMPLATED,
    "statefulsets.apps": workloads.STATEFUL_SET,
    "jobs.batch": workloads.JOB,
    "cronjobs.batch": workloads.CRON_JOB,
    "customresourcedefinitions.apiextensions.k8s.io": Rules(
        default=crds.default,
        validate=crds.problems,
        change=crds.changes,
        generation=True,
        keeps_status=True,
    ),
    "poddisruptionbudgets.policy": _WITH_GENERATION,
    "ingresses.networking.k8s.io": _WITH_GENERATION,
    "ingressclasses.networking.k8s.io": _WITH_GENERATION,
    "networkpolicies.networking.k8s.io": _WITH_GENERATION,
    "priorityclasses.scheduling.k8s.io": _WITH_GENERATION,
    "resourceslices.resource.k8s.io": _WITH_GENERATION,
    "deviceclasses.resource.k8s.io": _WITH_GENERATION,
    "roles.rbac.authorization.k8s.io": roles.ROLE,
    "rolebindings.rbac.authorization.k8s.io": roles.BINDING,
    "clusterroles.rbac.authorization.k8s.io": roles.ROLE,
    "clusterrolebindings.rbac.authorization.k8s.io": roles.BINDING,
}


def rules(storage: str) -> Rules:
    return RULES.get(storage, _PLAIN)


__all__ = ["RULES", "Rules", "rules"]
