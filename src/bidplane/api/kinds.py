"""
The kinds Bidplane's own parts read and write, as coordinates.

A `Kind` is what a client needs to build a path. Upstream kinds are used as they are;
ours are in the group `bidplane.dev`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

# A Kubernetes object as JSON has it. Read-only by type: what a cache hands out is shared.
Object = Mapping[str, Any]
# The JSON of an object, or of a part of one, that we build and have not sent yet.
Draft = dict[str, Any]

GROUP = "bidplane.dev"
VERSION = "v1alpha1"


class Kind(msgspec.Struct, frozen=True):
    """One served resource: `Kind("apps", "v1", "Deployment", "deployments")`."""

    group: str  # "" is the core group
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
NODE = Kind("", "v1", "Node", "nodes", namespaced=False)
POD = Kind("", "v1", "Pod", "pods")
CONFIG_MAP = Kind("", "v1", "ConfigMap", "configmaps")
SECRET = Kind("", "v1", "Secret", "secrets")
SERVICE_ACCOUNT = Kind("", "v1", "ServiceAccount", "serviceaccounts")
POD_TEMPLATE = Kind("", "v1", "PodTemplate", "podtemplates")
EVENT = Kind("", "v1", "Event", "events")
SERVICE = Kind("", "v1", "Service", "services")
VOLUME_CLAIM = Kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
PERSISTENT_VOLUME = Kind("", "v1", "PersistentVolume", "persistentvolumes", namespaced=False)
RESOURCE_QUOTA = Kind("", "v1", "ResourceQuota", "resourcequotas")
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
REPLICA_SET = Kind("apps", "v1", "ReplicaSet", "replicasets")
STATEFUL_SET = Kind("apps", "v1", "StatefulSet", "statefulsets")
CONTROLLER_REVISION = Kind("apps", "v1", "ControllerRevision", "controllerrevisions")
JOB = Kind("batch", "v1", "Job", "jobs")
CRON_JOB = Kind("batch", "v1", "CronJob", "cronjobs")
DISRUPTION_BUDGET = Kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
ENDPOINTS = Kind("", "v1", "Endpoints", "endpoints")
ENDPOINT_SLICE = Kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
RESOURCE_SLICE = Kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", namespaced=False)
RESOURCE_CLAIM = Kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")
RESOURCE_CLAIM_TEMPLATE = Kind(
    "resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"
)
DEVICE_CLASS = Kind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", namespaced=False)
CRD = Kind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
)

AGENT = Kind(GROUP, VERSION, "Agent", "agents", namespaced=False)
POOL = Kind(GROUP, VERSION, "Pool", "pools", namespaced=False)
BID = Kind(GROUP, VERSION, "Bid", "bids")
GPU_LEASE = Kind(GROUP, VERSION, "GPULease", "gpuleases")
POLICY = Kind(GROUP, VERSION, "Policy", "policies", namespaced=False)
PROPOSAL = Kind(GROUP, VERSION, "Proposal", "proposals", namespaced=False)
ENDPOINT = Kind(GROUP, VERSION, "Endpoint", "endpoints")

# KEDA's HTTP add-on; read as Endpoints.
HTTP_SCALED_OBJECT = Kind("http.keda.sh", "v1alpha1", "HTTPScaledObject", "httpscaledobjects")
INTERCEPTOR_ROUTE = Kind("http.keda.sh", "v1beta1", "InterceptorRoute", "interceptorroutes")
