"""
The controllers that a cluster's kube-controller-manager runs, for every plane at once: one work
queue per kind serves all planes, and `core/workloads` decides.

    controllers   the controller of each kind: Deployments, Jobs, Services, quotas, …
    reconciler    their base: which key to reconcile when an object changes
    execution     carries out the plans, with Events
    volumeclaims  protection of volume claims in use

They write the objects of workloads (Pods, ReplicaSets, Jobs, EndpointSlices, …) and their status,
in agents' planes, planes of nobody, and the host if it is ours; nothing of Bidplane's own kinds.
"""

from bidplane.controllers.workloads.controllers import KINDS, Workloads

__all__ = ["KINDS", "Workloads"]
