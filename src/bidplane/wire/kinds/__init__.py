"""
The rules that each kind adds to its schema: defaults, fields the server sets, allowed changes.
Pure.

`RULES` is the list; a kind that is not in it has only the general rules. `rules` says where a kind
may have rules of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from bidplane.wire import data
from bidplane.wire.kinds import (
    config,
    events,
    namespaces,
    others,
    pods,
    policies,
    roles,
    services,
    workloads,
)
from bidplane.wire.kinds.recorded import with_recorded
from bidplane.wire.kinds.rules import Rules
from bidplane.wire.schema import crds

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
    "validatingadmissionpolicies.admissionregistration.k8s.io": policies.POLICY,
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": policies.BINDING,
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
    storages = dict.fromkeys((*RULES, *data.defaults()["kinds"]))
    return {storage: with_recorded(storage, RULES.get(storage, _PLAIN)) for storage in storages}


def rules(storage: str) -> Rules:
    return _builtin().get(storage, _PLAIN)


__all__ = ["RULES", "Rules", "rules"]
