"""
What a kind's own rules add to its schema: defaults, what the server sets, what may change.

`RULES` is the list; a kind that is not in it has the general rules and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from bidplane.wire import crds, data
from bidplane.wire.kinds import (
    config,
    events,
    namespaces,
    others,
    pods,
    roles,
    services,
    workloads,
)
from bidplane.wire.kinds.recorded import with_recorded
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
    "daemonsets.apps": workloads.DAEMON_SET,
    "replicationcontrollers": workloads.CONTROLLER,
    "controllerrevisions.apps": others.REVISION,
    "services": services.RULES,
    "persistentvolumes": others.VOLUME,
    "persistentvolumeclaims": others.VOLUME_CLAIM,
    "limitranges": others.LIMIT_RANGE,
    "resourcequotas": others.QUOTA,
    "poddisruptionbudgets.policy": others.BUDGET,
    "priorityclasses.scheduling.k8s.io": others.PRIORITY,
    "leases.coordination.k8s.io": others.LEASE,
    "ingresses.networking.k8s.io": others.INGRESS,
    "horizontalpodautoscalers.autoscaling": others.AUTOSCALER,
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
    "networkpolicies.networking.k8s.io": others.NETWORK_POLICY,
    "resourceclaims.resource.k8s.io": others.DEVICE_CLAIM,
    "resourceclaimtemplates.resource.k8s.io": others.DEVICE_CLAIM_TEMPLATE,
    "resourceslices.resource.k8s.io": _WITH_GENERATION,
    "roles.rbac.authorization.k8s.io": roles.ROLE,
    "rolebindings.rbac.authorization.k8s.io": roles.BINDING,
    "clusterroles.rbac.authorization.k8s.io": roles.ROLE,
    "clusterrolebindings.rbac.authorization.k8s.io": roles.BINDING,
}


@functools.cache
def _builtin() -> Mapping[str, Rules]:
    known = dict.fromkeys((*RULES, *data.defaults()["kinds"]))
    return {storage: with_recorded(storage, RULES.get(storage, _PLAIN)) for storage in known}


def rules(storage: str) -> Rules:
    return _builtin().get(storage, _PLAIN)


__all__ = ["RULES", "Rules", "rules"]
