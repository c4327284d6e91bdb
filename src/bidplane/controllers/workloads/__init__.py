"""
What kube-controller-manager does in a cluster, in every plane at once.

One work queue per kind for all planes; `core/workloads` decides.
"""

from bidplane.controllers.workloads.all import KINDS, Workloads

__all__ = ["KINDS", "Workloads"]
